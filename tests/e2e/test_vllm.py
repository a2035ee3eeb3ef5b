"""A real vLLM server behind the mesh (`make vllm`): OpenAI's API at an edge, 32 chats, and replicas
that die."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench.peers.vllm import vllm_server
from bench.stock_engine import KillTotals, StockMesh, kills, stock_mesh, tokens_per_s

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made() -> AsyncIterator[StockMesh]:
    async with vllm_server() as (_, url), stock_mesh(url) as running:
        yield running


async def test_thirty_two_chats_over_openais_api(made: StockMesh) -> None:
    _, errors = await tokens_per_s(made.http_port, 32, 16)
    assert errors == []


async def test_killed_replicas_lose_no_token_and_moves_are_labelled(made: StockMesh) -> None:
    totals: KillTotals = await kills(made, 2, 4, 48)
    assert totals.errors == [] and totals.hit > 0
    assert (totals.lost, totals.doubled, totals.wrong_labels) == (0, 0, 0)
