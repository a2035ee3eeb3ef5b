"""Counts of a router's requests for vectors between two exports (pure)."""

from __future__ import annotations

from collections import Counter


class EmbeddingStats:
    """Counts by model. Names are those that replicas have reported."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By model and outcome: done, error."""
        self.inputs: Counter[tuple[str, str]] = Counter()
        """By model and outcome: vector, error."""
        self.tokens: Counter[tuple[str]] = Counter()
        """Tokens of inputs that have vectors, by model."""
        self.moves: Counter[tuple[str]] = Counter()
        """Inputs that were sent again, as the replica that had them was lost."""
        self.shortages: Counter[tuple[str]] = Counter()
        """Parts of requests for which no replica was available, by model."""

    def take(self) -> EmbeddingStats:
        """Return the counts since the last call, and start anew."""
        taken = EmbeddingStats()
        for name in ("requests", "inputs", "tokens", "moves", "shortages"):
            setattr(taken, name, getattr(self, name))
            setattr(self, name, Counter())
        return taken

    def ended(self, model: str, *, is_done: bool) -> None:
        """A request is over; `is_done`: every input has its answer."""
        self.requests[model, "done" if is_done else "error"] += 1

    def answered(self, model: str, num_inputs: int, num_tokens: int) -> None:
        """Inputs have their vectors."""
        self.inputs[model, "vector"] += num_inputs
        self.tokens[(model,)] += num_tokens

    def failed(self, model: str, num_inputs: int) -> None:
        """Inputs have none."""
        self.inputs[model, "error"] += num_inputs

    def moved(self, model: str, num_inputs: int) -> None:
        """Inputs go to another replica."""
        self.moves[(model,)] += num_inputs

    def short(self, model: str) -> None:
        """Count a part for which no replica is available."""
        self.shortages[(model,)] += 1
