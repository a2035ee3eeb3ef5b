"""What a run says in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.capacity.__main__ import Cell, cells_of, report
from bench.capacity.cells import Outcome
from bench.capacity.law import batched_law, law
from bench.capacity.pairs import CallCost, Pair
from bench.harness.record import Run

PAIR = Pair("test", CallCost(60.0, 2.0), CallCost(15.0, 0.5), 0.85)


def outcome(pace: float, *, draft_ms: float = 0.0, is_exact: bool = True) -> Outcome:
    return Outcome(pace, 100.0, draft_ms, 2.0, 1.0, 1.0, is_exact)


def cell(*, edge_chats: float, rtt_ms: int = 0, is_exact: bool = True) -> Cell:
    region = outcome(5.0, draft_ms=40.0)
    edge, ours = outcome(6.0), outcome(5.7, is_exact=is_exact)
    return Cell(PAIR, rtt_ms, 4, outcome(4.0), region, 2, edge, ours, edge_chats)


def test_the_last_line_has_worth_and_error_by_regime(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Run("capacity", quick=True, command="")
    near, far = cell(edge_chats=6.0), cell(edge_chats=3.0, rtt_ms=150, is_exact=False)
    assert report(run, [near, far]) == 1, "one reply of four differs"
    run.finish(tmp_path)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(said)[-2:] == ["edge_over_region_best", "law_error"]
    assert said["edge_over_region_best"]["hidden"]["median"] == 1.5
    assert said["edge_over_region_best"]["exposed"]["median"] == 0.75
    assert said["law_error"]["hidden"]["as_published"] == round(1.5 / law(near.region) - 1, 3)
    shared = batched_law(PAIR, near.region, 4)
    assert said["law_error"]["hidden"]["shared_calls"] == round(1.5 / shared - 1, 3)
    assert (said["least_choice"], said["cells_choice_missed"]) == (0.95, 2)


def test_a_grid_has_a_cell_for_each_distance_and_number_of_chats() -> None:
    found = cells_of(PAIR, (0, 250), (2,))
    near, far = found
    assert [(it.rtt_ms, it.num_chats) for it in found] == [(0, 2), (250, 2)]
    assert near.region == far.region, "its own way to draft knows no distance"
    assert near.ratio > 1.2 > far.ratio
