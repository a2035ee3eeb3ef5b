"""Replicas compute with PyTorch, and one is killed (SIGKILL) while chats run: every text equals
PyTorch's own reference."""

from __future__ import annotations

import pytest

from bench.faults.chats import ChatLoad, make_reference_chats
from bench.faults.fleet import MeshShape, running
from bench.faults.injection import FaultInjector

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.model, pytest.mark.timeout(600)]


async def test_a_killed_replica_costs_a_pause_and_no_byte() -> None:
    references = make_reference_chats("torch", num_tokens=48)[:2]
    async with (
        running(MeshShape("torch", 2, 0, 1, 1)) as fleet,
        ChatLoad(fleet, references, 2) as load,
    ):
        fault = await FaultInjector(fleet, load).kill_replicas(1)
    assert fault.hit, "chats were in the middle of their replies"
    totals = load.totals
    assert totals.errors == []
    assert (totals.lost, totals.doubled, totals.inexact) == (0, 0, 0)
    assert totals.tokens >= 48 * 2
