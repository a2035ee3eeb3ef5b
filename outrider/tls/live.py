"""A process's certificates as its files are now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, NoReturn

import structlog

from outrider.errors import ConfigError
from outrider.tls import files, material
from outrider.tls.config import TlsConfig
from outrider.tls.identity import Role, server_name
from outrider.tls.material import Material

POLL_S: Final = 1.0
"""A rotation is noticed after so long, and a certificate that ends."""

_log = structlog.get_logger()


class Tls:
    """Certificates, or that there are none. One per process, and `watched` while it serves."""

    def __init__(
        self,
        config: TlsConfig,
        current: Material | None = None,
        role: Role | None = None,
        region: str = "",
    ) -> None:
        self.config = config
        self.current = current
        """None: plaintext."""
        self._role, self._region = role, region
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
        return cls(config, _read(config, role, region), role, region)

    def server_name(self, role: Role, region: str = "") -> str:
        """The DNS name that a server's certificate must have."""
        return server_name(role, self.config.trust_domain, region)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called each time that the files were looked at."""
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
        """Look at the files every `poll_s` while the context is open. What is wrong with new
        ones is logged, and the old ones stay."""
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

    def replace(self, new: Material) -> None:
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
        seen: files.Stamp = ()
        while True:
            now = await asyncio.to_thread(files.stamp, paths)
            if now != seen:
                seen = now
                await self._reload()
            for listener in self._listeners:
                listener()
            await asyncio.sleep(poll_s)

    async def _reload(self) -> None:
        try:
            new = await asyncio.to_thread(_read, self.config, self._role, self._region)
        except ConfigError as error:
            # Between two writes of one rotation, or a mistake: the next change says.
            _log.warning("certificate_not_loaded", why=str(error))
            return
        if new != self.current:
            self.replace(new)


def _read(config: TlsConfig, role: Role | None, region: str) -> Material:
    found = material.read(config)
    owner = found.identity
    if (role is not None and owner.role is not role) or (region and owner.region != region):
        raise ConfigError(
            f"tls: {config.certificate} is for {owner}: this is {role}{region and f'/{region}'}."
        )
    return found


PLAINTEXT: Final = Tls(TlsConfig())
"""No certificates: the loopback alone."""
