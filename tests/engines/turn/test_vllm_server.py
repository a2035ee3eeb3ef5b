"""A real vLLM server keeps the contract of turn engines. `make vllm` installs it; where it is not,
these tests are left out (conftest.py), and test_openai_server.py runs the contract on a record.

With OUTRIDER_RECORD_EXCHANGE=1 in the environment that record is made anew.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from bench.peers.vllm import vllm_server
from outrider.engines.turn.base import TurnEngine
from outrider.engines.turn.openai_server.config import OpenAiServerOptions
from outrider.engines.turn.openai_server.opening import open_server
from outrider.models.vocabulary import Vocabulary
from tests.engines.turn.contract import TurnEngineContract
from tests.engines.turn.exchange import recording
from tests.engines.turn.servers import nobody_there

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(vocabulary: Vocabulary) -> AsyncIterator[TurnEngine]:
    async with AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(vllm_server())
        exchange = None
        if os.environ.get("OUTRIDER_RECORD_EXCHANGE"):
            port = int(url.rpartition(":")[2])
            url, exchange = await stack.enter_async_context(recording(port))
        engine = await open_server(OpenAiServerOptions(url=url, max_sessions=32), vocabulary)
        yield engine
        await engine.close()
        if exchange is not None:
            exchange.save()


class TestVllmServer(TurnEngineContract):
    @pytest.fixture
    def lost_engine(self) -> TurnEngine:
        return nobody_there()
