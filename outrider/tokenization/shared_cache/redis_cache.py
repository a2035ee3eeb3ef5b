"""A cache of texts' ids that several processes share, in Redis.

Called in the threads that tokenize. A read takes a few milliseconds at most, a write is queued, and
while Redis is slow or gone a circuit breaker skips it.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.redis_settings import RedisAddress
from outrider.tokenization.shared_cache.entries import PREFIX, Entries

TLS_CONNECT_S: Final = 0.1
"""Timeout of a TLS handshake. The connection then stays open, so reads pay for it once."""
_MAX_QUEUED: Final = 256
"""Writes that wait; more are dropped."""
_BATCH: Final = 16
"""Writes in one round trip."""
_PROBE_S: Final = 1.0
"""Interval at which a Redis that is left alone may be asked whether it is back, though no text is
looked up."""
_PROBE: Final = PREFIX + b"probe"
"""Name of no entry."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SharedCachePolicy:
    """Limits of what is cached, and when to stop asking Redis."""

    max_chars: int = 64 << 10
    """A longer text is not cached: it is rarely sent twice."""
    ttl_s: int = 86_400
    """An entry expires so long after it was last written."""
    breaker: CircuitBreakerPolicy = field(default_factory=CircuitBreakerPolicy)


@dataclass(slots=True)
class SharedCacheStats:
    """Counts over all vocabularies of a process."""

    num_asked: int = 0
    """Texts looked up."""
    num_found: int = 0
    num_skipped: int = 0
    """Texts not looked up because the circuit breaker was open."""
    num_damaged: int = 0
    """Values that do not open with our key, or not under this name."""
    num_failures: int = 0
    """Reads and writes that failed or timed out."""
    num_written: int = 0
    num_dropped: int = 0
    """Texts not written: too many wait, or the circuit breaker is open."""
    is_open: bool = False
    """Whether the circuit breaker is open."""


def connect(address: RedisAddress, timeout_s: float, num_connections: int) -> redis.Redis:
    """A client that waits `timeout_s` at most and never retries; over TLS a new connection may take
    `TLS_CONNECT_S`. Raises ValueError."""
    address.check()
    connect_s = max(timeout_s, TLS_CONNECT_S) if address.is_tls else timeout_s
    return redis.Redis.from_url(
        address.url,
        retry=Retry(NoBackoff(), 0),
        max_connections=num_connections,
        **address.options(timeout_s, connect_s),
    )


class RedisStore:
    """A process's connection to one Redis: reads behind a circuit breaker, and a thread that
    writes, and asks whether a Redis that was left alone is back."""

    def __init__(
        self,
        client: redis.Redis,
        policy: SharedCachePolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.stats = SharedCacheStats()
        self._client = client
        self._clock = clock
        self._breaker = CircuitBreaker(policy.breaker)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="shared-tokens", daemon=True)
        self._thread.start()

    def read(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The values of `names`, None for those that are missing or cannot be read now."""
        stats = self.stats
        with self._changed:
            is_allowed = self._breaker.allows(self._clock())
        if not is_allowed:
            stats.num_skipped += len(names)
            return [None] * len(names)
        stats.num_asked += len(names)
        found = self._attempt(lambda: cast("list[bytes | None]", self._client.mget(names)))
        return [None] * len(names) if found is None else found

    def write(self, name: bytes, value: bytes) -> None:
        """Queue a value for writing; it is dropped if too many wait."""
        with self._changed:
            if self._breaker.is_open or len(self._waiting) >= _MAX_QUEUED or self._is_closed:
                self.stats.num_dropped += 1
                return
            self._waiting.append((name, value))
            self._changed.notify()

    def close(self) -> None:
        """Drop what waits. Blocks for as long as one write may take."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()
        self._client.close()

    def _attempt(self, ask: Callable[[], list[bytes | None]]) -> list[bytes | None] | None:
        answer = None
        try:
            answer = ask()
        except redis.exceptions.ClusterDownError as error:
            self._failed(error)  # a part of its cluster, or its primary, is lost
            return None
        except redis.ResponseError as error:
            # It is there, and says no: out of memory, or no permission.
            self.stats.num_failures += 1
            _log.warning("shared_tokens_refused", reason=type(error).__name__)
        except (redis.RedisError, OSError) as error:
            self._failed(error)
            return None
        with self._changed:
            self._breaker.succeeded()
            self.stats.is_open = False
        return answer

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.failed(self._clock())
            self.stats.is_open = self._breaker.is_open
            self.stats.num_failures += 1
            self._changed.notify()
        if self.stats.is_open and not was_open:
            _log.warning("shared_tokens_unreachable", reason=type(error).__name__)

    # Everything below runs in the thread.

    def _write(self) -> None:
        while (batch := self._next_batch()) is not None:
            if not batch:
                self._attempt(lambda: cast("list[bytes | None]", self._client.mget([_PROBE])))
            elif self._attempt(lambda batch=batch: self._send(batch)) is None:  # type: ignore[misc]
                self.stats.num_dropped += len(batch)
            else:
                self.stats.num_written += len(batch)

    def _send(self, batch: list[tuple[bytes, bytes]]) -> list[bytes | None]:
        with self._client.pipeline(transaction=False) as pipe:
            for name, value in batch:
                pipe.set(name, value, ex=self.policy.ttl_s)
            pipe.execute()
        return []

    def _next_batch(self) -> list[tuple[bytes, bytes]] | None:
        """What is to be written; nothing where Redis is to be asked whether it is back; None at the
        end."""
        with self._changed:
            while not self._is_closed:
                is_open = self._breaker.is_open
                if self._waiting and not is_open:
                    count = min(_BATCH, len(self._waiting))
                    return [self._waiting.popleft() for _ in range(count)]
                is_notified = self._changed.wait(_PROBE_S if is_open else None)
                if not is_notified and self._breaker.allows(self._clock()):
                    return []
            return None


class RedisTokenCache:
    """One vocabulary's ids in a RedisStore (outrider.tokenization.encoder.SharedCache)."""

    def __init__(self, store: RedisStore, entries: Entries, *, min_chars: int) -> None:
        """Texts shorter than `min_chars` are left out: they are encoded faster than looked up."""
        self._store = store
        self._entries = entries
        self._min_chars = min_chars

    def get(self, texts: Sequence[str], scope: bytes, backend: str) -> list[array[int] | None]:
        """The ids of each of `texts`, None where they are not cached."""
        found: list[array[int] | None] = [None] * len(texts)
        names = {
            at: self._entries.name(text, scope, backend)
            for at, text in enumerate(texts)
            if self._is_cacheable(text)
        }
        if names:
            values = self._store.read(list(names.values()))
            for (at, name), value in zip(names.items(), values, strict=True):
                found[at] = None if value is None else self._checked(name, value)
        return found

    def put(self, text: str, ids: array[int], scope: bytes, backend: str) -> None:
        """Add the ids of `text`."""
        if self._is_cacheable(text):
            name = self._entries.name(text, scope, backend)
            self._store.write(name, self._entries.value(name, ids))

    def _is_cacheable(self, text: str) -> bool:
        return self._min_chars <= len(text) <= self._store.policy.max_chars

    def _checked(self, name: bytes, value: bytes) -> array[int] | None:
        ids = self._entries.ids(name, value)
        self._store.stats.num_found += ids is not None
        self._store.stats.num_damaged += ids is None
        return ids
