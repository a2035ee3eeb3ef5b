"""A process stands still (SIGSTOP) until the others have closed its connections, and goes on while
chats run: no chat ends with an error, every text is exact, nobody who was well is put away."""

from __future__ import annotations

import pytest

from bench.faults.fleet import running
from bench.faults.load import Load, make_jobs
from bench.faults.scenarios import Trouble
from bench.faults.stalls import SHAPE, services_of

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

STOP_S = 12.0
"""gRPC closes a connection whose other end is silent for 10 s."""


@pytest.mark.parametrize("role", ["router", "edge", "inference"])
async def test_who_stands_still_costs_a_pause_and_blames_nobody(role: str) -> None:
    async with running(SHAPE) as fleet:
        async with Load(fleet, make_jobs("fake", num_tokens=150), 8) as load:
            trouble = Trouble(fleet, load)
            faults = await trouble.stop(services_of(fleet, role), 1, STOP_S, pause_s=1.0)
        num_put_away = await fleet.num_put_away()
    tally = load.tally
    assert faults.hit, "chats were in the middle of their replies"
    assert tally.errors == []
    assert (tally.lost, tally.doubled, tally.inexact) == (0, 0, 0)
    assert num_put_away == 0
