"""Settings of a service's admin port (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import Port


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """Address of a service's admin port: table `[<role>.admin]` of its settings."""

    host: str = "127.0.0.1"
    """Address of the listener for /metrics, /health, /ready, /version and /config."""
    port: Port = 0
    """Its TCP port; 0: any free one."""
