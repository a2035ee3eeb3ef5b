"""A CA for one machine: `outrider up`, tests and benchmarks. Its key is never written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outrider.durable_files import write_atomic
from outrider.tls.config import TlsConfig
from outrider.tls.identity import PeerIdentity, dns_names, spiffe_id

VALIDITY: Final = timedelta(days=90)
_CLOCKS_DIFFER: Final = timedelta(minutes=5)
CA_FILE: Final = "ca.pem"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    private_key: bytes


class DevelopmentCa:
    """Signs certificates while it lives."""

    def __init__(
        self,
        now: datetime,
        *,
        trust_domain: str = TlsConfig().trust_domain,
        validity: timedelta = VALIDITY,
    ) -> None:
        self.trust_domain = trust_domain
        self._not_after = now + validity
        self._key = ec.generate_private_key(ec.SECP256R1())
        # Two CAs of one name would be told apart by their keys alone.
        name = f"Outrider development CA {x509.random_serial_number():x}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        public = self._key.public_key()
        builder = _builder(self._name, self._name, public, now, self._not_after)
        self._certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_CA_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The CA's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, identity: PeerIdentity, now: datetime, validity: timedelta | None = None
    ) -> Issued:
        """A certificate with all names of `identity`, to serve and to call with."""
        key = ec.generate_private_key(ec.SECP256R1())
        not_after = self._not_after if validity is None else now + validity
        names = [
            x509.UniformResourceIdentifier(spiffe_id(identity, self.trust_domain)),
            *map(x509.DNSName, dns_names(identity, self.trust_domain)),
        ]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(x509.Name([]), self._name, key.public_key(), now, not_after)
            # Critical because the subject is empty (RFC 5280, 4.2.1.6).
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def write(folder: Path, name: str, issued: Issued, ca: bytes) -> TlsConfig:
    """Write `issued` for the process `name` beside the CA's certificate `ca`: certificates last, so
    that a process that sees one has its key. Returns the settings that find them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    config = settings(folder, name)
    assert config.certificate and config.private_key and config.ca, "just set"
    for path, data in (
        (config.ca, ca),
        (config.private_key, issued.private_key),
        (config.certificate, issued.certificate),
    ):
        write_atomic(path, data)
    return config


def settings(folder: Path, name: str) -> TlsConfig:
    """Paths of the files that `write` makes for the process `name`."""
    return TlsConfig(folder / f"{name}.pem", folder / f"{name}-key.pem", folder / CA_FILE)


def remove(folder: Path) -> None:
    """Remove the files of an earlier CA."""
    shutil.rmtree(folder, ignore_errors=True)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public_key,
        serial_number=x509.random_serial_number(),
        not_valid_before=min(now, not_after) - _CLOCKS_DIFFER,
        not_valid_after=not_after,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


_CA_USAGE: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
