"""Bounds of a router's work on embeddings (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import PositiveInt


@dataclass(frozen=True, slots=True)
class EmbeddingPolicy:
    """Table `[router.embedding]`."""

    max_inputs: PositiveInt = 65_536
    """Inputs without an answer, over all requests; a request beyond it is refused as OVERLOADED."""
    max_bytes: PositiveInt = 256 << 20
    """Bytes of them, which are kept to be sent to another replica."""
    part_inputs: PositiveInt = 64
    """Inputs that are placed together: a larger request is spread over replicas by so many."""
    max_lost_replicas: PositiveInt = 3
    """An input that has lost this many replicas is not tried again: it may be the cause."""
