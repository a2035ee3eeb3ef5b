"""Where a service finds models by digest: a table of its settings (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import NonNegativeFloat, between

MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """Mirrors of models (docs/guides/mirrors.md): table `mirrors`."""

    sources: tuple[str, ...] = ()
    """Asked in this order for models whose definition has a digest, before their own source:
    peer://HOST:PORT, https://HOST/PATH, s3://BUCKET/PREFIX, file:PATH. Empty: none."""
    max_mb_s: NonNegativeFloat = 0.0
    """So many megabytes (of 1,000,000 bytes) a second at most, of all connections together; 0: as
    fast as it comes."""
    connections: Annotated[int, between(1, MAX_CONNECTIONS)] = 4
    """Shards fetched at once."""
