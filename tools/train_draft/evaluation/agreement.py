"""How often the draft says what the target says, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]

MAX_DRAFT_TOKENS = 8
_FIRST_POSITIONS = 5


@dataclass(frozen=True, slots=True)
class Trace:
    """One reply of n tokens as the draft saw it."""

    kind: str
    number: int
    temperature: float
    agreed: Bools
    """[n] whether the draft's token is the target's, all before being right."""
    top_agreed: Bools
    """[n] whether both find the same id likeliest."""
    confidence: npt.NDArray[np.float64]
    """[n] the draft's in its token: outrider.engines.draft_calibration says what that is."""


def positions_of(traces: Sequence[Trace]) -> npt.NDArray[np.int64]:
    """Of all tokens of these replies, one reply after the other: their places, from 0 on."""
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(len(trace.agreed)) for trace in traces)]
    )


def tokens_per_step(traces: Sequence[Trace], num_draft: int) -> float:
    """Tokens committed per verification of up to `num_draft` drafted tokens: the accepted and the
    target's own behind them, over whole replies."""
    num_steps = num_tokens = 0
    for trace in traces:
        at, end = 0, len(trace.agreed)
        while at < end:
            misses = np.flatnonzero(~trace.agreed[at : at + num_draft])
            accepted = int(misses[0]) if len(misses) else min(num_draft, end - at)
            at += accepted + 1
            num_steps += 1
        num_tokens += end
    return num_tokens / max(1, num_steps)


def acceptance_by_draft_position(traces: Sequence[Trace]) -> list[float]:
    """[MAX_DRAFT_TOKENS]: of the drafts whose first j tokens were right, the share whose next one
    was too. Drafts begin at every token of every reply."""
    reached, right = np.zeros(MAX_DRAFT_TOKENS), np.zeros(MAX_DRAFT_TOKENS)
    for trace in traces:
        alive = np.ones(len(trace.agreed), bool)
        for j in range(MAX_DRAFT_TOKENS):
            alive = alive[: len(trace.agreed) - j]
            now = trace.agreed[j:]
            reached[j] += alive.sum()
            alive = alive & now
            right[j] += alive.sum()
    return [float(share) for share in right / np.maximum(1, reached)]


def acceptance_by_reply_position(traces: Sequence[Trace]) -> list[float]:
    """The share of agreement at each of a reply's first tokens."""
    return [
        float(np.mean([t.agreed[at] for t in traces if len(t.agreed) > at] or [0.0]))
        for at in range(_FIRST_POSITIONS)
    ]


def figures(traces: Sequence[Trace]) -> dict[str, object]:
    """All of the above, rounded for a report."""
    agreed = np.concatenate([trace.agreed for trace in traces])
    top = np.concatenate([trace.top_agreed for trace in traces])
    return {
        "replies": len(traces),
        "tokens": len(agreed),
        "agreement": round(float(agreed.mean()), 4),
        "top1_agreement": round(float(top.mean()), 4),
        "by_reply_position": [round(x, 3) for x in acceptance_by_reply_position(traces)],
        "by_draft_position": [round(x, 3) for x in acceptance_by_draft_position(traces)],
        "tokens_per_step": {k: round(tokens_per_step(traces, k), 3) for k in (2, 4, 8)},
    }
