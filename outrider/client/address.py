"""Where an edge is, and how its certificate is verified."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Address of an edge, and how to verify its certificate."""

    host: str
    port: int
    """UDP port of QUIC."""
    ca: Path | None = None
    """PEM file of the certificates to trust; None: the usual authorities."""
    insecure: bool = False
    """Accept any certificate."""
    server_name: str | None = None
    """The name in the certificate, if it is not `host`."""
    http_port: int | None = None
    """TCP port of HTTP, if it is not the same number."""

    def __str__(self) -> str:
        return f"quic://{self.host}:{self.port}"

    @property
    def tcp_port(self) -> int:
        """Where the edge is tried over TCP."""
        return self.port if self.http_port is None else self.http_port

    def check_ca(self) -> None:
        """Raises ConfigError if `ca` cannot be read."""
        if self.ca is None:
            return
        if not self.ca.is_file():
            raise ConfigError(f"there is no certificate file {self.ca}; start the edge first?")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=self.ca)
        except OSError as error:
            raise ConfigError(f"{self.ca} holds no certificate in PEM to trust: {error}") from error
