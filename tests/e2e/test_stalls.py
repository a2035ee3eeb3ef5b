"""A process is stopped (SIGSTOP) until the others have closed its connections, and goes on while
chats run: no chat ends with an error, every text is exact, no healthy peer is quarantined."""

from __future__ import annotations

import pytest

from bench.faults.chats import ChatLoad, make_reference_chats
from bench.faults.fleet import MeshShape, running
from bench.faults.injection import FaultInjector

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

STOP_S = 12.0
"""gRPC closes a connection whose other end is silent for 10 s."""
SHAPE = MeshShape(
    "fake",
    num_near=2,
    num_far=0,
    num_routers=1,
    num_edges=1,
    num_tokenizers=2,
    max_sessions=64,
    fake_call_ms=5.0,
    quarantine=True,
)
"""Without a spare router or edge to move to."""


async def test_a_stopped_process_costs_a_pause_and_nobody_is_quarantined() -> None:
    references = make_reference_chats("fake", num_tokens=150)
    async with running(SHAPE) as fleet:
        async with ChatLoad(fleet, references, 8) as load:
            injector = FaultInjector(fleet, load)
            faults = [
                await injector.stop(services, 1, STOP_S, pause_s=1.0)
                for services in (fleet.routers, fleet.edges, fleet.replicas)
            ]
        num_quarantined = await fleet.num_quarantined()
    totals = load.totals
    assert all(fault.hit for fault in faults), "chats were in the middle of their replies"
    assert totals.errors == []
    assert (totals.lost, totals.doubled, totals.inexact) == (0, 0, 0)
    assert num_quarantined == 0
