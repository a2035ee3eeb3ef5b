"""The development certificate: made once, kept, renewed, and never readable by others."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from services.edge.quic import certificate

NOW = datetime(2027, 3, 1, tzinfo=UTC)


def made(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_what_is_made(tmp_path: Path) -> None:
    chain, key = certificate.ensure(tmp_path / "tls", ("edge.example", "10.0.0.7"), NOW)
    cert = made(chain)
    assert cert.not_valid_after_utc - cert.not_valid_before_utc == timedelta(days=13)
    assert cert.not_valid_before_utc <= NOW
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "edge.example"}
    addresses = {str(a) for a in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "::1", "10.0.0.7"}
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP256R1)
    assert private.public_key() == cert.public_key()
    assert sorted(p.name for p in chain.parent.iterdir()) == ["cert.pem", "key.pem", "lock"]


@pytest.mark.parametrize("days", [0, 5, 11])
def test_a_good_certificate_is_kept(tmp_path: Path, days: int) -> None:
    chain, key = certificate.ensure(tmp_path, (), NOW)
    before = chain.read_bytes(), key.read_bytes()
    certificate.ensure(tmp_path, ("localhost",), NOW + timedelta(days=days))
    assert (chain.read_bytes(), key.read_bytes()) == before


@pytest.mark.parametrize("days", [12, 13, 400])
def test_an_expiring_certificate_is_renewed(tmp_path: Path, days: int) -> None:
    chain, _ = certificate.ensure(tmp_path, (), NOW)
    before = made(chain)
    later = NOW + timedelta(days=days)
    certificate.ensure(tmp_path, (), later)
    assert made(chain).serial_number != before.serial_number
    assert made(chain).not_valid_before_utc <= later < made(chain).not_valid_after_utc


def test_a_new_name_and_a_damaged_file_are_reasons_to_make_it_anew(tmp_path: Path) -> None:
    chain, key = certificate.ensure(tmp_path, (), NOW)
    first = made(chain)
    certificate.ensure(tmp_path, ("edge.example",), NOW)
    second = made(chain)
    assert second.serial_number != first.serial_number
    chain.write_text("damaged")
    certificate.ensure(tmp_path, (), NOW)
    assert made(chain).serial_number != second.serial_number
    key.write_bytes(certificate.ensure(tmp_path / "other", (), NOW)[1].read_bytes())
    certificate.ensure(tmp_path, (), NOW)  # another's key: as after a crash between the two files
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert private.public_key() == made(chain).public_key()
    key.unlink()
    certificate.ensure(tmp_path, (), NOW)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_page_knows_the_hash_of_a_certificate_before_it_is_used_and_after(tmp_path: Path) -> None:
    chain, _ = certificate.ensure(tmp_path, (), NOW)
    first = made(chain).fingerprint(SHA256())
    assert [it.sha256 for it in certificate.pinned(chain, NOW)] == [first]
    prepared_at = NOW + timedelta(days=10, minutes=1)
    certificate.ensure(tmp_path, (), prepared_at)
    assert made(chain).fingerprint(SHA256()) == first, "it is still in use"
    current, following = certificate.pinned(chain, prepared_at)
    assert current.sha256 == first and following.not_after > current.not_after
    certificate.ensure(tmp_path, (), prepared_at + timedelta(days=1))
    assert certificate.pinned(chain, prepared_at) == (current, following), "one successor is enough"
    used_at = NOW + timedelta(days=12)
    certificate.ensure(tmp_path, (), used_at)
    assert made(chain).fingerprint(SHA256()) == following.sha256
    assert certificate.pinned(chain, used_at) == (following, current)
    assert certificate.pinned(chain, used_at + timedelta(days=1)) == (following,)
    next_prepared_at = used_at + timedelta(days=9)
    certificate.ensure(tmp_path, (), next_prepared_at)
    told = certificate.pinned(chain, next_prepared_at)
    assert told[0] == following and len(told) == 2, "a successor of the successor"


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_whoever_asks_once_in_two_days_knows_the_certificate_in_use(
    steps: list[int],
) -> None:
    with TemporaryDirectory() as folder:
        now = NOW
        chain, _ = certificate.ensure(Path(folder), (), now)
        known = {it.sha256 for it in certificate.pinned(chain, now)}
        for hours in steps:
            for _ in range(hours):  # an edge looks every 2 s
                now += timedelta(hours=1)
                certificate.ensure(Path(folder), (), now)
            if hours <= 47:
                assert made(chain).fingerprint(SHA256()) in known
            known = {it.sha256 for it in certificate.pinned(chain, now)}
            assert made(chain).not_valid_before_utc <= now < made(chain).not_valid_after_utc


def test_only_certificates_that_browsers_take_by_hash_are_told(tmp_path: Path) -> None:
    assert certificate.pinned(tmp_path / "none.pem", NOW) == ()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edge")])
    for key, days in ((rsa.generate_private_key(65537, 2048), 10), (_p256(), 15), (_p384(), 10)):
        made_now = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(NOW)
            .not_valid_after(NOW + timedelta(days=days))
            .sign(key, SHA256())
        )
        path = tmp_path / "cert.pem"
        path.write_bytes(made_now.public_bytes(serialization.Encoding.PEM))
        assert certificate.pinned(path, NOW) == ()


def _p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _p384() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())
