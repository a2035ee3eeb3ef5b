"""The parts of `bench.arrivals` against a real replica process, on an engine that costs nothing."""

from __future__ import annotations

import pytest

from bench.arrivals import open_loop, prefill
from bench.arrivals.requests import RequestFactory
from bench.harness import Run
from bench.harness import replica as module
from bench.harness.replica import replica
from bench.peers.lineup import OPENVINO, OURS_DRAFTS
from outrider.models.vocabulary import Vocabulary

pytestmark = [pytest.mark.e2e, pytest.mark.model]

FAKE = {"engine": "fake", "warm_up_rows": 0}
SIZE = open_loop.Size(rounds=1, num_requests=4, num_capacity=8, shares=(0.5,))


async def test_every_part_measures_a_replica(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "ARRIVALS_S", (0.0, 0.01))
    monkeypatch.setattr(prefill, "LEAST_S", 0.5)
    monkeypatch.setattr(module, "SETTINGS", {**module.SETTINGS, **FAKE})
    run = Run("arrivals", quick=True, command="")
    factory = RequestFactory(vocabulary)
    async with replica(vocabulary, threads=1) as ours:
        before = await ours.engine_time()
        measured = await open_loop.measure({OURS_DRAFTS: ours, OPENVINO: ours}, factory, SIZE)
        open_loop.report(run, measured)
        prefill.report(run, await prefill.measure({OURS_DRAFTS: ours}, factory, rounds=1))
        time = (await ours.engine_time()).since(before)
    under_load, disturbed = run.tables
    assert [row[3] for row in under_load.rows] == [4, 4, 4, 4] and len(disturbed.rows) == 1
    assert time.num_ticks > before.num_ticks == 0
    assert min(time.overhead_ms, time.busy_s, time.idle_s) > 0
    assert 0 < time.busy_share < 1
