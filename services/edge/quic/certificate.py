"""The listener's certificate: a configured one, or one for development made on first start. It is
reloaded when its files change.

Browsers take a certificate that no authority signed by its hash (WebTransport,
`serverCertificateHashes`), if it has an ECDSA key on P-256 and is valid for at most 14 days. The
development certificate is made so. Its successor is made days before it is used, and its
predecessor is remembered: a page knows the hash of whichever certificate an edge shows it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from outrider.durable_files import write_atomic
from outrider.errors import ConfigError
from outrider.models.disk.files import exclusive
from outrider.tls.certificates import stamp

POLL_S: Final = 2.0
"""How often the files are checked for changes."""
VALIDITY: Final = timedelta(days=13)
MAX_PINNED_VALIDITY: Final = timedelta(days=14)
"""Longest validity of a certificate that browsers take by its hash."""
RENEW_BEFORE: Final = timedelta(days=1)
PREPARE_BEFORE: Final = timedelta(days=3)
"""How long before its end a certificate has a successor, whose hash is told from then on."""
CERTIFICATE_FILE: Final = "cert.pem"
KEY_FILE: Final = "key.pem"
_NEXT_CERTIFICATE_FILE: Final = "next-cert.pem"
_NEXT_KEY_FILE: Final = "next-key.pem"
_PREVIOUS_CERTIFICATE_FILE: Final = "previous-cert.pem"
_BESIDE: Final = (_NEXT_CERTIFICATE_FILE, _PREVIOUS_CERTIFICATE_FILE)
_LOCK_FILE: Final = "lock"
DEFAULT_NAMES: Final = ("localhost", "127.0.0.1", "::1")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PinnedCertificate:
    """A certificate that browsers take by its hash."""

    sha256: bytes
    """Of its DER form."""
    not_after: datetime
    """When it expires."""


def ensure(folder: Path, names: Iterable[str], now: datetime) -> tuple[Path, Path]:
    """Certificate and key in `folder`, made anew if they are missing, expire within RENEW_BEFORE or
    lack one of `names`; their successors are made PREPARE_BEFORE their end. The certificate is
    self-signed: clients need its file, or its hash, to trust it."""
    certificate_path, key_path = folder / CERTIFICATE_FILE, folder / KEY_FILE
    next_paths = folder / _NEXT_CERTIFICATE_FILE, folder / _NEXT_KEY_FILE
    wanted = tuple(dict.fromkeys((*DEFAULT_NAMES, *names)))
    if _is_good(certificate_path, key_path, wanted, now + PREPARE_BEFORE - RENEW_BEFORE):
        return certificate_path, key_path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive(folder / _LOCK_FILE):  # several processes of an edge have one folder
        has_next = _is_good(*next_paths, wanted, now) and not _same(next_paths[0], certificate_path)
        if not _is_good(certificate_path, key_path, wanted, now):
            if certificate_path.exists():
                previous = folder / _PREVIOUS_CERTIFICATE_FILE
                write_atomic(previous, certificate_path.read_bytes(), mode=0o644)
            if has_next:
                write_atomic(key_path, next_paths[1].read_bytes(), mode=0o600)
                write_atomic(certificate_path, next_paths[0].read_bytes(), mode=0o644)
            else:
                _make(certificate_path, key_path, wanted, now)
        elif not has_next and not _is_good(
            certificate_path, key_path, wanted, now + PREPARE_BEFORE - RENEW_BEFORE
        ):
            _make(*next_paths, wanted, now)
    return certificate_path, key_path


def pinned(certificate: Path, now: datetime) -> tuple[PinnedCertificate, ...]:
    """The certificates by whose hashes a browser may take an edge that has this one: it, its
    successor, and its predecessor until it expires. Empty if it is none that browsers take so."""
    current = _read_pinned(certificate)
    if current is None:
        return ()
    folder = certificate.parent
    beside = (_read_pinned(folder / name) for name in _BESIDE)
    others = {it for it in beside if it is not None and it.not_after > now}
    return current, *sorted(others - {current}, key=lambda it: it.not_after, reverse=True)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _read_pinned(path: Path) -> PinnedCertificate | None:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = certificate.public_key()
    except (OSError, ValueError, UnsupportedAlgorithm):
        return None
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    is_taken = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if not is_taken or lifetime > MAX_PINNED_VALIDITY:
        return None
    digest = certificate.fingerprint(hashes.SHA256())
    return PinnedCertificate(digest, certificate.not_valid_after_utc)


def _make(certificate: Path, key: Path, names: tuple[str, ...], now: datetime) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    write_atomic(key, _key_pem(private), mode=0o600)
    write_atomic(certificate, _certificate_pem(private, names, now), mode=0o644)


def _is_good(path: Path, key_path: Path, names: tuple[str, ...], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    # An edge that was killed between writing the two files leaves one of an earlier pair.
    if key.public_key() != certificate.public_key():
        return False
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE:
        return False
    return set(_general_names(names)) <= set(extension.value)


def _certificate_pem(
    key: ec.EllipticCurvePrivateKey, names: tuple[str, ...], now: datetime
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Outrider development edge")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Earlier than now, since clocks differ; the end moves too, so the total stays VALIDITY.
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now - timedelta(minutes=5) + VALIDITY)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in names]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


async def follow(
    locate: Callable[[], tuple[Path, Path]],
    used: tuple[Path, Path],
    renew: Callable[[Path, Path], Awaitable[None]],
    poll_s: float = POLL_S,
) -> NoReturn:
    """Call `renew` with certificate and key whenever their files have changed since the `used`
    ones. `locate` returns their paths, and may make new ones. Files that `renew` refuses with
    ConfigError are logged, and tried again when they change."""
    seen = await asyncio.to_thread(stamp, used)
    while True:
        await asyncio.sleep(poll_s)
        paths = await asyncio.to_thread(locate)
        if (now := await asyncio.to_thread(stamp, paths)) == seen:
            continue
        seen = now
        try:
            await renew(*paths)
        except ConfigError as error:
            _log.warning("certificate_not_loaded", why=str(error))
        else:
            _log.info("certificate_loaded", certificate=str(paths[0]))


def utc_now() -> datetime:
    """The time by which certificates expire."""
    return datetime.now(UTC)
