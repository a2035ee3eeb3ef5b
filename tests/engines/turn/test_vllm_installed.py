"""The contract on vLLM itself, where it is installed (`make vllm`)."""

from __future__ import annotations

import multiprocessing
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import TurnEngine
from outrider.engines.turn.checkpoint import read_checkpoint
from outrider.engines.turn.vllm.api import import_api
from outrider.engines.turn.vllm.config import VllmOptions
from outrider.engines.turn.vllm.loading import start_engine
from outrider.engines.turn.vllm.prefixes import EventSocket
from tests.engines.turn.contract import TurnEngineContract
from tests.engines.turn.vllm_model import MAX_CONTEXT_TOKENS, write_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),  # torch and vLLM warn while they are imported
]
_KV_BYTES = 1 << 26


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TurnEngine]:
    folder = write_model(tmp_path_factory.mktemp("model"))
    options = VllmOptions(model_dir=folder, dtype="float32", max_num_seqs=8, enforce_eager=True)
    config = EngineConfig(
        engine="vllm", kv_bytes=_KV_BYTES, max_context_tokens=MAX_CONTEXT_TOKENS, vllm=options
    )
    checkpoint = read_checkpoint(folder, "vllm.model_dir")
    engine = await start_engine(import_api(), config, checkpoint, EventSocket())
    yield engine
    await engine.close()


class TestVllm(TurnEngineContract):
    @pytest.fixture
    def lost_engine(self, engine: TurnEngine) -> TurnEngine:
        """The last test of the contract has it: the engine does not come back."""
        for child in multiprocessing.active_children():
            child.kill()
        return engine
