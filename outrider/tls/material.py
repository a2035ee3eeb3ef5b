"""A process's certificate, key and CA bundle, read from files and checked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from outrider.errors import ConfigError, UnauthenticatedError
from outrider.tls.config import TlsConfig
from outrider.tls.identity import PeerIdentity, identify

_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Material:
    """What one process proves itself with, and judges others by."""

    certificate: bytes
    """PEM chain, leaf first."""
    private_key: bytes
    """PEM."""
    ca: bytes
    """PEM."""
    identity: PeerIdentity
    expires_at: datetime
    """When the leaf ends."""


def read(config: TlsConfig) -> Material:
    """Read and check the files. Raises ConfigError: unreadable, no PEM, a key of another
    certificate (as when one of two files is replaced already), no role of the trust domain."""
    assert config.certificate and config.private_key and config.ca, "TlsConfig has all or none"
    chain, key, ca = map(_bytes, (config.certificate, config.private_key, config.ca))
    try:
        (leaf, *_), public_key = x509.load_pem_x509_certificates(chain), _public_key(key)
        x509.load_pem_x509_certificates(ca)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"tls: {config.certificate} and its key and CA: {error}") from error
    if leaf.public_key() != public_key:
        raise ConfigError(f"tls: {config.private_key} is not the key of {config.certificate}.")
    try:
        owner = identify(*names_of(leaf), config.trust_domain)
    except UnauthenticatedError as error:
        raise ConfigError(f"tls: {config.certificate}: {error}") from error
    return Material(chain, key, ca, owner, leaf.not_valid_after_utc)


def names_of(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    """The URIs and DNS names among its subject alternative names."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return [], []
    names = extension.value
    return (
        names.get_values_for_type(x509.UniformResourceIdentifier),
        names.get_values_for_type(x509.DNSName),
    )


def utc_now() -> datetime:
    """The time certificates are judged by."""
    return datetime.now(UTC)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"tls: cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"tls: {path} is larger than {_MAX_FILE_BYTES} bytes.")
    return data


def _public_key(key: bytes) -> object:
    return serialization.load_pem_private_key(key, None).public_key()
