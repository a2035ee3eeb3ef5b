"""Who is remembered of those who call, and for how long."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.errors import PermissionDeniedError, UnauthenticatedError
from outrider.rpc.guard import Context, Guard
from outrider.tls import PLAINTEXT, PeerIdentity, Role, Tls
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write

NOW = utc_now()
METHOD = "/outrider.v1.RouterService/Route"


class Caller:
    """The part of a call's context that the guard reads, as gRPC gives it."""

    def __init__(self, certificate: bytes = b"") -> None:
        self._found = {"x509_pem_cert": [certificate]} if certificate else {}

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._found

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def context(certificate: bytes = b"") -> Context:
    return cast(Context, Caller(certificate))


class Clock:
    now = NOW

    def __call__(self) -> Any:
        return self.now


@pytest.fixture
def ca() -> DevelopmentCa:
    return DevelopmentCa(NOW)


@pytest.fixture
def tls(ca: DevelopmentCa, tmp_path: Path) -> Tls:
    issued = ca.issue(PeerIdentity(Role.ROUTER), NOW)
    return Tls.open(write(tmp_path, "router", issued, ca.pem))


async def test_certificates_that_are_remembered_are_bounded(ca: DevelopmentCa, tls: Tls) -> None:
    guard = Guard(tls, max_known=3)
    callers = [ca.issue(PeerIdentity(Role.EDGE), NOW).certificate for _ in range(5)]
    for certificate in (*callers, *callers):
        with guard.call(METHOD, context(certificate)):
            assert guard.num_calls == 1
    assert guard.num_known == 3
    assert guard.num_calls == 0


async def test_what_is_remembered_ends_with_the_certificate(ca: DevelopmentCa, tls: Tls) -> None:
    clock = Clock()
    guard = Guard(tls, clock)
    caller = context(ca.issue(PeerIdentity(Role.EDGE), NOW, timedelta(hours=1)).certificate)
    with guard.call(METHOD, caller):
        pass
    clock.now = NOW + timedelta(hours=2)
    with pytest.raises(UnauthenticatedError), guard.call(METHOD, caller):
        pass
    assert guard.num_known == 0


async def test_who_shows_nothing_or_another_role_is_refused(ca: DevelopmentCa, tls: Tls) -> None:
    guard = Guard(tls)
    with pytest.raises(UnauthenticatedError), guard.call(METHOD, context()):
        pass
    router = ca.issue(PeerIdentity(Role.ROUTER), NOW).certificate
    with pytest.raises(PermissionDeniedError), guard.call(METHOD, context(router)):
        pass
    assert guard.num_calls == 0


async def test_without_certificates_whoever_can_connect_may_call() -> None:
    guard = Guard(PLAINTEXT)
    with guard.call(METHOD, context()) as call:
        guard.sweep()
        assert call.why is None
