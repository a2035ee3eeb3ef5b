"""The tables of every bench: n is told, tails of few samples are not, and records hold samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import lossy, overhead, tick
from bench.faults import __main__ as faults_bench
from bench.faults.chats import REPLICA_KILL, ChatTotals
from bench.faults.injection import FaultSeries
from bench.harness import TOO_FEW, Run
from bench.harness.scheduled import Outcome
from bench.peers.routing import __main__ as routing
from bench.peers.routing.workload import Served


def values(count: int) -> list[float]:
    return [10.0 + number for number in range(count)]


def of_overhead(run: Run, count: int) -> None:
    samples = {
        overhead.DIRECT: values(count),
        overhead.MESH: [ms + 3 for ms in values(count)],
        overhead.HTTP: [ms + 4 for ms in values(count)],
    }
    overhead.report(run, {"openvino": samples, "fake": samples})
    added = {row[:2]: row[3] for row in run.tables[0].rows}
    assert str(added["openvino", overhead.ADDED]).startswith("3.00 ")
    assert str(added["fake", overhead.ADDED_BY_HTTP]).startswith("1.00 ")


def of_faults(run: Run, count: int) -> None:
    totals = ChatTotals(chats=9, tokens=90, once_hit=[(ms, ms / 2) for ms in values(count)])
    faults = [
        FaultSeries(REPLICA_KILL, 12, count, values(count)),
        FaultSeries("edge, SIGKILL", 4, 0, []),
    ]
    faults_bench.report(run, {"openvino": faults_bench.MeshResult(totals, faults)})


def of_tick(run: Run, count: int) -> None:
    timers = {(kind, on): tick.PartTimer() for kind in ("whole", "parts") for on in (False, True)}
    for timer in timers.values():
        timer.ms |= {part: values(count) for part in tick.PARTS}
    tick.report(run, timers)
    shares = {(n, on): values(count) for n in tick.BUSY_SESSIONS for on in (False, True)}
    tick.report_shares(run, shares)


def of_lossy(run: Run, count: int) -> None:
    outcome = Outcome(seconds=2.0, replies=[[1, 2, 3]] * 4, num_commits=6)
    lossy.report(run, [dict.fromkeys(lossy.THRESHOLDS, outcome) for _ in range(count)])


def of_routing(run: Run, count: int) -> None:
    served = [Served(ms / 1e3, 100, 50) for ms in values(count)]
    routing.report(run, {(8.0, routing.OURS): served, (8.0, "round robin"): served})


REPORTS: dict[str, Callable[[Run, int], None]] = {
    "overhead": of_overhead,
    "faults": of_faults,
    "tick": of_tick,
    "routing": of_routing,
}
"""Reports of the given number of samples each."""


def tails(run: Run, count: int) -> list[object]:
    """The cells of p95 and p99 in rows of so many samples."""
    found: list[object] = []
    for table in run.tables:
        at = [n for n, name in enumerate(table.columns) if name.endswith(("p95", "p99"))]
        found += [row[n] for row in table.rows if count in row for n in at]
    return found


@pytest.mark.parametrize("name", REPORTS)
def test_every_table_of_measured_times_tells_n_and_no_tail_of_few(
    name: str, tmp_path: Path
) -> None:
    run = Run(name, quick=False, command="")
    REPORTS[name](run, 99)
    assert set(tails(run, 99)) <= {TOO_FEW}
    measured = [table for table in run.tables if not table.title.startswith("Replies of all chats")]
    for table in measured:
        told = [column for column in table.columns if column == "n" or column.startswith("n,")]
        assert told, table.title
        assert 99 in table.rows[0]
    run.finish(tmp_path)
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert 99 in {kept["n"] for kept in record["samples"].values()}


@pytest.mark.parametrize("name", ["overhead", "faults", "routing"])
def test_tails_of_enough_samples_are_shown(name: str) -> None:
    run = Run(name, quick=False, command="")
    REPORTS[name](run, 500)
    shown = tails(run, 500)
    assert shown
    assert TOO_FEW not in shown


def test_the_lossy_table_counts_replies_of_all_rounds() -> None:
    run = Run("lossy", quick=True, command="")
    of_lossy(run, 3)
    (table,) = run.tables
    assert table.columns[:3] == ("threshold", "n", "tokens/s")
    assert {row[1] for row in table.rows} == {12}
    assert table.rows[0][2] == "6.00 (6.00 to 6.00)"


def test_faults_have_a_core_size_on_the_real_engine() -> None:
    core, full = (faults_bench.plans(quick=False, core=it) for it in (True, False))
    plan, ahead = core.values()
    assert plan.shape.engine == ahead.shape.engine == "openvino"
    assert (plan.replica_kills, plan.router_kills, plan.edge_kills) == (12, 4, 4)
    assert ahead.shape.kv_ahead and ahead.replica_kills == 12
    assert set(full) == {"fake", *core}
