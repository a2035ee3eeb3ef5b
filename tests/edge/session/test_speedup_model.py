"""The prediction against a simulation made before it, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.edge.session.speedup_model import (
    SessionConditions,
    useful_lead,
    with_drafts_s,
    without_drafts_s,
    worthwhile_drafts,
)

SIMULATED_MS: dict[tuple[float, float, float], tuple[float, ...]] = {
    # acceptance, ms per draft, ms per call: ms per token at RTT 20, 50, 100 and 250 ms
    (0.6, 2, 10): (9.0, 9.9, 10.0, 10.0),
    (0.8, 2, 10): (6.9, 8.7, 9.7, 10.0),
    (0.9, 2, 10): (4.9, 6.6, 8.3, 9.8),
    (0.6, 5, 30): (22.5, 26.6, 28.8, 29.9),
    (0.8, 5, 30): (15.7, 19.5, 23.4, 28.4),
    (0.9, 5, 30): (10.8, 13.2, 16.6, 23.2),
    (0.8, 5, 60): (25.5, 30.5, 35.1, 46.8),
    (0.9, 2, 60): (14.6, 17.6, 20.5, 30.7),
}
"""A replica that never waits, drafts of even acceptance, a lead of up to 64, and rows that each add
a fiftieth to a call: means of a simulation that shares nothing with the model."""


def even(acceptance: float) -> list[float]:
    return [acceptance**n for n in range(100)]


def known(rtt_ms: float, draft_ms: float, call_ms: float, **more: Any) -> SessionConditions:
    row_s = 0.02 * call_ms / 1e3
    known = SessionConditions(rtt_ms / 1e3, draft_ms / 1e3, call_ms / 1e3, row_s, 1.0, 64, 64)
    return replace(known, **more)


@pytest.mark.parametrize("row", SIMULATED_MS)
def test_it_says_what_a_simulation_found(row: tuple[float, float, float]) -> None:
    acceptance, draft_ms, call_ms = row
    said = [
        with_drafts_s(known(rtt_ms, draft_ms, call_ms), even(acceptance)) * 1e3
        for rtt_ms in (20, 50, 100, 250)
    ]
    assert said == pytest.approx(SIMULATED_MS[row], rel=0.08)


def test_the_gain_grows_with_the_call_and_falls_with_the_distance_and_the_regions_own_drafts() -> (
    None
):
    def gain(rtt_ms: float, call_ms: float = 30, **more: Any) -> float:
        at = known(rtt_ms, 5, call_ms, **more)
        return 1 - with_drafts_s(at, even(0.8)) / without_drafts_s(at)

    assert gain(50, 60) > gain(50) > gain(100) > gain(100, own_tokens=2.0)


def test_rows_that_cost_a_share_of_the_call_each_are_for_likely_drafts() -> None:
    cheap, dear = known(0, 5, 30), known(0, 5, 30, row_s=0.015)
    assert worthwhile_drafts(cheap, even(0.8)) > worthwhile_drafts(dear, even(0.8)) >= 1
    assert worthwhile_drafts(dear, even(0.3)) == 0
    assert worthwhile_drafts(replace(cheap, max_drafts=3), even(1.0)) == 3


def test_the_lead_is_what_is_on_its_way_and_one_calls_worth() -> None:
    assert useful_lead(known(0, 5, 30, max_drafts=8)) == 9
    assert useful_lead(known(100, 5, 30, max_drafts=8)) == 100 // 5 + 9
    assert useful_lead(known(100, 0, 30, max_drafts=8, row_s=0.0)) == 30 + 9
    assert useful_lead(known(1000, 5, 30, max_lead=32)) == 32


@given(
    rtt_s=st.floats(0, 1),
    draft_s=st.floats(0, 0.1),
    interval_s=st.floats(0.001, 0.2),
    row_share=st.floats(0, 0.5),
    own_tokens=st.floats(1, 4),
    max_drafts=st.integers(1, 16),
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
@example(0.0, 2.225e-311, 0.125, 0.0, 1.0, 1, [1.0]).via("drafts in no time at all")
def test_nobody_is_predicted_to_wait_longer(
    rtt_s: float,
    draft_s: float,
    interval_s: float,
    row_share: float,
    own_tokens: float,
    max_drafts: int,
    rates: list[float],
) -> None:
    at = SessionConditions(
        rtt_s, draft_s, interval_s, interval_s * row_share, own_tokens, max_drafts, 32
    )
    survival = [1.0]
    for rate in rates:
        survival.append(survival[-1] * rate)
    said = with_drafts_s(at, survival)
    assert 0 < said <= without_drafts_s(at) * 1.0001
    assert said >= at.interval_s / (max(max_drafts, own_tokens) + 1) * 0.99
