"""Bounds of what a router has to do with embeddings (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EmbeddingPolicy:
    """Table `[router.embedding]`."""

    max_inputs: int = 65_536
    """Inputs without an answer, over all requests; a request beyond it is refused as OVERLOADED."""
    max_bytes: int = 256 << 20
    """Bytes of them, which are kept to be sent to another replica."""
    part_inputs: int = 64
    """Inputs that are placed together: a larger request is spread over replicas by so many."""
    max_lost_replicas: int = 3
    """An input whose replica was lost so often is not tried again: it may be the cause."""

    def __post_init__(self) -> None:
        for name in ("max_inputs", "max_bytes", "part_inputs", "max_lost_replicas"):
            if getattr(self, name) < 1:
                raise ConfigError(f"embedding.{name} is {getattr(self, name)}: set it above 0.")
