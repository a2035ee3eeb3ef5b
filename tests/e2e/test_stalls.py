"""A process is stopped (SIGSTOP) until the others have closed its connections, and goes on while
chats run: no chat ends with an error, every text is exact, no healthy peer is quarantined."""

from __future__ import annotations

import pytest

from bench.faults.chats import ChatLoad, make_reference_chats
from bench.faults.fleet import running
from bench.faults.injection import FaultInjector
from bench.faults.stalls import SHAPE, services_of

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

STOP_S = 12.0
"""gRPC closes a connection whose other end is silent for 10 s."""


@pytest.mark.parametrize("role", ["router", "edge", "inference"])
async def test_a_stopped_process_costs_a_pause_and_nobody_is_quarantined(role: str) -> None:
    async with running(SHAPE) as fleet:
        async with ChatLoad(fleet, make_reference_chats("fake", num_tokens=150), 8) as load:
            injector = FaultInjector(fleet, load)
            faults = await injector.stop(services_of(fleet, role), 1, STOP_S, pause_s=1.0)
        num_quarantined = await fleet.num_quarantined()
    totals = load.totals
    assert faults.hit, "chats were in the middle of their replies"
    assert totals.errors == []
    assert (totals.lost, totals.doubled, totals.inexact) == (0, 0, 0)
    assert num_quarantined == 0
