"""A replica, a router and an edge are killed (SIGKILL) while chats run: every text is exact."""

from __future__ import annotations

import pytest

from bench.faults.fleet import Shape, running
from bench.faults.load import Load, make_jobs
from bench.faults.scenarios import Trouble

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


async def test_kills_cost_a_pause_and_no_byte() -> None:
    jobs = make_jobs("fake", num_tokens=150)[:4]
    async with running(Shape("fake", 2, 0, 2, 2)) as fleet, Load(fleet, jobs, 4) as load:
        trouble = Trouble(fleet, load)
        faults = [
            await trouble.kill_replicas(1),
            await trouble.kill(fleet.routers, 1),
            await trouble.kill(fleet.edges, 1),
        ]
    assert all(fault.hit for fault in faults), "chats were in the middle of their replies"
    tally = load.tally
    assert tally.errors == []
    assert (tally.lost, tally.doubled, tally.inexact) == (0, 0, 0)
    assert tally.tokens >= 150 * 4
