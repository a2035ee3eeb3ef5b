"""Two clients of a whole mesh, real but for its engine: what one can read of the other there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.client import Accepted, ChatResult, Client, Message, SamplingParams, ToolCall
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import RateLimitedError
from outrider.models.tools import check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.pool.config import TokenizationConfig
from outrider.v1 import router_pb2
from services.edge.access.identity import TenantConfig
from tests.api_keys import key_of, text_of, write_keys
from tests.edge.integration.held_threads import HeldThreads
from tests.mesh import Mesh, running_mesh
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


QUESTION = "The lighthouse keeper counted seven ships, and told nobody of the eighth. " * 3
NUM_TOKENS = 40
_HITS = "outrider_tokenization_cache_hits_total"
STRANGERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "tenants": ({"key": text_of("first")}, {"key": text_of("second")}),
    "users": ({"key": text_of("apart"), "user": "ann"}, {"key": text_of("apart"), "user": "bob"}),
}
"""Two clients each that share nothing."""


async def num_hits(mesh: Mesh, role: str) -> float:
    """Texts of users whose ids this service had."""
    families = text_string_to_metric_families((await mesh.pages())[role])
    samples = [it for family in families for it in family.samples if it.name == _HITS]
    return sum(it.value for it in samples if it.labels["content"] == "user")


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("strangers", STRANGERS)
async def test_what_one_said_is_new_when_another_says_it(
    words: Vocabulary, tmp_path: Path, strangers: str, thin: bool
) -> None:
    """Blocks of the cache, drafts and token ids. The edge tokenizes, or the region for a `thin`
    chat. The engine's replies are noise: none is guessed that was not seen before."""
    write_keys(tmp_path / "keys.json", *map(key_of, ("first", "second", "apart")))
    tenants = (TenantConfig("first"), TenantConfig("second"), TenantConfig("apart", trust="user"))
    noise = FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=0.0)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    role, texts = "tokenizer" if thin else "edge", set()
    one, other = STRANGERS[strangers]
    async with (
        running_mesh(
            words,
            tmp_path,
            tokenizers=1,
            engine=lambda: FakeEngine(noise),
            edge={"anonymous": False, "tenants": tenants},
        ) as mesh,
        mesh.client(**one) as first,
        mesh.client(**other) as second,
    ):
        for client in (first, second):
            for is_known in (False, True):
                before = await num_hits(mesh, role)
                async with client.chat(
                    [Message("user", QUESTION)], sampling=sampling, thin=thin
                ) as chat:
                    result = await chat.result()
                texts.add(result.text)
                usage, stats = result.usage, result.speculation_stats
                num_right = max(stats.right_tokens, usage.accepted_tokens)
                assert (usage.cached_tokens > 0) is is_known, "blocks of the cache"
                assert (num_right > 0) is is_known, "drafts"
                assert await num_hits(mesh, role) == before + is_known, "token ids"
    assert len(texts) == 1, "whatever was known, the text is the same"


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def test_nothing_of_a_text_is_written(words: Vocabulary, tmp_path: Path) -> None:
    """Not by an edge, a router, a tokenizer or a replica; which tokens often follow each other is
    in no file as text."""
    write_keys(tmp_path / "keys.json", key_of("first"))
    edge = {"cache_salt_key": "a secret of the edges", "tenants": (TenantConfig("first"),)}
    async with running_mesh(words, tmp_path, tokenizers=1, edge=edge) as mesh:
        async with mesh.client(key=text_of("first")) as client:
            for thin in (False, True):
                told = [await cached(client, SECRET, thin=thin) for _ in range(4)]
                assert told[-1] > 0
            typing = client.typing()
            typing.update(SECRET)
            typing.close()
    written = contents(tmp_path)
    assert written and not [file for file, data in written.items() if b"Miriam" in data]


LONG_CHAT = [Message(("user", "assistant")[n % 2], f"{n}: {QUESTION[:90]}") for n in range(9)]
"""Of so many messages that the event loop does not look whether it knows them."""


async def test_a_prompt_that_takes_too_long_is_tokenized_in_the_region_and_finds_its_prefix(
    words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its way is that of every chat, not a hash of its text: to the replica that has its prefix.
    Ids and limits are the same, too."""
    num_tokens = len(words.encode_chat(LONG_CHAT))
    write_keys(tmp_path / "keys.json", *map(key_of, ("first", "few")))
    few = TenantConfig("few", input_tokens_per_minute=num_tokens + 1)
    tokenization = TokenizationConfig(threads=1, max_queued=0, bail_out_ms=50.0)
    edge = {"anonymous": False, "tenants": (few,), "tokenization": tokenization}
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    async with (
        running_mesh(words, tmp_path, tokenizers=1, replicas=2, edge=edge) as mesh,
        mesh.client(key=text_of("first")) as unlimited,
        mesh.client(key=text_of("few")) as limited,
    ):
        (it,) = mesh.edges

        async def ask(client: Client = unlimited) -> ChatResult:
            async with client.chat(LONG_CHAT, sampling=sampling) as chat:
                return await chat.result()

        def counted(tier: str) -> float:
            return it.sample("outrider_tokenization_seconds_count", tier=tier)

        first = await ask()
        num_left = counted("region")
        with HeldThreads(it.model.encoder, monkeypatch) as held:
            late = await ask()
            assert held.num_entered.acquire(timeout=60.0), "a thread had it"
            pool = it.model.tokenization
            monkeypatch.setattr(pool, "_policy", replace(pool._policy, max_local_chars=0))
            refused = await ask()
            await ask(limited)
            await ask(limited)  # there was one token left
            with pytest.raises(RateLimitedError, match="input"):
                await ask(limited)
        for result in (late, refused):
            assert (result.text, result.ids) == (first.text, first.ids)
            assert result.replica == first.replica
            assert result.usage.prompt_tokens == num_tokens == first.usage.prompt_tokens
            assert result.usage.cached_tokens > num_tokens // 2
        assert (counted("region") - num_left, counted("refused")) == (1, 3)


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
    markers = [vocabulary.token_id(it) for it in ("[TOOL_CALLS]", "[ARGS]", "[INST]")]
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
