"""Chats go to the replica that has KV memory for them, in a real mesh with two replicas of which
one has little."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from outrider.client import ChatResult, Client, Message, SamplingParams
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import router_pb2
from tests.mesh import running_mesh

BLOCK_TOKENS = 16
CHAT_BLOCKS = 11
"""For the longest prompt and reply, and a part of a block."""
MAX_TOKENS = 96
MAX_PROMPT_TOKENS = CHAT_BLOCKS * BLOCK_TOKENS - MAX_TOKENS - BLOCK_TOKENS
SMALL_CHATS, LARGE_CHATS = 2, 5
"""Chats for which replicas "a" and "b" have memory."""
NUM_CHATS = 6


async def ask(client: Client, number: int) -> ChatResult:
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    message = Message("user", f"{number} is which number?")
    async with client.chat([message], sampling=sampling, speculation="off") as chat:
        return await chat.result()


async def test_chats_that_fit_in_the_memory_of_all_replicas_wait_for_none(
    words: Vocabulary, tmp_path: Path
) -> None:
    num_blocks = iter((SMALL_CHATS * CHAT_BLOCKS, LARGE_CHATS * CHAT_BLOCKS))

    def engine() -> FakeEngine:
        # No chat is over before the last one is placed.
        options = FakeOptions(words.size, BLOCK_TOKENS, next(num_blocks), min_rows=2, call_ms=20.0)
        return FakeEngine(options)

    async with running_mesh(words, tmp_path, replicas=2, engine=engine) as mesh:
        async with mesh.client() as client:
            results = await asyncio.gather(*(ask(client, number) for number in range(NUM_CHATS)))
        placements = await mesh.routers[0].stub.Explain(router_pb2.ExplainRequest())
    assert max(result.usage.prompt_tokens for result in results) <= MAX_PROMPT_TOKENS
    assert [result.usage.completion_tokens for result in results] == [MAX_TOKENS] * NUM_CHATS
    placed = Counter(result.replica for result in results)
    assert placed["a"] <= SMALL_CHATS and placed["b"] <= LARGE_CHATS
    assert len(placements.placements) == NUM_CHATS
    assert not any(placement.chosen.memory_ms for placement in placements.placements)
