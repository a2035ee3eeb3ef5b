"""How the prompt tokens of a call are shared out."""

from __future__ import annotations

from collections.abc import Sequence

from services.inference.scheduler.session import Session

LEAST_CHUNK = 12
"""A prefill moves at least this much per call, whatever the call already costs."""
_OVERTAKING_SHARE = 2
"""One part in so many of a call's prompt tokens is for prompts far shorter than the first."""
_FAR_SHORTER = 4
"""Times that the first lacks as much."""


def chunk_tokens(num_missing: int, budget: int, min_rows: int) -> int:
    """Tokens of the next prefill chunk: all, or at least min_rows with as many left; else 0."""
    if num_missing <= budget:
        return num_missing
    chunk = min(budget, num_missing - min_rows)
    return chunk if chunk >= min_rows else 0


def share_out(
    prompts: Sequence[Session], budget: int, min_rows: int, guest: Session | None = None
) -> dict[int, int]:
    """Prompt tokens of this call by sequence: in order of rank, after the guest, whose turn is
    overdue, and those who overtake."""
    chunks: dict[int, int] = {}
    if guest is not None and guest in prompts:
        budget -= _give(chunks, guest, min(budget, LEAST_CHUNK // 2), min_rows)
    share = budget // _OVERTAKING_SHARE
    for session in _overtaking(prompts, budget):
        chunk = _give(chunks, session, share, min_rows)
        share, budget = share - chunk, budget - chunk
    for session in prompts:
        budget -= _give(chunks, session, budget, min_rows)
    return chunks


def _give(chunks: dict[int, int], session: Session, budget: int, min_rows: int) -> int:
    """Once a session is given its chunk, it gets no second one."""
    if session.sequence in chunks:
        return 0
    chunk = chunk_tokens(session.num_missing, budget, min_rows)
    chunks[session.sequence] = chunk
    return chunk


def _overtaking(prompts: Sequence[Session], budget: int) -> list[Session]:
    """Prompts far shorter than what the first still lacks, unless that fits this call: they
    would wait for it out of all proportion. The shortest comes first."""
    if not prompts or prompts[0].num_missing <= budget:
        return []
    first = prompts[0]
    short = [
        session
        for session in prompts
        if session.num_missing * _FAR_SHORTER <= first.num_missing
        and session.priority >= first.priority
    ]
    return sorted(short, key=lambda session: session.num_missing)
