"""A replica, a router and an edge are killed (SIGKILL) while chats run: every text is exact."""

from __future__ import annotations

import pytest

from bench.faults.chats import ChatLoad, make_reference_chats
from bench.faults.fleet import MeshShape, running
from bench.faults.injection import FaultInjector

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


async def test_kills_cost_a_pause_and_no_byte() -> None:
    references = make_reference_chats("fake", num_tokens=150)[:4]
    async with (
        running(MeshShape("fake", 2, 0, 2, 2, fake_call_ms=5.0)) as fleet,
        ChatLoad(fleet, references, 4) as load,
    ):
        injector = FaultInjector(fleet, load)
        faults = [
            await injector.kill_replicas(1),
            await injector.kill(fleet.routers, 1),
            await injector.kill(fleet.edges, 1),
        ]
    assert all(fault.hit for fault in faults), "chats were in the middle of their replies"
    totals = load.totals
    assert totals.errors == []
    assert (totals.lost, totals.doubled, totals.inexact) == (0, 0, 0)
    assert totals.tokens >= 150 * 4
