"""How a contender is set up where it leaves a choice that matters."""

from __future__ import annotations

from dataclasses import asdict, dataclass

WHOLE_TOKENS = 2048
"""A chunk that holds every prompt here whole."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What bench.contenders.tuning chooses for a peer."""

    threads: int = 1
    chunk_tokens: int = 256
    """Tokens that one step computes at most, of all sequences together. Smaller chunks of a long
    prompt let the others' tokens come sooner, larger ones have it read sooner."""

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.threads} thread{plural}, chunks of {self.chunk_tokens}"

    def to_json(self) -> dict[str, int]:
        """As a record keeps it."""
        return asdict(self)
