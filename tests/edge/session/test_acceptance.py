"""Acceptance by source and depth, and how far their confidence is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.calibration import Platt, SourceCalibrations
from services.edge.session.acceptance import (
    MAX_SOURCES,
    NUM_BUCKETS,
    Acceptance,
    Calibration,
    Calibrations,
    DraftOutcome,
    GroupAverages,
    bucket_of,
)
from services.edge.session.speedup_model import SessionConditions


def outcome(
    depth: int, right: bool, source: str = "model", confidence: float = 0.8
) -> DraftOutcome:
    return DraftOutcome(source, depth, depth, confidence, right, first_wrong=not right)


def test_depths_have_buckets() -> None:
    assert [bucket_of(depth) for depth in (0, 1, 2, 3, 4, 7, 8, 900)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_sums_are_compared_not_shares() -> None:
    """One long right chain and many short wrong ones: the mean of shares would say a half."""
    seen = Acceptance()
    for _ in range(40):
        seen.observe([outcome(0, False)])
        seen.observe([outcome(depth, True) for depth in range(1, 4)])
    assert seen.rate(0) < 0.1
    assert seen.rate(2) > 0.9
    assert seen.rate_of("model") == pytest.approx(0.75, abs=0.05)
    assert seen.rate_of("nobody") == 0.0


def test_drafts_behind_a_wrong_one_say_nothing_of_their_source() -> None:
    seen = Acceptance()
    fallen = DraftOutcome("suffix", 1, 1, 0.5, False, first_wrong=False)
    seen.observe([outcome(0, False), fallen])
    assert seen.sources == ("model",)


def test_no_draft_counts_like_a_wrong_one() -> None:
    seen = Acceptance()
    for _ in range(50):
        seen.observe([outcome(0, True)], ended_at=1)
    chances = seen.survival(3)
    assert chances[0] == 1.0
    assert chances[1] > 0.9
    assert chances[2] < 0.1
    assert seen.sources == ("model",)


def test_a_new_chat_is_believed_to_be_like_the_others() -> None:
    average = Acceptance()
    for _ in range(100):
        average.observe([outcome(0, True)])
    assert Acceptance(average).rate(0) == average.rate(0) > 0.9
    assert Acceptance(average).rate(4) == average.rate(4) > 0.9, "depths nobody saw are as others"


def test_names_are_bounded() -> None:
    seen = Acceptance()
    for number in range(100):
        seen.observe([outcome(0, True, f"source {number}")])
    assert len(seen.sources) == MAX_SOURCES + 1


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60))
def test_survival_never_rises(seen: list[tuple[int, bool]]) -> None:
    acceptance = Acceptance()
    acceptance.observe([outcome(depth, right) for depth, right in seen])
    chances = acceptance.survival(20)
    assert chances == sorted(chances, reverse=True)
    assert all(0 <= acceptance.rate(bucket) <= 1 for bucket in range(NUM_BUCKETS))


def test_groups_share_what_the_region_is_like_and_nothing_that_follows_from_words() -> None:
    known, empty = GroupAverages(max_groups=2), GroupAverages(max_groups=2)
    talker, listener = known.of(b"a"), known.of(b"b")
    found = SessionConditions(
        rtt_s=0.1, draft_s=0.001, interval_s=0.02, row_s=0.001, own_tokens=3.0
    )
    for _ in range(40):
        talker.acceptance.observe([outcome(0, True)])
        talker.own_tokens.observe(5)
        talker.calibrations(sampled=False).observe("model", 0.5, 0, right=True)
    talker.conditions = found
    assert known.of(b"a") is talker and talker.acceptance.is_reliable
    assert talker.acceptance.rate(0) > 0.9 > listener.acceptance.rate(0)
    assert listener.acceptance.survival(9) == empty.of(b"b").acceptance.survival(9)
    assert listener.calibrations(sampled=False).chance("model", 0.5, 0) == 0.5
    assert listener.conditions == replace(found, own_tokens=1.0)
    assert not known.of(b"").acceptance.is_reliable and known.of(b"") is not known.of(b"")
    known.of(b"c")
    assert len(known) == 2, "the group not asked for longest is forgotten"


def test_a_group_that_is_asked_for_again_outlasts_others() -> None:
    known = GroupAverages(max_groups=2)
    first = known.of(b"a")
    known.of(b"b")
    known.of(b"a")
    known.of(b"c")
    assert known.known(b"a") is first and known.known(b"b") is None


def after(share: Callable[[float], float], count: int = 2000) -> Calibration:
    """After drafts of evenly spread confidence, of which a share `share(confidence)` was right."""
    calibration, rng = Calibration(), Random(3)
    for _ in range(count):
        confidence = rng.uniform(0.05, 0.99)
        calibration.observe(confidence, rng.random() < share(confidence))
    return calibration


@pytest.mark.parametrize("confidence", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_calibration_follows_the_share_that_was_right(confidence: float) -> None:
    assert Calibration().chance(confidence) == pytest.approx(confidence)
    assert after(lambda p: p).chance(confidence) == pytest.approx(confidence, abs=0.08)
    assert after(lambda p: p * p).chance(confidence) == pytest.approx(confidence**2, abs=0.1)
    assert after(lambda p: 0.5 + p / 2).chance(confidence) == pytest.approx(
        0.5 + confidence / 2, abs=0.15
    )


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200))
def test_the_order_of_confidences_stays(seen: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for confidence, right in seen:
        calibration.observe(confidence, right)
    chances = [calibration.chance(n / 20) for n in range(21)]
    assert chances == sorted(chances)
    assert all(0 < chance < 1 for chance in chances)


def test_overconfidence_is_corrected() -> None:
    calibrations, rng = Calibrations(are_sampled=False), Random(1)
    for _ in range(600):
        calibrations.observe("loud", 0.9, 0, rng.random() < 0.3)
        calibrations.observe("sober", 0.6, 0, rng.random() < 0.6)
    assert calibrations.chance("loud", 0.9, 0) == pytest.approx(0.3, abs=0.1)
    assert calibrations.chance("sober", 0.6, 0) == pytest.approx(0.6, abs=0.1)
    assert calibrations.chance("unknown", 0.6, 0) == pytest.approx(0.6)
    assert calibrations.chance("loud", 0.9, 5) == pytest.approx(0.9), "other places are others"


def test_they_begin_as_shipped_and_learn_on() -> None:
    lines = (Platt(-2.0, 0.5), *[Platt()] * 4)
    shipped = SourceCalibrations(greedy={"copy": lines})
    greedy, sampled = (Calibrations(shipped, are_sampled=kind) for kind in (False, True))
    assert greedy.chance("copy", 0.9, 0) == pytest.approx(lines[0].chance(0.9))
    assert lines[0].chance(0.9) < 0.3
    assert greedy.chance("copy", 0.9, 1) == pytest.approx(0.9)
    assert sampled.chance("copy", 0.9, 0) == pytest.approx(0.9)
    for _ in range(400):
        greedy.observe("copy", 0.9, 0, True)
    assert greedy.chance("copy", 0.9, 0) > 0.6


def test_names_of_calibrated_sources_are_bounded() -> None:
    calibrations = Calibrations(are_sampled=False)
    for number in range(100):
        calibrations.observe(f"source {number}", 0.5, 0, True)
    assert len(calibrations.sources) == MAX_SOURCES + 1
