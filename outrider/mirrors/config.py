"""Where a service finds models by digest: a table of its settings (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError

MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """Mirrors of models (docs/guides/mirrors.md): table `mirrors`."""

    sources: tuple[str, ...] = ()
    """Asked in this order for models whose definition has a digest, before their own source:
    peer://HOST:PORT, https://HOST/PATH, s3://BUCKET/PREFIX, file:PATH. Empty: none."""
    max_mb_s: float = 0.0
    """So many megabytes (of 1,000,000 bytes) a second at most, of all connections together; 0: as
    fast as it comes."""
    connections: int = 4
    """Shards fetched at once."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_mb_s < float("inf"):
            raise ConfigError(f"mirrors.max_mb_s is {self.max_mb_s}: set it to 0 or above")
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise ConfigError(
                f"mirrors.connections is {self.connections}: use 1 to {MAX_CONNECTIONS}"
            )
