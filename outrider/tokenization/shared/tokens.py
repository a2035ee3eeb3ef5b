"""What several processes know of texts, through Redis.

Called in the threads that tokenize: reading waits for some milliseconds at most, writing not at
all, and while Redis is slow or gone nobody waits for it.
"""

from __future__ import annotations

import ssl
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from outrider.tokenization.shared.breaker import Breaker, BreakerPolicy
from outrider.tokenization.shared.entries import Entries

_UNREACHABLE: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
TLS_CONNECT_S: Final = 0.1
"""For a handshake; then the connection stays, and questions take what they take without TLS."""
_MAX_QUEUED: Final = 256
_BATCH: Final = 16

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SharedPolicy:
    """What is kept, and how patient one is."""

    max_chars: int = 64 << 10
    """A longer text is asked about once, as a rule."""
    ttl_s: int = 86_400
    """What nobody wrote for so long is forgotten."""
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)


@dataclass(slots=True)
class SharedFigures:
    """What came of asking, ever; of all vocabularies of a process."""

    num_asked: int = 0
    """Texts."""
    num_found: int = 0
    num_skipped: int = 0
    """Texts not asked about, for the others could not be reached a moment ago."""
    num_damaged: int = 0
    """Values that nobody with the key wrote, or not for this name."""
    num_failures: int = 0
    """Questions and answers that failed or took too long."""
    num_written: int = 0
    num_dropped: int = 0
    """Texts that were not written: too many wait, or the others cannot be reached."""
    is_open: bool = False
    """Whether nobody asks for now."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where it is, and who asks."""

    url: str
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; without secrets and options."""
    user: str = ""
    """Of its access control lists; "": its default user."""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    """Certificates that its own is signed by, in PEM; None: those of this machine."""

    def check(self) -> None:
        """Raises ValueError, which never says what the URL is: it may hold a password."""
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
        except ValueError:
            raise ValueError("it is no URL") from None
        if parts.scheme not in ("redis", "rediss") or not host:
            raise ValueError("use redis://HOST:PORT/DATABASE, or rediss:// for TLS")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "it holds a user or a password, which would be logged: set shared_cache_user and "
                "shared_cache_password or shared_cache_password_file"
            )
        if parts.query or parts.fragment:
            raise ValueError("it has options: only host, port and database are taken")
        if parts.scheme == "redis" and self.ca is not None:
            raise ValueError("there is a CA, but no TLS: use rediss://")
        if parts.scheme == "redis" and self.password and not _is_loopback(host):
            raise ValueError("the password would go over the network as it is: use rediss://")


def connect(address: RedisAddress, timeout_s: float, num_connections: int) -> redis.Redis:
    """A client that never waits longer, and never tries twice; over TLS a new connection may take
    `TLS_CONNECT_S`. The certificate has to be valid for the host of the URL. Raises ValueError."""
    address.check()
    tls: dict[str, Any] = {}
    if address.url.startswith("rediss:"):
        tls = {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_ca_certs": None if address.ca is None else str(address.ca),
        }
    return redis.Redis.from_url(
        address.url,
        username=address.user or None,
        password=address.password or None,
        socket_timeout=timeout_s,
        socket_connect_timeout=max(timeout_s, TLS_CONNECT_S) if tls else timeout_s,
        retry=Retry(NoBackoff(), 0),
        max_connections=num_connections,
        **tls,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Line:
    """One Redis as a process sees it: a breaker for all, and the thread that writes."""

    def __init__(
        self,
        client: redis.Redis,
        policy: SharedPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.figures = SharedFigures()
        self._client = client
        self._clock = clock
        self._breaker = Breaker(policy.breaker)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="shared-tokens", daemon=True)
        self._thread.start()

    def read(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The values of `names`; none of them if they cannot be had now."""
        figures = self.figures
        with self._changed:
            is_allowed = self._breaker.allows(self._clock())
        if not is_allowed:
            figures.num_skipped += len(names)
            return [None] * len(names)
        figures.num_asked += len(names)
        found = self._tried(lambda: cast("list[bytes | None]", self._client.mget(names)))
        return [None] * len(names) if found is None else found

    def write(self, name: bytes, value: bytes) -> None:
        """Have a value written; dropped if too many wait."""
        with self._changed:
            if self._breaker.is_open or len(self._waiting) >= _MAX_QUEUED or self._is_closed:
                self.figures.num_dropped += 1
                return
            self._waiting.append((name, value))
            self._changed.notify()

    def close(self) -> None:
        """What waits is dropped. Blocks for as long as one write may take."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()
        self._client.close()

    def _tried(self, ask: Callable[[], list[bytes | None]]) -> list[bytes | None] | None:
        try:
            answer = ask()
        except _UNREACHABLE as error:
            self._failed(error)
            return None
        except redis.RedisError as error:  # it is there, and says no: full, or not ours to use
            self.figures.num_failures += 1
            _log.warning("shared_tokens_refused", reason=type(error).__name__)
            return None
        with self._changed:
            self._breaker.succeeded()
            self.figures.is_open = False
        return answer

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.failed(self._clock())
            self.figures.is_open = self._breaker.is_open
            self.figures.num_failures += 1
        if self.figures.is_open and not was_open:
            _log.warning("shared_tokens_unreachable", reason=type(error).__name__)

    # Everything below runs in the thread.

    def _write(self) -> None:
        while batch := self._next_batch():
            if self._tried(lambda batch=batch: self._sent(batch)) is None:  # type: ignore[misc]
                self.figures.num_dropped += len(batch)
            else:
                self.figures.num_written += len(batch)

    def _sent(self, batch: list[tuple[bytes, bytes]]) -> list[bytes | None]:
        with self._client.pipeline(transaction=False) as pipe:
            for name, value in batch:
                pipe.set(name, value, ex=self.policy.ttl_s)
            pipe.execute()
        return []

    def _next_batch(self) -> list[tuple[bytes, bytes]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            count = min(_BATCH, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]


class RedisTokens:
    """One vocabulary's ids on a Line (outrider.tokenization.front.encoder.SharedTokens)."""

    def __init__(self, line: Line, entries: Entries, *, min_chars: int) -> None:
        """A text of fewer than `min_chars` is encoded sooner than it is found."""
        self._line = line
        self._entries = entries
        self._min_chars = min_chars

    def get(self, texts: Sequence[str], scope: bytes, maker: str) -> list[array[int] | None]:
        """What is known of each of `texts`."""
        found: list[array[int] | None] = [None] * len(texts)
        names = {
            at: self._entries.name(text, scope, maker)
            for at, text in enumerate(texts)
            if self._is_worth_it(text)
        }
        if names:
            values = self._line.read(list(names.values()))
            for (at, name), value in zip(names.items(), values, strict=True):
                found[at] = None if value is None else self._checked(name, value)
        return found

    def put(self, text: str, ids: array[int], scope: bytes, maker: str) -> None:
        """Tell the others."""
        if self._is_worth_it(text):
            name = self._entries.name(text, scope, maker)
            self._line.write(name, self._entries.value(name, ids))

    def _is_worth_it(self, text: str) -> bool:
        return self._min_chars <= len(text) <= self._line.policy.max_chars

    def _checked(self, name: bytes, value: bytes) -> array[int] | None:
        ids = self._entries.ids(name, value)
        self._line.figures.num_found += ids is not None
        self._line.figures.num_damaged += ids is None
        return ids
