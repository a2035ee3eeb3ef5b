"""What binds to a model's definition what is kept of its chats (pure)."""

from __future__ import annotations

from outrider.models.definitions import ModelSpec
from outrider.speculation.learnt import binding_of


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
