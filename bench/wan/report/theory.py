"""When drafting far from the model pays (pure).

Symbols: t_s a plain step of the region, t_v a verification, t_d a draft, all in ms; E tokens per
round, the region's own included; m the share of tokens that needed a wait.
"Speculation at a Distance" (arXiv 2606.25091) has the same break-even for rounds as
RTT < alpha / (1 - alpha) * t_s - k * t_d, of which E * t_s - k * t_d - t_v is the form for
measured E and a verification that costs more than a step; its Prop. 9 is the capacity. For a region
that never waits the edge's own model says it (services.edge.session.speedup_model).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def rounds_break_even_ms(
    tokens_per_round: float, drafts_per_round: float, t_s: float, t_v: float, t_d: float
) -> float:
    """RTT below which stop-and-wait drafting beats plain streaming; 0: none."""
    return max(0.0, tokens_per_round * t_s - drafts_per_round * t_d - t_v)


def chain_break_even_ms(miss_share: float, t_s: float, t_v: float, t_d: float) -> float:
    """RTT below which an asynchronous chain does: it runs at t_d and pays RTT + t_v + t_d for each
    miss; 0: none."""
    return max(0.0, (t_s - t_d) / miss_share - t_v - t_d)


def capacity_gain(drafts_per_commit: float, t_d: float, t_s: float) -> float:
    """Sessions per verifier with drafting elsewhere over drafting beside it, 1 + k * t_d / t_s;
    without a t_s, 1."""
    return 1 + drafts_per_commit * t_d / t_s if t_s else 1.0


def crossing(xs: Sequence[float], ratios: Sequence[float], level: float = 1.0) -> float:
    """Where the ratio falls below `level`, between neighbours linearly; 0 if it begins there, the
    last x if it never does. xs rise."""
    if ratios[0] < level:
        return 0.0
    pairs = zip(xs, ratios, strict=True)
    for (x, high), (next_x, low) in itertools.pairwise(pairs):
        if low < level:
            return x + (next_x - x) * (high - level) / (high - low)
    return xs[-1]
