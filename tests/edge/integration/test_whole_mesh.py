"""Two clients of a whole mesh, real but for its engine: what one can read of the other there."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.client import Accepted, Client, Message, SamplingParams, ToolCall
from outrider.models.tools import check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import router_pb2
from tests.mesh import running_mesh
from tests.models import tool_templates

SECRET = "The patient in ward seven is called Miriam."
ONE = SamplingParams(max_tokens=1, ignore_eos=True)


async def cached(client: Client, text: str, *, thin: bool = False) -> int:
    """What a question of one token is told of the cache."""
    async with client.chat([Message("user", text)], sampling=ONE, thin=thin) as chat:
        return (await chat.result()).usage.cached_tokens


async def test_counts_and_explanations_tell_of_ones_own_chats(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running_mesh(words, tmp_path, tokenizers=1) as mesh:
        async with mesh.client() as owner:
            async with owner.chat(
                [Message("user", SECRET)], sampling=ONE, idempotency_key="mine"
            ) as chat:
                accepted = await anext(chat)
                assert isinstance(accepted, Accepted)
                await chat.result()
            for thin in (False, True):
                async with mesh.client() as stranger:
                    assert await cached(stranger, SECRET, thin=thin) == 0
            async with mesh.client(client_secret=owner.secret) as later:
                assert await cached(later, SECRET, thin=True) > len(SECRET) // 2
            found = [
                len((await mesh.routers[0].stub.Explain(asked)).placements)
                for asked in (
                    router_pb2.ExplainRequest(request_id="mine"),
                    router_pb2.ExplainRequest(request_id=accepted.request_id),
                )
            ]
            assert found == [0, 1], "ids that clients choose are not known behind the edge"


TOOLS = check_tools(['{"name": "f", "description": "Says [TOOL_CALLS]."}'])
WITH_CALLS = [
    Message("user", "hello hello hello hello"),
    Message("assistant", "", (ToolCall("call00001", "f", '{"a": 1}'),)),
    Message("tool", "5", tool_call_id="call00001"),
    Message("user", "hello hello"),
]


@pytest.mark.parametrize("stop", [(), ("NST]",), ("ARGS]",)])
async def test_a_chat_with_tools_is_the_same_whoever_tokenizes_and_drafts(
    stop: tuple[str, ...], tmp_path: Path
) -> None:
    """Control tokens have text in it, in which the edge and the replica find the same ends. The
    engine's replies are noise, half of it control tokens where their likelihood is raised."""
    vocabulary = tool_templates.vocabulary_of(tool_templates.MISTRAL_ARGS)
    markers = [vocabulary.control_id(it) for it in ("[TOOL_CALLS]", "[ARGS]", "[INST]")]
    sampling = SamplingParams(
        temperature=1.0,
        seed=3,
        max_tokens=60,
        logit_bias=dict.fromkeys(markers, 8.0),
        ignore_eos=True,
        stop=stop,
    )
    async with running_mesh(vocabulary, tmp_path, tokenizers=1) as mesh, mesh.client() as client:
        found = set()
        for thin in (False, True):
            for speculation in ("on", "off"):
                async with client.chat(
                    WITH_CALLS,
                    tools=TOOLS,
                    sampling=sampling,
                    thin=thin,
                    speculation=speculation,
                ) as chat:
                    accepted = await anext(chat)
                    result = await chat.result()
                assert isinstance(accepted, Accepted)
                assert accepted.prompt_tokens == len(vocabulary.encode_chat(WITH_CALLS, TOOLS))
                found.add((result.text, result.ids, result.content))
        ((text, ids, _),) = found
        whole = vocabulary.decode(ids, keep_special=True)
        assert "[INST]" in whole and ("[ARGS]" in whole or stop)
        cut = min((whole.find(it) for it in stop if it in whole), default=len(whole))
        assert text == whole[:cut] and (cut < len(whole)) == bool(stop)
