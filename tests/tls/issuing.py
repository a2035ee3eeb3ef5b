"""Certificates for tests, from a CA of their own."""

from __future__ import annotations

from pathlib import Path

from outrider.tls import PeerIdentity, Role, Tls, TlsConfig
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write


class Issuer:
    """One CA, and the files of those that it issues to."""

    def __init__(self, folder: Path, ca: DevelopmentCa | None = None) -> None:
        self.folder = folder
        self.ca = ca or DevelopmentCa(utc_now())

    def config(self, role: Role, region: str = "", name: str = "") -> TlsConfig:
        """Settings of a process with a certificate of that role."""
        owner = PeerIdentity(role, region, name)
        issued = self.ca.issue(owner, utc_now())
        file = str(owner).replace("/", "-")
        return write(self.folder, file, issued, self.ca.pem)

    def tls(self, role: Role, region: str = "", name: str = "") -> Tls:
        """The same, read."""
        return Tls.open(self.config(role, region, name))
