"""Files that change while a process serves: nothing in them, and no listener, ends the watch."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from outrider.tls import Role, Tls, TlsConfig, certificates
from tests.tls.issuing import Issuer

_POLL_S = 0.01
_P256 = bytes.fromhex("06082a8648ce3d030107")
_SM2 = bytes.fromhex("06082a811ccf5501822d")
"""DER of the names of two curves; this library reads keys of the first alone."""


class Checks:
    """Hears of each check of the files."""

    def __init__(self, tls: Tls) -> None:
        self._heard = asyncio.Queue[None]()
        tls.subscribe(lambda: self._heard.put_nowait(None))

    async def one_of_now(self) -> None:
        """Return after one that has begun since the call."""
        while not self._heard.empty():
            self._heard.get_nowait()
        async with asyncio.timeout(30):
            for _ in range(2):  # the first one may have looked before
                await self._heard.get()


def unreadable(config: TlsConfig) -> None:
    """Put a certificate in place whose key is on a curve that is not known."""
    assert config.certificate
    pem = config.certificate.read_bytes()
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    assert der.count(_P256) == 1
    other = x509.load_der_x509_certificate(der.replace(_P256, _SM2))
    config.certificate.write_bytes(other.public_bytes(serialization.Encoding.PEM))


def renew(config: TlsConfig, folder: Path) -> None:
    """Put the files of another CA in place."""
    renewed = Issuer(folder).config(Role.ROUTER)
    for name in ("certificate", "private_key", "ca"):
        shutil.copyfile(getattr(renewed, name), getattr(config, name))


async def test_an_unreadable_certificate_is_logged_and_the_next_one_is_loaded(
    tmp_path: Path,
) -> None:
    tls = Issuer(tmp_path / "tls").tls(Role.ROUTER)
    checks = Checks(tls)
    before = tls.current
    with capture_logs() as lines:
        async with tls.watched(_POLL_S):
            unreadable(tls.config)
            await checks.one_of_now()
            assert tls.current is before
            assert {it["event"] for it in lines} == {"certificate_not_loaded"}
            renew(tls.config, tmp_path / "new")
            await checks.one_of_now()
            assert tls.current is not before


async def test_a_failure_that_nobody_foresaw_is_logged_and_the_next_one_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = Issuer(tmp_path / "tls").tls(Role.ROUTER)
    checks = Checks(tls)
    before = tls.current

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with capture_logs() as lines:
        async with tls.watched(_POLL_S):
            await checks.one_of_now()
            with monkeypatch.context() as patched:
                patched.setattr(certificates, "identify", broken)
                renew(tls.config, tmp_path / "new")
                await checks.one_of_now()
            assert any(it["event"] == "certificate_not_loaded" for it in lines)
            assert tls.current is before
            renew(tls.config, tmp_path / "newer")
            await checks.one_of_now()
            assert tls.current is not before


async def test_a_listener_that_fails_is_logged_and_no_other_misses_a_check(tmp_path: Path) -> None:
    tls = Issuer(tmp_path).tls(Role.ROUTER)

    def broken() -> None:
        raise RuntimeError("a defect")

    tls.subscribe(broken)
    checks = Checks(tls)
    with capture_logs() as lines:
        async with tls.watched(_POLL_S):
            await checks.one_of_now()
    assert {it["event"] for it in lines} == {"certificate_listener_failed"}
