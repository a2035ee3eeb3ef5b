"""The whole bench, on real processes with an engine that costs nothing."""

from __future__ import annotations

import os

import pytest

from bench.harness import Run
from bench.wan.measure import measure, tree
from bench.wan.plan import SCHEMES, CellGroup, Size
from bench.wan.report import add_tables
from bench.wan.results import Results, Selection
from bench.wan.testbed import RegionEngine, running_testbed

SMALL = Size(
    rounds=1,
    parts=(
        CellGroup(1, 0.0, (0.0, 40.0), dict.fromkeys(SCHEMES, 1)),
        CellGroup(2, 0.0, (0.0,), dict.fromkeys(SCHEMES, 2)),
    ),
    max_tokens=6,
)


@pytest.mark.e2e
async def test_every_scheme_gives_the_same_replies_and_pays_the_distance() -> None:
    cores, before = os.sched_getaffinity(0), set(tree(os.getpid()))
    try:
        opened = running_testbed(
            RegionEngine("fake"), SMALL.schemes, edge_settings=["drafter.model=none"]
        )
        async with opened as bed:
            started = set(tree(os.getpid())) - before
            measured = await measure(bed, SMALL, limit_s=60.0)
    finally:
        os.sched_setaffinity(0, cores)
    assert len(started) >= 8
    used = {core for place in measured.placements for core in place.cores}
    assert used == cores, "all cores are used, and each process is told"
    assert not started & set(tree(os.getpid())), "a process was left behind"
    results = Results(measured.batches)
    for where in (Selection(0.0, 1), Selection(0.0, 2), Selection(40.0, 1)):
        replies = [[s.ids for s in results.samples(scheme, where)] for scheme in SCHEMES]
        assert all(reply == replies[0] for reply in replies)
    for scheme in SCHEMES:
        assert all(s.committed_ms >= 50 for s in results.samples(scheme, Selection(40.0)))
        assert all(s.committed_ms >= 10 for s in results.samples(scheme, Selection(0.0)))
    assert all(batch.up.num_bytes > 0 < batch.down.num_bytes for batch in measured.batches)
    with_words = [s for batch in measured.batches for s in batch.samples if s.num_chars]
    assert with_words and all(s.word is not None for s in with_words)
    run = Run("wan", quick=True, command="")
    add_tables(run, results, measured, {scheme.name: "1 of 1" for scheme in SCHEMES})
    assert all(table.rows for table in run.tables[:3])
