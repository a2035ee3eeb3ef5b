"""A region's core and edges in virtual time: who waits for whom, and that the text is the same."""

from __future__ import annotations

import pytest

from bench.capacity.cells import EDGE, OUTRIDER, PLAIN, Scheme, region_scheme, run_cell
from bench.capacity.pairs import CallCost, Pair, guess_of
from bench.capacity.virtual_time import VirtualTime

PAIR = Pair("test", CallCost(60.0, 2.0), CallCost(15.0, 0.5), 0.85)


def test_things_happen_in_order_and_never_in_the_past() -> None:
    time, seen = VirtualTime(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, time.now))

    def late() -> None:
        note("late")
        time.at(0.5, lambda: note("asked for too late"))

    time.at(2.0, late)
    time.at(1.0, lambda: note("first"))
    time.at(1.0, lambda: note("second"))
    time.run()
    expected = [("first", 1.0), ("second", 1.0), ("late", 2.0), ("asked for too late", 2.0)]
    assert seen == expected


def test_a_draft_model_says_the_same_to_all_and_is_right_as_often_as_said() -> None:
    guesses = [guess_of(PAIR, 3, place, 512) for place in range(2000)]
    assert guesses == [guess_of(PAIR, 3, place, 512) for place in range(2000)]
    right = sum(it.is_right for it in guesses) / len(guesses)
    assert right == pytest.approx(PAIR.acceptance, abs=0.04)
    assert sum(it.confidence for it in guesses) / len(guesses) == pytest.approx(right, abs=0.04)


def test_plain_chats_have_the_pace_of_the_calls() -> None:
    found = run_cell(PAIR, PLAIN, 4, 0.0, 4)
    assert found.is_exact
    assert found.pace == pytest.approx(1e3 / PAIR.target.ms(4))
    assert (found.draft_ms, found.tokens_per_commit) == (0.0, 1.0)


def test_the_regions_draft_model_takes_turns_with_its_calls() -> None:
    found = run_cell(PAIR, region_scheme(2), 2, 0.0, 2)
    assert found.is_exact
    assert PAIR.draft.ms(2) < found.draft_ms <= 2 * PAIR.draft.ms(2)
    round_s = (found.verify_ms + found.draft_ms) / 1e3
    assert found.pace == pytest.approx(found.tokens_per_commit / round_s, rel=0.02)


@pytest.mark.parametrize("scheme", [EDGE, OUTRIDER], ids=["always", "controlled"])
def test_edges_drafts_cost_the_region_rows_alone_and_bring_less_from_afar(scheme: Scheme) -> None:
    near, far = run_cell(PAIR, scheme, 2, 0.0, 2), run_cell(PAIR, scheme, 2, 0.25, 2)
    assert near.is_exact and far.is_exact
    assert near.draft_ms == far.draft_ms == 0.0
    assert near.pace > far.pace
    assert near.pace > 1.3 * run_cell(PAIR, PLAIN, 2, 0.0, 2).pace


def test_the_controller_is_never_much_slower_than_not_drafting() -> None:
    useless = Pair("useless", CallCost(60.0, 20.0), CallCost(50.0, 5.0), 0.3)
    plain, ours = run_cell(useless, PLAIN, 4, 0.15, 4), run_cell(useless, OUTRIDER, 4, 0.15, 4)
    assert ours.is_exact
    assert ours.pace >= 0.98 * plain.pace
