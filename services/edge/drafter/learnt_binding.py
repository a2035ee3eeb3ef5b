"""The binding of saved statistics to the definition of a model (pure)."""

from __future__ import annotations

from outrider.models.definitions import ModelSpec
from outrider.speculation.learnt import binding_of


def learnt_binding(
    spec: ModelSpec, vocabulary_digest: bytes, weights: str, *, draft: str = ""
) -> bytes:
    """Digest that binds statistics of an edge's chats to their model: those of the edge, or those
    of its drafter with this `draft`.

    Two definitions have separate statistics even if their weights are the same: both may be loaded
    at a time, and each would overwrite the other's. A changed definition finds its statistics
    again.
    """
    process = b"drafter" if draft else b"edge"
    parts = (spec.name.encode(), vocabulary_digest, weights.encode(), draft.encode())
    return binding_of(process, *parts)
