"""The tokenizer worker's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from outrider.bounds import NonNegativeFloat, PositiveFloat, between, check_bounds
from outrider.errors import ConfigError
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.telemetry.config import AdminConfig
from outrider.tls.config import TlsConfig

MAX_THREADS = 63
"""One below the parts that a tokenizer service gives one worker at most."""


@dataclass(frozen=True, slots=True)
class TokenizerWorkerConfig:
    """Settings of a tokenizer worker; section `[tokenizer_worker]`. Raises ConfigError."""

    services: tuple[str, ...] = ("127.0.0.1:7201",)
    """Tokenizer services to work for, at their `worker_port`: `HOST:PORT`, `dns:HOST:PORT` or
    `srv:NAME`. It works for all that are found, at the same time."""
    discovery: DiscoveryPolicy = field(default_factory=DiscoveryPolicy)
    """How the names in `services` are looked up."""
    name: str = ""
    """The name that services log, unique among their workers with the same certificate; empty: host
    name and process id."""
    threads: Annotated[int, between(1, MAX_THREADS)] = 1
    """Threads that tokenize. Each service gives it one part for each, and one more."""
    max_reconnect_s: PositiveFloat = 5.0
    """Longest pause before it connects again to a service that it lost or that refused it."""
    drain_s: NonNegativeFloat = 5.0
    """How long parts that it has may take when it stops; then services give them to others."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Mutual TLS with tokenizer services, in the role tokenizer-worker."""
    admin: AdminConfig = field(default_factory=AdminConfig)
    """Where /metrics, /health and /ready are served."""
    log_level: str = "info"
    """Lowest level that is logged."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.services:
            raise ConfigError("services is empty; name at least one tokenizer's worker_port")
        for service in self.services:
            parse_target(service, "each of services")
        if len(self.name) > 200:
            raise ConfigError("name has more than 200 characters; shorten it")
