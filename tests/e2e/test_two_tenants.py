"""Two tenants say the same to a mesh of real processes: the second gets nothing of what the first
one's chats left in it, and both get the exact text."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.client import Client, Committed, Message, connect
from outrider.errors import UnknownChatError
from outrider.sampling.params import SamplingParams

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

SETTINGS = (
    "edge.anonymous=no",
    "edge.drafter.model=none",
    "inference.max_fixed_rows=2",
    "inference.warm_up_rows=16",
)
PROMPT = "The lighthouse keeper counted seven ships that night, and told nobody of the eighth. " * 3
NUM_TOKENS = 40
NUM_QUESTIONS = 6
MODEL = "tiny-one"
_HITS = "outrider_tokenization_cache_hits_total"


@dataclass(frozen=True, slots=True)
class Tenants:
    """A mesh, keys of its tenants, and what its model says."""

    mesh: LocalMesh
    first: str
    second: str
    apart: str
    """Of a tenant whose users share nothing."""
    texts: Sequence[str]
    """Of the questions, in their order."""

    def metric(self, service: str, name: str, **labels: str) -> float:
        """What a service says of itself; the sum over labels that are not named."""
        row = self.mesh.state.service(service)
        url = f"http://{self.mesh.state.host}:{row['admin_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = text_string_to_metric_families(answer.read().decode())
            return sum(
                sample.value
                for family in found
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )


@pytest.fixture(scope="module")
def tenants(
    tinies: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    model = str(tinies[0])
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    asked = [question(number)[0].content for number in range(NUM_QUESTIONS)]
    prompts.write_text("\n".join(map(json.dumps, asked)), "utf-8")
    done = outrider(
        *("reference", "--prompt-file", str(prompts), "--max-tokens", str(NUM_TOKENS), "--json"),
        *("--model", model),
    )
    texts = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    assert len(set(texts)) == NUM_QUESTIONS
    config = prompts.with_name("mesh.toml")
    config.write_text('[edge]\ntenants = [{name = "apart", trust = "user"}]\n', "utf-8")
    with local_mesh(
        regions="here", settings=SETTINGS, model=model, http=True, config=config
    ) as mesh:
        first, second, apart = (_key(mesh, name) for name in ("first", "second", "apart"))
        yield Tenants(mesh, first, second, apart, texts)


def _key(mesh: LocalMesh, tenant: str) -> str:
    state = ("--state-dir", str(mesh.state_dir))
    made = outrider("keys", "create", tenant, "--tenant", tenant, "--json", *state)
    return str(json.loads(made.stdout)["key"])


def question(number: int) -> list[Message]:
    """Another one for another number, of several blocks of the cache."""
    return [Message("user", f"{number}. {PROMPT}")]


@dataclass(frozen=True, slots=True)
class Said:
    """One reply."""

    text: str
    cached_tokens: int
    known_tokens: int
    """Drafts, the edge's and the replica's, that were right: few where the reply was never seen.
    None is rare, since replies repeat phrases of their prompt, of each other and of themselves."""


async def said(client: Client, number: int, **options: Any) -> Said:
    """A chat with a native client."""
    sampling = SamplingParams(max_tokens=NUM_TOKENS)
    async with client.chat(question(number), sampling=sampling, **options) as chat:
        result = await chat.result()
    usage, stats = result.usage, result.speculation_stats
    return Said(result.text, usage.cached_tokens, max(stats.right_tokens, usage.accepted_tokens))


def check_new(reply: Said, text: str) -> None:
    """Of a chat whose like was not seen before."""
    assert reply.text == text
    assert reply.cached_tokens == 0
    assert reply.known_tokens < NUM_TOKENS // 3


def check_known(reply: Said, text: str) -> None:
    """Of a chat that was seen before: so there was something to be shared."""
    assert reply.text == text
    assert reply.cached_tokens > 0
    assert reply.known_tokens > NUM_TOKENS // 2


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("strangers", ["tenants", "users"])
async def test_what_one_said_is_new_when_another_says_it(
    tenants: Tenants, strangers: str, thin: bool
) -> None:
    """Blocks of the cache, drafts and token ids, of two tenants and of two users of one whose
    users are apart. The edge tokenizes, or the region for a `thin` chat."""
    host, port = tenants.mesh.edge
    ca = tenants.mesh.ca
    if strangers == "tenants":
        keys, users = (tenants.first, tenants.second), ("", "")
    else:
        keys, users = (tenants.apart, tenants.apart), ("ann", "bob")
    number = 1 + 2 * thin + (strangers == "users")
    text = tenants.texts[number]
    tokenizer = "tokenizer" if thin else "edge"

    def num_hits() -> float:
        return tenants.metric(tokenizer, _HITS, content="user")

    async with (
        connect(host, port, ca=ca, key=keys[0], user=users[0]) as one,
        connect(host, port, ca=ca, key=keys[1], user=users[1]) as other,
    ):
        for client in (one, other):
            before = num_hits()
            check_new(await said(client, number, thin=thin), text)
            assert num_hits() == before, "its token ids were made anew"
            check_known(await said(client, number, thin=thin), text)
            assert num_hits() == before + 1


async def test_nobody_goes_on_with_a_chat_of_another_tenant(tenants: Tenants) -> None:
    host, port = tenants.mesh.edge
    ca = tenants.mesh.ca
    async with (
        connect(host, port, ca=ca, key=tenants.first) as first,
        connect(host, port, ca=ca, key=tenants.second, client_secret=first.secret) as second,
    ):
        sampling = SamplingParams(max_tokens=NUM_TOKENS)
        async with first.chat(question(0), sampling=sampling, idempotency_key="k") as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    break
            for _ in range(2):  # while it runs, and when it is over
                async with second.resume(chat.resume_token) as stolen:
                    with pytest.raises(UnknownChatError):
                        await stolen.result()
                assert (await chat.result()).text == tenants.texts[0], "undisturbed"
        async with second.chat(question(0), sampling=sampling, idempotency_key="k") as chat:
            result = await chat.result()
        assert result.text == tenants.texts[0]
        assert result.usage.cached_tokens == 0, "the reply is its own"


async def test_over_http_too(tenants: Tenants) -> None:
    """The first tenant's reply that is kept under a key has tokens from the cache; who is told that
    it has none was not given that reply."""
    number = 5
    url = f"http://{tenants.mesh.state.host}:{tenants.mesh.state.service('edge')['http_port']}/v1"

    async def ask(key: str, idempotency_key: str, last_event_id: str = "") -> Streamed:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            headers = {"Idempotency-Key": idempotency_key}
            if last_event_id:
                headers["Last-Event-ID"] = last_event_id
            answer = await client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": question(number)[0].content}],
                max_completion_tokens=NUM_TOKENS,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_headers=headers,
            )
            return _streamed((await answer.http_response.aread()).decode())

    text = tenants.texts[number]
    first = await ask(tenants.first, "one")
    assert (first.text, first.cached_tokens) == (text, 0)
    second = await ask(tenants.first, "two")
    assert second.text == text and second.cached_tokens > 0
    middle = second.ids[len(second.ids) // 2]
    rest = await ask(tenants.first, "two", middle)
    assert text.endswith(rest.text) and rest.text != text, "the tenant itself goes on"
    assert rest.cached_tokens == second.cached_tokens
    stranger = await ask(tenants.second, "two", middle)
    assert stranger.cached_tokens == 0
    again = await ask(tenants.second, "two")
    assert (again.text, again.cached_tokens) == (text, 0), "its own, kept under its own key"


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed reply."""

    text: str
    cached_tokens: int
    ids: list[str]
    """Of its events."""


def _streamed(stream: str) -> Streamed:
    lines = stream.splitlines()
    data = [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    chunks = [json.loads(it) for it in data]
    deltas = [it["choices"][0]["delta"].get("content") or "" for it in chunks if it["choices"]]
    (usage,) = [it["usage"] for it in chunks if it.get("usage")]
    ids = [line[4:] for line in lines if line.startswith("id: ")]
    return Streamed("".join(deltas), usage["prompt_tokens_details"]["cached_tokens"], ids)
