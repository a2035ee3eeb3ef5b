"""What a replica says of itself, as far as placement may reckon with it."""

from __future__ import annotations

import math

import pytest

from outrider.rpc import make_channel
from outrider.v1 import inference_pb2
from services.router.fleet.replica import PrefillLimits
from services.router.upstream import watches
from tests.router.replica import Replica, running_replicas


@pytest.mark.parametrize("absurd", [math.inf, -math.inf, math.nan, -1.0, 1e30])
async def test_absurd_costs_leave_predictions_numbers(absurd: float) -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watches.loads(channel, min_interval_ms=1, max_interval_ms=1000)
        assert (await anext(reports)).fixed_ms == 10.0
        replica.report(fixed_ms=absurd, row_ms=absurd)
        load = await anext(reports)
    for cost_ms in (load.fixed_ms, load.row_ms):
        assert 0.0 <= cost_ms <= 1e6


async def test_a_report_says_whom_an_overloaded_replica_takes() -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watches.loads(channel, min_interval_ms=1, max_interval_ms=1000)
        first = await anext(reports)
        assert not first.queues_low and not first.refuses_sessions
        replica.report(overload_level=3, queues_low=True)
        load = await anext(reports)
        assert load.queues_low and not load.refuses_sessions
        replica.report(overload_level=4, queues_low=True, refuses_sessions=True)
        assert (await anext(reports)).refuses_sessions


def test_prefill_limits_are_read_and_absurd_ones_bounded() -> None:
    assert watches.prefill_limits(inference_pb2.GetModelResponse()) is None
    told = inference_pb2.PrefillLimits(
        max_chunk_tokens=256, min_chunk_tokens=12, max_call_ms=40, max_stretch=1.5, min_stretch=1.25
    )
    found = watches.prefill_limits(inference_pb2.GetModelResponse(prefill_limits=told))
    assert found == PrefillLimits(256, 12, 40.0, 1.5, 1.25)
    told = inference_pb2.PrefillLimits(max_call_ms=math.nan, max_stretch=math.inf, min_stretch=-1)
    found = watches.prefill_limits(inference_pb2.GetModelResponse(prefill_limits=told))
    assert found == PrefillLimits(1, 1, 0.0, 1e6, 0.0)
