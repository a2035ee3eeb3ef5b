"""A process's certificate, key and CA bundle: read, checked, and read again when files change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from outrider.errors import ConfigError, UnauthenticatedError
from outrider.tls.config import TlsConfig
from outrider.tls.identity import PeerIdentity, Role, identify, server_name

_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CertificateBundle:
    """Certificate chain, key and CA bundle of one process."""

    certificate: bytes
    """PEM chain, leaf first."""
    private_key: bytes
    """PEM."""
    ca: bytes
    """PEM."""
    identity: PeerIdentity
    expires_at: datetime
    """When the leaf ends."""
    ca_expires_at: datetime
    """When the first certificate of the CA bundle ends."""


def read_certificates(config: TlsConfig) -> CertificateBundle:
    """Read and check the files. Raises ConfigError: unreadable, no PEM, a key of another
    certificate (as when one of two files is replaced already), no role of the trust domain."""
    assert config.certificate and config.private_key and config.ca, "TlsConfig has all or none"
    chain, key, ca = map(_bytes, (config.certificate, config.private_key, config.ca))
    try:
        leaf, *_ = x509.load_pem_x509_certificates(chain)
        is_pair = leaf.public_key() == _public_key(key)
        ca_ends_at = min(it.not_valid_after_utc for it in x509.load_pem_x509_certificates(ca))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"tls: {config.certificate} and its key and CA: {error}") from error
    if not is_pair:
        raise ConfigError(f"tls: {config.private_key} is not the key of {config.certificate}")
    try:
        owner = identify(*subject_alternative_names(leaf), config.trust_domain)
    except UnauthenticatedError as error:
        raise ConfigError(f"tls: {config.certificate}: {error}") from error
    return CertificateBundle(chain, key, ca, owner, leaf.not_valid_after_utc, ca_ends_at)


def subject_alternative_names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
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
        raise ConfigError(f"tls: {path} is larger than {_MAX_FILE_BYTES} bytes")
    return data


def _public_key(key: bytes) -> object:
    return serialization.load_pem_private_key(key, None).public_key()


Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp(paths: Sequence[Path]) -> Stamp:
    """A value that changes when one of the files does, including links on the way to it, since
    Kubernetes replaces the files of a secret: device-independent inode, length, time of the last
    write in ns; None for a missing file."""
    return tuple(_one(path) for path in paths)


def _one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


POLL_S: Final = 1.0
"""A rotation is noticed after so long, and a certificate that ends."""

_log = structlog.get_logger()


class Tls:
    """The certificates of a process, or their absence. One per process, and `watched` while it
    serves."""

    def __init__(
        self,
        config: TlsConfig,
        current: CertificateBundle | None = None,
        role: Role | None = None,
        region: str = "",
    ) -> None:
        self.config = config
        self.current = current
        """None: plaintext."""
        self._role = role
        self._region = region
        self.generation = 0
        """Counts the changes of anything."""
        self.ca_generation = 0
        """Counts the changes of the CA bundle."""
        self._ca_changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def open(cls, config: TlsConfig, role: Role | None = None, region: str = "") -> Tls:
        """Read the files, if any; blocks. Raises ConfigError, also for a certificate that is not
        for `role`, or not for `region`, where they are given."""
        if not config.is_on:
            return cls(config)
        return cls(config, _read_own(config, role, region), role, region)

    def server_name(self, role: Role, region: str = "") -> str:
        """The DNS name that a server's certificate must have."""
        return server_name(role, self.config.trust_domain, region)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each check of the files."""
        self._listeners.append(listener)

    async def ca_changes(self, since: int) -> int:
        """Return `ca_generation` once it is above `since`; without certificates never."""
        if self.current is None:
            await asyncio.Event().wait()
        while self.ca_generation <= since:
            await self._ca_changed.wait()
        return self.ca_generation

    @asynccontextmanager
    async def watched(self, poll_s: float = POLL_S) -> AsyncIterator[None]:
        """Check the files every `poll_s` while the context is open. If new ones are invalid, that
        is logged and the old ones stay. A listener that raises is logged and called again."""
        if self.current is None:
            yield
            return
        watching = asyncio.create_task(self._watch(poll_s))
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    def replace(self, new: CertificateBundle) -> None:
        """Use other certificates from now on."""
        before, self.current = self.current, new
        self.generation += 1
        _log.info("certificate_loaded", owner=str(new.identity), expires=str(new.expires_at))
        if before is None or before.ca != new.ca:
            self.ca_generation += 1
            self._ca_changed.set()
            self._ca_changed = asyncio.Event()

    async def _watch(self, poll_s: float) -> NoReturn:
        config = self.config
        paths = [path for path in (config.certificate, config.private_key, config.ca) if path]
        seen: Stamp = ()
        while True:
            now = await asyncio.to_thread(stamp, paths)
            if now != seen:
                seen = now
                try:
                    await self._reload()
                except Exception:
                    # Whatever is wrong with these files, later ones are read.
                    _log.exception("certificate_not_loaded")
            for listener in self._listeners:
                try:
                    listener()
                except Exception:
                    _log.exception("certificate_listener_failed")
            await asyncio.sleep(poll_s)

    async def _reload(self) -> None:
        try:
            new = await asyncio.to_thread(_read_own, self.config, self._role, self._region)
        except ConfigError as error:
            # Between two writes of one rotation, or a mistake: the next change says.
            _log.warning("certificate_not_loaded", why=str(error))
            return
        if new != self.current:
            self.replace(new)


def _read_own(config: TlsConfig, role: Role | None, region: str) -> CertificateBundle:
    found = read_certificates(config)
    owner = found.identity
    if (role is not None and owner.role is not role) or (region and owner.region != region):
        raise ConfigError(
            f"tls: {config.certificate} is for {owner}; this is {role}{region and f'/{region}'}"
        )
    return found


PLAINTEXT: Final = Tls(TlsConfig())
"""No certificates: only the loopback."""
