"""The round trip from which on drafts from the edge do not pay, by the edge's own model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.edge.session.speedup_model import SessionConditions, with_drafts_s, without_drafts_s

_MAX_RTT_S = 4.0
_STEPS = 24


def break_even_rtt_s(
    conditions: SessionConditions, survival: Sequence[float], least_gain: float = 0.02
) -> float:
    """The longest round trip at which drafts from the edge still save `least_gain` of the time per
    token; 0 if there is none. `conditions.rtt_s` is not used."""

    def pays(rtt_s: float) -> bool:
        with_s = with_drafts_s(replace(conditions, rtt_s=rtt_s), survival)
        return with_s <= (1 - least_gain) * without_drafts_s(conditions)

    low, high = 0.0, _MAX_RTT_S
    if not pays(low):
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
