"""Identifies callers of a server, checks which methods they may call, and ends calls whose caller's
certificate is no longer valid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import grpc.aio
import structlog
from cryptography import x509

from outrider.errors import OutriderError, UnauthenticatedError
from outrider.lru_map import LruMap
from outrider.tls import access
from outrider.tls.certificates import Tls, subject_alternative_names, utc_now
from outrider.tls.identity import PeerIdentity, identify
from outrider.tls.verification import verify

MAX_CACHED_CALLERS: Final = 1024
"""Most certificates whose owners are cached; verifying one takes some 0.3 ms."""

_REFUSAL_LOG_INTERVAL_S: Final = 5.0

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]
_Chain = tuple[bytes, bytes]
"""PEM: the leaf, and what the peer sent after it."""


@dataclass(frozen=True, slots=True)
class _VerifiedCaller:
    identity: PeerIdentity
    expires_at: datetime
    ca_generation: int


@dataclass(slots=True)
class Call:
    """One call under way."""

    chain: _Chain | None
    task: asyncio.Task[Any] | None
    why: OutriderError | None = None
    """Set when it was ended because its caller's certificate is not good any more."""

    def end(self, why: OutriderError) -> None:
        """Stop the call and report `why` to its caller."""
        self.why = why
        if self.task is not None:
            self.task.cancel()


class CallAuthorizer:
    """The calls of one server. Without certificates anyone who can connect may call every method;
    such a server listens on the loopback, unless its operator configures otherwise."""

    def __init__(
        self, tls: Tls, now: Callable[[], datetime] = utc_now, max_cached: int = MAX_CACHED_CALLERS
    ) -> None:
        self._tls = tls
        self._now = now
        self._cached: LruMap[_Chain, _VerifiedCaller] = LruMap(max_cached)
        self._calls: dict[int, Call] = {}
        self._last_number = 0
        self._num_refused = 0
        self._logged_at = -_REFUSAL_LOG_INTERVAL_S
        if tls.current is not None:
            tls.subscribe(self.sweep)

    @property
    def num_cached(self) -> int:
        """Number of certificates whose owners are cached."""
        return len(self._cached)

    @property
    def num_calls(self) -> int:
        """Calls under way."""
        return len(self._calls)

    @contextmanager
    def call(self, method: str, context: Context) -> Iterator[Call]:
        """One call, from its admission to its end. Raises UnauthenticatedError and
        PermissionDeniedError."""
        call = Call(None, asyncio.current_task())
        if self._tls.current is not None:
            call.chain = _chain(context)
            try:
                access.check(self._identity(call.chain), method)
            except OutriderError as error:
                self.log_refused(method, context.peer(), error)
                raise
        self._last_number += 1
        number = self._last_number
        self._calls[number] = call
        try:
            yield call
        finally:
            del self._calls[number]

    def sweep(self) -> None:
        """End calls whose callers' certificates have expired or no longer lead to a CA of ours."""
        ending: dict[_Chain, list[Call]] = {}
        for call in self._calls.values():
            if call.chain is not None and call.why is None:
                ending.setdefault(call.chain, []).append(call)
        for chain, calls in ending.items():
            try:
                self._identity(chain)
            except UnauthenticatedError as error:
                _log.warning("calls_ended", num_calls=len(calls), why=str(error))
                for call in calls:
                    call.end(error)

    def log_refused(self, method: str, peer: str, why: OutriderError) -> None:
        """Log at most one line per interval: refused callers may try often."""
        self._num_refused += 1
        if time.monotonic() - self._logged_at < _REFUSAL_LOG_INTERVAL_S:
            return
        _log.warning(
            "calls_refused",
            num_calls=self._num_refused,
            method=method,
            peer=peer,
            why=str(why),
        )
        self._logged_at = time.monotonic()
        self._num_refused = 0

    def _identity(self, chain: _Chain) -> PeerIdentity:
        known, now = self._cached.get(chain), self._now()
        if (
            known is not None
            and known.ca_generation == self._tls.ca_generation
            and now < known.expires_at
        ):
            return known.identity
        self._cached.pop(chain)
        current = self._tls.current
        assert current is not None, "only asked for where there are certificates"
        expires_at = verify(current.ca, *chain, now)
        known = _VerifiedCaller(self._owner(chain[0]), expires_at, self._tls.ca_generation)
        self._cached.put(chain, known)
        return known.identity

    def _owner(self, leaf: bytes) -> PeerIdentity:
        certificate = x509.load_pem_x509_certificate(leaf)
        return identify(*subject_alternative_names(certificate), self._tls.config.trust_domain)


def _chain(context: Context) -> _Chain:
    found = context.auth_context()
    (leaf,) = found.get("x509_pem_cert", [b""])
    if not leaf:
        raise UnauthenticatedError("show a certificate (docs/guides/certificates.md)")
    return leaf, b"".join(found.get("x509_pem_cert_chain", []))
