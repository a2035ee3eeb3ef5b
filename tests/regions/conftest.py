"""The mesh over hosts that the tests share: each leaves it whole. `make cluster-test` runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.regions.mesh import RegionalMesh, running

NUM_TOKENS = 60
CALL_MS = 200.0
"""Long enough for a reply to be under way while something happens."""


@pytest.fixture(scope="session")
def references() -> list[ReferenceChat]:
    return make_reference_chats("fake", NUM_TOKENS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mesh() -> AsyncIterator[RegionalMesh]:
    async with running(CALL_MS) as mesh:
        yield mesh
