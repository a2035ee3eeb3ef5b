"""Settings of a service for fetching models by digest (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import NonNegativeFloat, between

MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """Mirrors of models (docs/guides/mirrors.md): table `mirrors`."""

    sources: tuple[str, ...] = ()
    """Mirrors asked in this order for models whose definition has a digest, before their own
    source: peer://HOST:PORT, https://HOST/PATH, s3://BUCKET/PREFIX, file:PATH. Empty: none."""
    max_mb_s: NonNegativeFloat = 0.0
    """Most megabytes (of 1,000,000 bytes) a second, of all connections together; 0: no cap."""
    connections: Annotated[int, between(1, MAX_CONNECTIONS)] = 4
    """Shards fetched at once."""
