"""A router before a near replica and a far one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.router.replica import Replica, RouterUnderTest, running_replicas, running_router


@pytest.fixture
async def near() -> AsyncIterator[Replica]:
    replica = Replica("near", "us")
    async with running_replicas(replica):
        yield replica


@pytest.fixture
async def far() -> AsyncIterator[Replica]:
    replica = Replica("far", "eu")
    async with running_replicas(replica):
        yield replica


@pytest.fixture
async def router(near: Replica, far: Replica) -> AsyncIterator[RouterUnderTest]:
    """A router whose near replica wins by 100 ms: the far one reports a queue."""
    async with running_router(near, far) as router:
        far.report(fixed_ms=10.0, row_ms=1.0, queued_prompt_tokens=100, max_sessions=64)
        async with asyncio.timeout(60):
            while (await router.replicas())["far"].predicted_wait_ms < 100.0:
                await asyncio.sleep(0.02)
        yield router
