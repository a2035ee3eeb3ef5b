"""The comparison's arithmetic: ratios within a round, their range, and who took part."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import pytest

from bench import inference
from bench.harness import TOO_FEW, Run
from bench.harness.load import Answer, WorkResult
from bench.harness.tables import Table
from bench.inference import Cell, Outcomes, Prompts, report
from bench.peers.lineup import (
    INEXACT,
    LLAMACPP_Q4_0,
    LLAMACPP_Q4_1,
    NAMES,
    OPENVINO,
    OURS,
    OURS_DRAFTS,
    rotated,
)
from outrider.models.vocabulary import Vocabulary


def outcome(tokens_per_s: float, ids: tuple[int, ...] = (1, 2)) -> WorkResult:
    return WorkResult(len(ids) / tokens_per_s, (Answer(list(ids), 0.0, [0.25, 0.5]),))


def run_of(rounds: Mapping[int, Mapping[str, float]]) -> Run:
    outcomes = Outcomes(
        overhead_ms={("greedy", OURS_DRAFTS): [0.5, 0.7, 0.9], ("T=0.8", OURS_DRAFTS): [4.0]},
        busy_shares={
            ("greedy", OURS, 1): [0.9, 0.98, 0.99],
            ("T=0.8", OURS, 1): [0.8],
            ("greedy", OURS, 16): [0.95],
        },
    )
    for turn, speeds in rounds.items():
        outcomes.by_round[turn, Cell("chat", 0.0, 1)] = {n: outcome(s) for n, s in speeds.items()}
    run = Run("inference", quick=True, command="")
    report(run, outcomes)
    return run


def table_of(run: Run, title: str, at: int = 0) -> Table:
    """The table whose title begins so; the `at`-th where several do."""
    return [table for table in run.tables if table.title.startswith(title)][at]


def test_ratios_are_taken_within_a_round() -> None:
    run = run_of(
        {
            0: {OURS: 10, OURS_DRAFTS: 20, OPENVINO: 10, LLAMACPP_Q4_1: 5, LLAMACPP_Q4_0: 40},
            1: {OURS: 2, OURS_DRAFTS: 3, OPENVINO: 1, LLAMACPP_Q4_1: 1, LLAMACPP_Q4_0: 6},
            2: {OURS: 9, OURS_DRAFTS: 30, OPENVINO: 10, LLAMACPP_Q4_1: 10, LLAMACPP_Q4_0: 10},
        }
    )
    ratios = {row[0]: row[2] for row in run.tables[0].rows}
    assert ratios[OURS] == "1.00 (0.900 to 2.00)"
    assert ratios[OURS_DRAFTS] == "3.00 (2.00 to 3.00)"
    assert table_of(run, "Throughput with drafts on").rows[0][2] == "2.00 (1.50 to 3.33)"
    assert run.figures["exact"] is True


def test_sampled_and_greedy_calls_have_rows_of_their_own() -> None:
    run = run_of({0: {OURS: 1, OURS_DRAFTS: 1, OPENVINO: 1}})
    overhead, shares = (table_of(run, it).rows for it in ("CPU time", "Share of the time"))
    assert [row[:2] for row in overhead] == [("greedy", OURS_DRAFTS), ("T=0.8", OURS_DRAFTS)]
    assert [row[:3] for row in shares] == [("greedy", OURS, "1 to 3"), ("T=0.8", OURS, 1)]


def test_a_peer_that_took_no_part_at_a_temperature_is_not_called_absent() -> None:
    outcomes = Outcomes()
    same = {OURS: outcome(1), OURS_DRAFTS: outcome(1), OPENVINO: outcome(1)}
    outcomes.by_round[0, Cell("chat", 0.0, 1)] = {**same, LLAMACPP_Q4_1: outcome(2)}
    outcomes.by_round[0, Cell("chat", 0.8, 1)] = same
    run = Run("inference", quick=True, command="")
    report(run, outcomes)
    title = f"Throughput as a multiple of the {OPENVINO}"
    greedy, sampled = ({row[0]: row[1:] for row in table_of(run, title, at).rows} for at in (0, 1))
    assert greedy[LLAMACPP_Q4_1] == (1, 2.0)
    assert LLAMACPP_Q4_1 not in sampled
    assert sampled[LLAMACPP_Q4_0] == (0, "not installed")


def test_a_peer_that_is_not_installed_is_told() -> None:
    run = run_of({0: {OURS: 1, OURS_DRAFTS: 1, OPENVINO: 1}})
    rows = {row[0]: row[1:] for row in run.tables[0].rows}
    assert run.tables[0].columns == ("system", "n", "1 at once")
    assert rows[LLAMACPP_Q4_1] == (0, "not installed")
    assert INEXACT not in rows
    assert rows[OPENVINO] == (1, 1.0)


def test_ratios_show_how_many_there_are_and_tails_need_enough() -> None:
    run = run_of({turn: {OURS: 2, OURS_DRAFTS: 3, OPENVINO: 1} for turn in range(6)})
    rows = {row[0]: row[1:] for row in run.tables[0].rows}
    assert rows[OURS] == (6, "2.00 (2.00 to 2.00)")
    times = table_of(run, "Time to first token")
    assert times.columns == ("system", "n, chat", "chat p50", "chat p90", "chat p95")
    first = {row[0]: row[1:] for row in times.rows}
    assert first[OURS] == (6, "250 (250 to 250)", TOO_FEW, TOO_FEW)


def test_other_replies_with_drafts_are_not_exact() -> None:
    outcomes = Outcomes()
    same = {OURS: outcome(1), OURS_DRAFTS: outcome(1, (1, 3)), OPENVINO: outcome(1)}
    outcomes.by_round[0, Cell("code", 0.8, 4)] = same
    run = Run("inference", quick=True, command="")
    report(run, outcomes)
    assert run.figures["exact"] is False


def flags(**values: object) -> argparse.Namespace:
    kinds = ("chat", "code", "document")
    given = {"quick": False, "core": False, "documents": False, "kinds": kinds, **values}
    return argparse.Namespace(**given)


def test_a_whole_run_measures_every_cell_and_flags_choose_among_them() -> None:
    assert len(inference.planned_cells(flags())) == 2 * 3 * 6
    assert len(inference.planned_cells(flags(kinds=["chat"]))) == 2 * 6
    assert [len(turn) for turn in inference.planned_rounds(flags())] == [36, 36, 12, 12, 12]
    assert inference.planned_rounds(flags(quick=True)) == [
        inference.planned_cells(flags(quick=True))
    ]
    assert inference.system_names(flags()) == list(NAMES)
    quick = inference.planned_cells(flags(quick=True))
    assert Cell("chat", 0.0, 16) in quick
    assert len(quick) < 10
    assert not inference.takes_part(INEXACT, Cell("chat", 0.8, 1))


def test_a_core_run_has_five_rounds_of_chats() -> None:
    core = flags(core=True)
    assert inference.planned_cells(core) == [Cell("chat", 0.0, count) for count in (1, 8, 32)]
    assert inference.planned_rounds(core) == [inference.planned_cells(core)] * 5
    assert INEXACT not in inference.system_names(core)
    assert LLAMACPP_Q4_0 in inference.system_names(core)


def test_documents_are_asked_of_few_systems_where_they_crowd_each_other() -> None:
    documents = flags(documents=True)
    assert inference.planned_cells(documents) == [Cell("document", 0.0, n) for n in (8, 16, 32)]
    assert inference.planned_rounds(documents) == [inference.planned_cells(documents)] * 3
    asked = inference.system_names(documents)
    assert asked == [OURS, OURS_DRAFTS, OPENVINO]
    outcomes = Outcomes(asked)
    same = {OURS: outcome(9), OURS_DRAFTS: outcome(9), OPENVINO: outcome(10)}
    outcomes.by_round[0, Cell("document", 0.0, 8)] = same
    run = Run("inference_documents", quick=True, command="")
    report(run, outcomes)
    assert [row[0] for row in run.tables[0].rows] == asked, "who is not asked is not absent"
    assert run.tables[0].rows[0][2] == 0.9
    assert not [table for table in run.tables if table.title.startswith("Time to first token")]


def test_no_user_message_comes_twice_in_a_run(vocabulary: Vocabulary) -> None:
    prompts = Prompts(vocabulary)
    works = [prompts.work(Cell("chat", 0.0, c)) for c in (1, 8, 8, 1)]
    assert [len(work.requests) for work in works] == [12, 12, 12, 12]
    texts = [vocabulary.decode(r.prompt).split("user", 1)[1] for w in works for r in w.requests]
    assert len(set(texts)) == len(texts)
    seeds = [request.seed for work in works for request in work.requests]
    assert len(set(seeds)) == len(seeds)


def test_everyone_begins_once() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]


def test_gaps_are_times_between_arrivals() -> None:
    answer = Answer([1, 2, 3, 4], 1.0, [2.0, 2.5, 4.0])
    assert answer.ttft_ms == 1000
    assert answer.gaps_ms() == [500, 1500]
    assert answer.gaps_ms(2.6, 5.0) == [1500]
    assert answer.gaps_ms(end_s=3.0) == pytest.approx([500])
