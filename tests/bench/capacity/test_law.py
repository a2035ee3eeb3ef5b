"""The law, its regimes, and chats read off a curve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.capacity.cells import Outcome, pooled
from bench.capacity.law import Regime, batched_law, chats_at, law, regime_of
from bench.capacity.pairs import CallCost, Pair

PAIR = Pair("a pair", CallCost(100.0, 10.0), CallCost(20.0, 2.0), 0.8)
PLAIN = Outcome(8.0, 110.0, 0.0, 1.0, 0.0, 0.0, is_exact=True)
REGION = Outcome(10.0, 130.0, 44.0, 2.2, 2.0, 0.0, is_exact=True)


def test_the_law_is_the_share_of_the_regions_time_that_its_drafts_take() -> None:
    assert law(REGION) == pytest.approx(1 + 2 * PAIR.draft.ms(1) / PAIR.target.ms(3))


@given(fixed_ms=st.floats(0, 200), row_ms=st.floats(0.5, 30), num_chats=st.integers(1, 32))
def test_sharing_calls_leaves_room_for_more_chats_unless_rows_cost_all(
    fixed_ms: float, row_ms: float, num_chats: int
) -> None:
    pair = replace(PAIR, target=CallCost(fixed_ms, row_ms))
    region = replace(REGION, verify_ms=pair.target.ms(3 * num_chats))
    shared = batched_law(pair, region, num_chats)
    assert shared >= law(region) - 1e-9
    if not fixed_ms:
        assert shared == pytest.approx(law(region))


def test_the_added_chats_fill_the_time_of_the_steps() -> None:
    num_chats = 4 * batched_law(PAIR, REGION, 4)
    before_ms = REGION.draft_ms + PAIR.target.fixed_ms + PAIR.target.row_ms * 4 * 3
    after_ms = PAIR.target.fixed_ms + PAIR.target.row_ms * num_chats * 3
    assert after_ms == pytest.approx(before_ms)


def test_regimes() -> None:
    near = regime_of(PAIR, PLAIN, REGION, 2, 0.08)
    far = regime_of(PAIR, PLAIN, REGION, 2, 0.09)
    full = regime_of(PAIR, replace(PLAIN, pace=10.0), REGION, 2, 0.0)
    assert (near, far, full) == (Regime.HIDDEN, Regime.EXPOSED, Regime.FULL)


CURVE = {1: 16.0, 2: 12.0, 8: 5.0, 32: 1.0}


@given(pace=st.floats(0.5, 20))
def test_chats_have_the_pace_that_they_are_read_off_at(pace: float) -> None:
    count = chats_at(CURVE, pace)
    assert count == 0 if pace > 16.0 else 1 <= count <= 32
    assert count == 32 if pace <= 1.0 else count < 32
    assert chats_at(CURVE, pace * 1.01) <= count


def test_measured_numbers_of_chats_are_read_off_as_they_are() -> None:
    for count, pace in CURVE.items():
        assert chats_at(CURVE, pace) == pytest.approx(count)


def test_a_curve_that_rises_again_counts_to_its_end() -> None:
    assert chats_at({1: 5.0, 2: 3.0, 4: 4.0}, 3.5) == 4.0


def test_rounds_are_pooled_by_the_time_they_took() -> None:
    slow, fast = replace(PLAIN, pace=2.0), replace(PLAIN, pace=6.0, is_exact=False)
    both = pooled([slow, fast])
    assert both.pace == pytest.approx(3.0)
    assert not both.is_exact
