"""The models that make vectors. An edge loads nothing of them: replicas tokenize (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.models.definitions import ModelSpec


class Embedders:
    """Embedding models of one edge. The configuration may change them while it runs."""

    def __init__(self, specs: Sequence[ModelSpec]) -> None:
        """The first is the default of requests that name none."""
        self._specs = {spec.name: spec for spec in specs}

    @property
    def names(self) -> Iterable[str]:
        """In order."""
        return self._specs.keys()

    def __getitem__(self, name: str) -> ModelSpec:
        return self._specs[name]

    def set(self, specs: Sequence[ModelSpec]) -> None:
        """Replace the served models."""
        self._specs = {spec.name: spec for spec in specs}
