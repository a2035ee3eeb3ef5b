"""Settings of a service's certificate, table `[<role>.tls]` (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider import host_names
from outrider.errors import ConfigError

_DOMAIN: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates of one process (docs/guides/certificates.md). Without any it listens only on the
    loopback and calls only processes of this machine."""

    certificate: Path | None = None
    """PEM chain, leaf first, which this process presents as client and as server."""
    private_key: Path | None = None
    """PEM key of `certificate`."""
    ca: Path | None = None
    """PEM certificates that peers' chains must end in; several while one replaces another. Use a CA
    that signs only for this mesh: every certificate of it grants a role."""
    trust_domain: str = "outrider.internal"
    """Ending of the DNS names, and authority of the SPIFFE ids, that count."""
    allow_plaintext: bool = False
    """Whether, without certificates, other machines may connect and be called: everyone who can
    reach a port can then call all of its methods and read the traffic."""

    def __post_init__(self) -> None:
        given = (self.certificate, self.private_key, self.ca)
        if any(given) and not all(given):
            raise ConfigError("tls: certificate, private_key and ca go together; give all or none")
        if _DOMAIN.fullmatch(self.trust_domain) is None or len(self.trust_domain) > 180:
            raise ConfigError(
                f"tls: trust_domain is {self.trust_domain!r}; use a DNS name in lower case"
            )

    @property
    def is_on(self) -> bool:
        """Whether certificates are configured."""
        return self.certificate is not None

    def check_reach(self, host: str, verb: str) -> None:
        """Raises ConfigError if it takes a certificate, which is not there, to `verb` a host."""
        if not (self.is_on or self.allow_plaintext or is_loopback(host)):
            raise ConfigError(
                f"cannot {verb} {host}: without certificates only this machine is allowed; set "
                "certificate, private_key and ca in the table tls (docs/guides/certificates.md), "
                "or tls.allow_plaintext = true where the network itself is encrypted and closed"
            )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine are found at a host, as it is written."""
    return host.startswith("unix:") or host_names.is_loopback(host.strip("[]"))
