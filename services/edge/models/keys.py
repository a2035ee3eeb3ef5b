"""Identifies a model's definition, and binds kept statistics to it (pure)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from outrider.models.definitions import EngineDefaults, ModelSpec, as_table
from outrider.speculation.learnt import binding_of


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


def learnt_binding(
    spec: ModelSpec, vocabulary_digest: bytes, weights: str, *, draft: str = ""
) -> bytes:
    """The binding of kept statistics to a model: for its edge, or for its drafter with this
    `draft`. Two definitions have copies of their own even if their weights are equal: both are
    loaded at a time, and each would overwrite the other's. A changed definition finds its copies
    again."""
    process = b"drafter" if draft else b"edge"
    parts = (spec.name.encode(), vocabulary_digest, weights.encode(), draft.encode())
    return binding_of(process, *parts)


def _table(spec: ModelSpec) -> dict[str, object]:
    # How replicas run it is nothing to an edge.
    return as_table(replace(spec, engine=EngineDefaults(), tested=False))
