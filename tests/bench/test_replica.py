"""The parts of `bench.arrivals` against a real replica process, on an engine that costs nothing."""

from __future__ import annotations

import pytest

from bench.arrivals import open_loop, prefill, priorities
from bench.arrivals.requests import RequestFactory
from bench.harness import Run
from bench.systems.base import Work
from bench.systems.lineup import OPENVINO, OURS_DRAFTS
from bench.systems.replica import replica
from outrider.models.vocabulary import Vocabulary

pytestmark = [pytest.mark.e2e, pytest.mark.model]

FAKE = {"engine": "fake", "warm_up_rows": 0}
SIZE = open_loop.Size(rounds=1, num_requests=4, num_capacity=8, shares=(0.5,))


async def test_every_part_measures_a_replica(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "ARRIVALS_S", (0.0, 0.01))
    monkeypatch.setattr(priorities, "HIGH_BEGIN_S", 0.0)
    monkeypatch.setattr(priorities, "HIGH_INTERVAL_S", 0.02)
    run = Run("arrivals", quick=True, command="")
    factory = RequestFactory(vocabulary)
    async with replica(vocabulary, threads=1, settings=FAKE) as ours:
        before = await ours.engine_time()
        measured = await open_loop.measure({OURS_DRAFTS: ours, OPENVINO: ours}, factory, SIZE)
        open_loop.report(run, measured)
        prefill.report(run, await prefill.measure({OURS_DRAFTS: ours}, factory, rounds=1))
        capacity = measured.capacity[OURS_DRAFTS]
        mixed = await priorities.measure(ours, factory, min(capacity, 50), rounds=1, num_low=8)
        again = await ours.run(Work(tuple(request for request, _ in mixed.low)))
        time = (await ours.engine_time()).since(before)
    priorities.report(run, mixed, list(again.replies))
    assert run.figures["low_exact"] == "8 of 8"
    for key in ("high_ttft_ratio", "itl_p99_ratio_under_prefill", "equal_rate_ttft_p95_ratio"):
        assert isinstance(run.figures[key], float)
    assert time.num_ticks > before.num_ticks == 0
    assert min(time.overhead_ms, time.busy_s, time.idle_s) > 0
    assert 0 < time.busy_share < 1
