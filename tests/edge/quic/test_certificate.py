"""The development certificate: made once, kept, renewed, and never readable by others."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

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
    assert sorted(p.name for p in chain.parent.iterdir()) == ["cert.pem", "key.pem"]


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
