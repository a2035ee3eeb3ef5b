"""Certificates of a mesh on this machine, from a CA that lives as long as it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outrider.tls.certificates import utc_now
from outrider.tls.config import TlsConfig
from outrider.tls.development import DevelopmentCa, remove, settings, write
from outrider.tls.identity import PeerIdentity, Role

OPERATOR: Final = "operator"
_FOLDER: Final = "mesh-tls"


class Certificates:
    """Certificates that the supervisor issues. The CA's key is only in its memory: a user who reads
    the folder has the roles of the mesh but cannot make new ones."""

    def __init__(self, state_dir: Path) -> None:
        """Removes the certificates of an earlier mesh."""
        self._folder = state_dir / _FOLDER
        remove(self._folder)
        self._ca = DevelopmentCa(utc_now())
        self.issue(Role.OPERATOR, name=OPERATOR)

    def issue(self, role: Role, region: str = "", *, name: str) -> TlsConfig:
        """A certificate for the process `name`; where it is."""
        owner = PeerIdentity(role, region, name if region else "")
        return write(self._folder, name, self._ca.issue(owner, utc_now()), self._ca.pem)


def of_process(state_dir: Path, name: str) -> TlsConfig:
    """Certificate paths of a process of the mesh in `state_dir`, or of the operator; empty settings
    if the mesh has no certificates."""
    found = settings(state_dir / _FOLDER, name)
    return found if found.ca is not None and found.ca.exists() else TlsConfig()


def forget(state_dir: Path) -> None:
    """The mesh has no certificates."""
    remove(state_dir / _FOLDER)
