"""What is judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """An API that is up."""

    url: str
    """Ends in /v1."""
    key: str
    """Empty: clients without a key are served."""
    model: str
    quic_port: int = 0
    """Where the same API is served over HTTP/3; 0: not known."""
    ca: str = ""
    """File of the certificate that its HTTP/3 clients trust."""

    engine: str = ""
    """Of its replicas; empty: not known."""

    @property
    def told(self) -> str:
        """Model and engine, for a report."""
        return f"{self.model} (engine {self.engine})" if self.engine else self.model

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.url.removesuffix("/v1")
