"""A replica, a router and an edge are killed (SIGKILL) while chats run: every text is exact."""

from __future__ import annotations

import pytest

from bench.faults.chats import ChatLoad, make_reference_chats
from bench.faults.fleet import MeshShape, running
from bench.faults.injection import FaultInjector

ATTACHED = 'outrider_direct_attached_sessions_total{result="attached"}'

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


@pytest.mark.parametrize("way", ["through the routers", "direct"])
async def test_kills_cost_a_pause_and_no_byte(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "direct":
        monkeypatch.setenv("OUTRIDER_EDGE_DIRECT_PATH", "true")
        monkeypatch.setenv("OUTRIDER_ROUTER_DIRECT_PATH_REGIONS", "*")
    references = make_reference_chats("fake", num_tokens=150)[:4]
    async with (
        running(MeshShape("fake", 2, 0, 2, 2)) as fleet,
        ChatLoad(fleet, references, 4) as load,
    ):
        injector = FaultInjector(fleet, load)
        faults = [
            await injector.kill_replicas(1),
            await injector.kill(fleet.routers, 1),
            await injector.kill(fleet.edges, 1),
        ]
        pages = [await replica.metrics() for replica in fleet.replicas]
    num_direct = sum(ATTACHED in page for page in pages)
    assert (num_direct > 0) == (way == "direct")
    assert all(fault.hit for fault in faults), "chats were in the middle of their replies"
    totals = load.totals
    assert totals.errors == []
    assert (totals.lost, totals.doubled, totals.inexact) == (0, 0, 0)
    assert totals.tokens >= 150 * 4
