"""Which definition of which model (pure)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from outrider.models.definitions import EngineDefaults, ModelSpec, as_table


@dataclass(frozen=True, slots=True)
class ModelKey:
    """One definition of a model: another one of the same name is another key."""

    name: str
    digest: str
    """Digest of everything that the edge derives from the definition."""


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """A model of an edge, as it is defined now."""

    spec: ModelSpec
    draft: str
    """Draft model of its replies, as in DrafterConfig.model."""
    draft_spec: ModelSpec | None
    """The definition of `draft`; None: it is no name of a model."""

    @property
    def key(self) -> ModelKey:
        """The key that distinguishes it from other definitions."""
        parts = [_table(self.spec), self.draft, self.draft_spec and _table(self.draft_spec)]
        text = json.dumps(parts, sort_keys=True)
        return ModelKey(self.spec.name, hashlib.sha256(text.encode()).hexdigest()[:32])


def _table(spec: ModelSpec) -> dict[str, object]:
    # How replicas run it is nothing to an edge.
    return as_table(replace(spec, engine=EngineDefaults(), tested=False))
