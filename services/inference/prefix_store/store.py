"""Storage of entries in Redis or a Redis Cluster, behind a circuit breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast
from urllib.parse import urlsplit

import structlog

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.errors import ConfigError
from outrider.redis_settings import RedisAddress, once_more
from services.inference.prefix_store.sealing import PREFIX

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

_log = structlog.get_logger()
_T = TypeVar("_T")
_CONNECT_S: Final = 1.0
_PROBE_S: Final = 1.0
"""Interval at which a Redis that is left alone may be asked whether it is back, though no prompt
needs it."""
_PROBES: Final = tuple(PREFIX + b"probe:%d" % number for number in range(16))
"""Names of no entries, so many that a cluster of a few nodes has one on each."""


class RedisStore:
    """Entries by name in a Redis, of which each expires `ttl_s` after it was last written or read.

    Nothing is ever raised: a store that is slow, full or gone has nothing. Every round trip ends
    after `timeout_s`. After some failures in a row none is made for a while, but for single ones
    that find out whether it is back.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        timeout_s: float,
        ttl_s: int,
        max_value_bytes: int,
        breaker: CircuitBreakerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_asked: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`max_value_bytes`: most bytes read of a value. A longer value is no entry. `on_asked` is
        called after every attempt, with whether the store is asked from now on; False: it is left
        alone."""
        self._client = client
        self._timeout_s = timeout_s
        self._ttl_s = ttl_s
        self._max_value_bytes = max_value_bytes
        self._clock = clock
        self._breaker = CircuitBreaker(breaker or CircuitBreakerPolicy())
        self._on_asked = on_asked
        self._probing: asyncio.Task[None] | None = None
        self.num_failures = 0
        """Requests that failed."""

    async def present(self, names: Sequence[bytes]) -> list[bool] | None:
        """Which of them it has, in one round trip, and keeps from now on for as long as when they
        were put; None where it did not answer."""

        async def ask() -> list[bool] | None:
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    # Tells whether it is there, and keeps it for longer.
                    pipe.expire(name, self._ttl_s)
                return [bool(answer) for answer in await pipe.execute()]

        return await self._attempt(ask, None)

    async def fetch(self, names: Sequence[bytes]) -> list[bytes | None] | None:
        """The beginnings of their values, as long as an entry may be, in one round trip; None for
        those without one, and None where it did not answer."""
        import redis

        async def ask() -> list[bytes | None] | None:
            # Not MGET: a cluster answers that for names in one place alone.
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.getrange(name, 0, self._max_value_bytes - 1)
                try:
                    values = cast("list[bytes]", await pipe.execute())
                except redis.ResponseError as error:
                    if "WRONGTYPE" not in str(error):
                        raise
                    return [None] * len(names)  # somebody put a list there, say, which says it all
                return [value or None for value in values]

        return await self._attempt(ask, None)

    async def put(self, entries: Sequence[tuple[bytes, bytes]]) -> bool:
        """Keep them, in one round trip; whether that went well."""

        async def ask() -> bool:
            async with self._client.pipeline(transaction=False) as pipe:
                for name, value in entries:
                    pipe.set(name, value, ex=self._ttl_s)
                await pipe.execute()
            return True

        return await self._attempt(ask, False)

    async def close(self) -> None:
        if (probing := self._probing) is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        await self._client.aclose()

    async def _probe(self) -> None:
        """Until it is back."""
        while self._breaker.is_open:
            await asyncio.sleep(_PROBE_S)
            await self.present(_PROBES)

    async def _attempt(self, ask: Callable[[], Awaitable[_T]], otherwise: _T) -> _T:
        """The answer of `ask`; `otherwise` if it fails or takes too long, or while the breaker is
        open."""
        import redis
        from redis.exceptions import RedisClusterException

        if not self._breaker.allows(self._clock()):
            return otherwise
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await ask()
        except redis.exceptions.ClusterDownError as error:
            self._failed(error)  # a part of it is lost
            return otherwise
        except redis.ResponseError as error:
            # It is there, and says no: out of memory, or no permission.
            self.num_failures += 1
            _log.warning("prefix_store_refused", reason=str(error)[:100])
            self._answered()
            return otherwise
        except (
            *(redis.RedisError, RedisClusterException, OSError, TimeoutError),
            RuntimeError,  # uvloop's, of a connection that was reset
        ) as error:
            # The cluster's exceptions are no RedisErrors: no node that answers, no node for a slot.
            self._failed(error)
            return otherwise
        self._answered()
        return answer

    def _answered(self) -> None:
        self._breaker.succeeded()
        self._on_asked(True)

    def _failed(self, error: BaseException) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(self._clock())
        self.num_failures += 1
        if self._breaker.is_open and not was_open:
            _log.warning("prefix_store_unreachable", reason=type(error).__name__)
            if self._probing is None or self._probing.done():
                self._probing = asyncio.create_task(self._probe())
        self._on_asked(not self._breaker.is_open)


def connect(
    address: RedisAddress, timeout_s: float, *, is_cluster: bool = False
) -> Redis | RedisCluster:
    """A client that retries only where a connection was dead; with `is_cluster`, for the Redis
    Cluster that has `address` as a node. Raises ConfigError for an invalid address."""
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

    try:
        address.check()
    except ValueError as error:
        raise ConfigError(f"prefix_store.url: {error}") from error
    if is_cluster and urlsplit(address.url).path not in ("", "/", "/0"):
        raise ConfigError("prefix_store.url: a Redis Cluster only has database 0")
    kind = RedisCluster if is_cluster else Redis
    return kind.from_url(
        address.url,
        retry=once_more(),
        **address.options(timeout_s, max(timeout_s, _CONNECT_S)),
    )
