"""Which definition of which model, and what binds to it what is kept of its chats (pure)."""

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
    """Of all that an edge makes of the definition."""


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """A model of an edge, as it is defined now."""

    spec: ModelSpec
    draft: str
    """What its replies are drafted with, as in DrafterConfig.model."""
    draft_spec: ModelSpec | None
    """The definition of `draft`; None: it is no name of a model."""

    @property
    def key(self) -> ModelKey:
        """What tells it from other definitions."""
        parts = [_table(self.spec), self.draft, self.draft_spec and _table(self.draft_spec)]
        text = json.dumps(parts, sort_keys=True)
        return ModelKey(self.spec.name, hashlib.sha256(text.encode()).hexdigest()[:32])


def learnt_binding(
    spec: ModelSpec, vocabulary_digest: bytes, weights: str, *, draft: str = ""
) -> bytes:
    """What binds copies of what an edge's chats taught to their model: of its edge, or of its
    drafter with this `draft`. Two definitions have copies of their own also where their weights are
    the same: both are loaded at a time, and each would overwrite what the other had learnt. A
    definition that is changed finds its copies again."""
    process = b"drafter" if draft else b"edge"
    parts = (spec.name.encode(), vocabulary_digest, weights.encode(), draft.encode())
    return binding_of(process, *parts)


def _table(spec: ModelSpec) -> dict[str, object]:
    # How replicas run it is nothing to an edge.
    return as_table(replace(spec, engine=EngineDefaults(), tested=False))
