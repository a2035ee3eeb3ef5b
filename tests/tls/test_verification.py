"""Chains against a bundle, as it is asked while streams run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from outrider.errors import UnauthenticatedError
from outrider.tls.development import DevelopmentCa
from outrider.tls.identity import PeerIdentity, Role
from outrider.tls.verification import verify

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
EDGE = PeerIdentity(Role.EDGE, "us")


def test_a_chain_is_good_until_it_ends() -> None:
    ca = DevelopmentCa(NOW)
    issued = ca.issue(EDGE, NOW, DAY)
    assert verify(ca.pem, issued.certificate, b"", NOW) == NOW + DAY
    with pytest.raises(UnauthenticatedError):
        verify(ca.pem, issued.certificate, b"", NOW + DAY + timedelta(seconds=1))
    with pytest.raises(UnauthenticatedError):
        verify(ca.pem, issued.certificate, b"", NOW - DAY)


def test_it_is_good_while_its_ca_is_in_the_bundle() -> None:
    old, new = DevelopmentCa(NOW), DevelopmentCa(NOW)
    issued = old.issue(EDGE, NOW)
    verify(old.pem + new.pem, issued.certificate, b"", NOW)
    with pytest.raises(UnauthenticatedError):
        verify(new.pem, issued.certificate, b"", NOW)


@pytest.mark.parametrize("is_ca", [True, False])
def test_what_signs_on_the_way_is_a_ca(is_ca: bool) -> None:
    root = _Signer("root", None, is_ca=True)
    between = _Signer("between", root, is_ca=is_ca)
    leaf = _Signer("leaf", between, is_ca=False)
    if is_ca:
        assert verify(root.pem, leaf.pem, between.pem, NOW) == NOW + DAY
        with pytest.raises(UnauthenticatedError):
            verify(root.pem, leaf.pem, b"", NOW)
    else:
        with pytest.raises(UnauthenticatedError):
            verify(root.pem, leaf.pem, between.pem, NOW)


def test_what_is_no_certificate() -> None:
    ca = DevelopmentCa(NOW)
    for leaf, chain in ((b"x", b""), (ca.issue(EDGE, NOW).certificate, b"x")):
        with pytest.raises(UnauthenticatedError):
            verify(ca.pem, leaf, chain, NOW)


class _Signer:
    """Plain certificates, such as `openssl req -x509` makes: no key usage, no key identifiers."""

    def __init__(self, name: str, issuer: _Signer | None, *, is_ca: bool) -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        signer = issuer or self
        names = x509.SubjectAlternativeName([x509.DNSName("edge.outrider.internal")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(signer.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(signer.key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
