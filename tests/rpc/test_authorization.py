"""Who is remembered of those who call, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.errors import PermissionDeniedError, UnauthenticatedError
from outrider.rpc.authorization import CallAuthorizer, Context
from outrider.tls import PLAINTEXT, PeerIdentity, Role, Tls
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write

NOW = utc_now()
METHOD = "/outrider.v1.RouterService/Route"


class Caller:
    """The part of a call's context that the authorizer reads, as gRPC gives it."""

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
    authorizer = CallAuthorizer(tls, max_cached=3)
    callers = [ca.issue(PeerIdentity(Role.EDGE), NOW).certificate for _ in range(5)]
    for certificate in (*callers, *callers):
        with authorizer.call(METHOD, context(certificate)):
            assert authorizer.num_calls == 1
    assert authorizer.num_cached == 3
    assert authorizer.num_calls == 0


async def test_what_is_remembered_ends_with_the_certificate(ca: DevelopmentCa, tls: Tls) -> None:
    clock = Clock()
    authorizer = CallAuthorizer(tls, clock)
    caller = context(ca.issue(PeerIdentity(Role.EDGE), NOW, timedelta(hours=1)).certificate)
    with authorizer.call(METHOD, caller):
        pass
    clock.now = NOW + timedelta(hours=2)
    with pytest.raises(UnauthenticatedError), authorizer.call(METHOD, caller):
        pass
    assert authorizer.num_cached == 0


async def test_what_is_remembered_ends_with_the_ca(ca: DevelopmentCa, tls: Tls) -> None:
    authorizer = CallAuthorizer(tls)
    caller = context(ca.issue(PeerIdentity(Role.EDGE), NOW).certificate)
    with authorizer.call(METHOD, caller):
        pass
    assert authorizer.num_cached == 1 and tls.current is not None
    tls.replace(replace(tls.current, ca=DevelopmentCa(NOW).pem))
    with pytest.raises(UnauthenticatedError), authorizer.call(METHOD, caller):
        pass


async def test_who_shows_nothing_or_another_role_is_refused(ca: DevelopmentCa, tls: Tls) -> None:
    authorizer = CallAuthorizer(tls)
    with pytest.raises(UnauthenticatedError), authorizer.call(METHOD, context()):
        pass
    router = ca.issue(PeerIdentity(Role.ROUTER), NOW).certificate
    with pytest.raises(PermissionDeniedError), authorizer.call(METHOD, context(router)):
        pass
    assert authorizer.num_calls == 0


async def test_without_certificates_whoever_can_connect_may_call() -> None:
    authorizer = CallAuthorizer(PLAINTEXT)
    with authorizer.call(METHOD, context()) as call:
        authorizer.sweep()
        assert call.why is None
