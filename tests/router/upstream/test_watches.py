"""What a replica says of itself, as far as placement may reckon with it."""

from __future__ import annotations

import math

import pytest

from outrider.rpc import make_channel
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
