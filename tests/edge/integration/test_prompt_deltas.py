"""Chats that come back send what is new of their prompts: over real gRPC, with the same text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.client import Client, Message, SamplingParams
from outrider.models.vocabulary import Vocabulary
from tests.edge.integration.running import Running, running
from tests.edge.integration.trouble import said
from tests.mesh import MODEL, Mesh, running_mesh

TOKENS = "outrider_router_prompt_delta_tokens"
LONG = "Tell me of the river, the bridge, the mill, and of all the people who lived beside it. "


async def counted(mesh: Mesh) -> dict[str, float]:
    """What the router says of deltas, by the label of its samples, or the family."""
    return {
        sample.labels.get("prefix", family.name): sample.value
        for family in await mesh.scraped()
        if family.name in ("outrider_router_prompt_deltas", TOKENS)
        for sample in family.samples
        if sample.name.endswith("_total")
    }


async def turns(
    client: Client, num_turns: int, *, max_tokens: int = 60, thin: bool = False
) -> list[str]:
    """The replies of one conversation."""
    messages = [Message("system", LONG)]
    for turn in range(num_turns):
        messages.append(Message("user", f"{turn} and then?"))
        sampling = SamplingParams(max_tokens=max_tokens, seed=turn)
        messages.append(
            Message(
                "assistant",
                await said(client.chat(messages, model=MODEL, sampling=sampling, thin=thin)),
            )
        )
    return [message.content for message in messages if message.role == "assistant"]


async def test_a_conversation_sends_each_part_of_it_once(words: Vocabulary, tmp_path: Path) -> None:
    async with running_mesh(words, tmp_path, tokenizers=1) as mesh:
        async with mesh.client() as client:
            replies = await turns(client, 5, max_tokens=12)
        async with mesh.client() as stranger:
            # The region tokenizes: every prompt is whole.
            assert await turns(stranger, 5, max_tokens=12, thin=True) == replies
        async with asyncio.timeout(60):
            # Metrics are flushed ten times a second, and tell nobody.
            while (found := await counted(mesh)).get("known", 0) < 4:
                await asyncio.sleep(0.05)
        assert found["known"] == 4 and "unknown" not in found
        assert found[TOKENS] > 4 * len(words.encode(LONG))


@pytest.mark.edge(reply="Once there was a mill.")
async def test_a_router_that_forgot_is_sent_the_whole(mesh: Running, client: Client) -> None:
    replies = await turns(client, 3)
    assert replies == ["Once there was a mill."] * 3
    assert mesh.region.num_asked == 2
    prompts = [mesh.region.prompt(opening) for opening in mesh.region.opened]
    assert prompts[2][: len(prompts[0])] == prompts[0]


async def test_strangers_and_edges_that_may_not_send_whole_prompts(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, "Once.") as mesh:
        for _ in range(2):
            async with mesh.client() as client:
                await turns(client, 1)
        assert mesh.region.num_asked == 0
    for setting in ({"trust": "chat"}, {"prompt_memory_bytes": 0}):
        async with (
            running(words, tmp_path, "Once.", **setting) as mesh,
            mesh.client() as client,
        ):
            await turns(client, 2)
            assert mesh.region.num_asked == 0
            assert not any(opening.ids.remember for opening in mesh.region.opened)
            await mesh.settled()
