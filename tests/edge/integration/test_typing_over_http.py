"""Messages that a page tells of while they are typed: POST /v1/chat/typing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient

from outrider.errors import OverloadedError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from services.edge.http.typed_text_table import TextBeingTyped, TypedTexts
from services.edge.session.ahead_plan import AheadPolicy
from tests.api_keys import key_of, text_of
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running

AHEAD = AheadPolicy(
    max_tokens=12, min_tokens=12, min_pause_ms=1.0, max_pause_ms=20.0, min_wait_ms=0.0
)
pytestmark = pytest.mark.edge(ahead=AHEAD, http=HttpConfig(port=0))
TEXT = "Which of these trains leaves first?"
SYSTEM = {"role": "system", "content": "Be brief."}
ID = "typed-on-a-page-00001"
REQUEST: dict[str, Any] = {"model": "small", "messages": [SYSTEM], "temperature": 0.8}
CHAT: dict[str, Any] = {
    **REQUEST,
    "messages": [SYSTEM, {"role": "user", "content": TEXT}],
    "typing_id": ID,
    "return_metrics": True,
}


def begun(mesh: Running) -> list[Any]:
    return [it for it in mesh.region.finished if it.open.background]


async def tell(
    caller: AsyncClient, text: str = TEXT, sequence: int = 0, **fields: Any
) -> dict[str, Any]:
    body = {"id": ID, "text": text, "sequence": sequence, **fields}
    answer = await caller.post("/v1/chat/typing", json=body)
    found: dict[str, Any] = answer.json()
    return found | {"status": answer.status_code}


async def typed(mesh: Running, caller: AsyncClient, **request: Any) -> int:
    """Type the text; returns the seed once the beginning of a reply is here."""
    before = len(begun(mesh))
    told = await tell(caller, TEXT[:9], request={**REQUEST, **request})
    assert told["status"] == 200 and told["expires_in_s"] > 0
    await tell(caller, sequence=1)
    whole = f"{TEXT}<|im_end|>".encode()
    token_bytes = mesh.region.vocabulary.token_bytes
    await eventually(
        lambda: (
            any(
                whole in b"".join(map(token_bytes, mesh.region.prompt(it.open)))
                for it in begun(mesh)[before:]
            )
            and not mesh.num_region_sessions
        )
    )
    return int(told["seed"])


async def test_the_chat_has_what_was_begun(mesh: Running, caller: AsyncClient) -> None:
    seed = await typed(mesh, caller)
    answer = (await caller.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["choices"][0]["message"]["content"] == REPLY
    assert answer["choices"][0]["outrider"]["seed"] == seed, "fixed when it was begun"
    assert answer["metrics"]["ahead_tokens"] == 12
    assert mesh.region.opened[-1].resume.count == 12
    again = (await caller.post("/v1/chat/completions", json=CHAT)).json()
    assert "ahead_tokens" not in again["metrics"], "one chat has it"


async def test_a_streamed_chat_begins_with_it(mesh: Running, caller: AsyncClient) -> None:
    await typed(mesh, caller)
    mesh.region.gate.clear()
    body = {**CHAT, "stream": True}
    text = ""
    async with caller.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content", "")
            if text:
                mesh.region.gate.set()
    assert text == REPLY


async def test_with_an_idempotency_key_the_seed_is_named(
    mesh: Running, caller: AsyncClient
) -> None:
    """Another edge has to answer the same request alike, and knows of no typing."""
    seed = await typed(mesh, caller)
    headers = {"idempotency-key": "one"}
    body = {**CHAT, "seed": seed}
    answer = (await caller.post("/v1/chat/completions", json=body, headers=headers)).json()
    assert answer["metrics"]["ahead_tokens"] == 12
    await typed(mesh, caller)
    headers = {"idempotency-key": "two"}
    answer = (await caller.post("/v1/chat/completions", json=CHAT, headers=headers)).json()
    assert "ahead_tokens" not in answer["metrics"]


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"temperature": 0.7},
        {"messages": [{"role": "user", "content": TEXT}]},
        {"typing_id": "another-one-0000000000"},
        {"n": 2},
        {"logprobs": True},
    ],
)
async def test_other_requests_have_none_of_it(
    mesh: Running, caller: AsyncClient, other: dict[str, Any]
) -> None:
    await typed(mesh, caller)
    answer = (await caller.post("/v1/chat/completions", json={**CHAT, **other})).json()
    assert answer["choices"][0]["message"]["content"] == REPLY
    assert all(it.resume.count == 0 for it in mesh.region.opened)


async def test_another_tenant_has_none_of_it(mesh: Running, caller: AsyncClient) -> None:
    await typed(mesh, caller)
    async with plain(mesh, text_of("bolt")) as other:
        answer = (await other.post("/v1/chat/completions", json=CHAT)).json()
        assert "ahead_tokens" not in answer["metrics"]
        assert (await tell(other))["status"] == 404, "nor does it know the id"
    answer = (await caller.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["metrics"]["ahead_tokens"] == 12


@pytest.mark.edge(tenants=(TenantConfig("acme", trust="user"),), keys=(key_of("acme"),))
async def test_another_user_of_the_key_has_none_of_it(mesh: Running, caller: AsyncClient) -> None:
    for user, num_ahead in (("ann", 12), ("bob", None)):
        await typed(mesh, caller, user="ann")
        answer = (await caller.post("/v1/chat/completions", json={**CHAT, "user": user})).json()
        assert answer["metrics"].get("ahead_tokens") == num_ahead


async def test_whoever_knows_the_id_alone_changes_and_takes_nothing(mesh: Running) -> None:
    async with plain(mesh, "") as caller, plain(mesh, "") as stranger:
        caller.headers["x-outrider-client"] = "aa" * 16
        stranger.headers["x-outrider-client"] = "bb" * 16
        await typed(mesh, caller)
        assert (await tell(stranger, "Something else?", sequence=9))["status"] == 404
        answer = (await stranger.post("/v1/chat/completions", json=CHAT)).json()
        assert "ahead_tokens" not in answer["metrics"]
        answer = (await caller.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["metrics"]["ahead_tokens"] == 12


async def test_an_emptied_text_takes_it_back(mesh: Running, caller: AsyncClient) -> None:
    await typed(mesh, caller)
    assert (await tell(caller, "", sequence=2))["status"] == 200
    answer = (await caller.post("/v1/chat/completions", json=CHAT)).json()
    assert "ahead_tokens" not in answer["metrics"]


async def test_what_is_overtaken_is_ignored(mesh: Running, caller: AsyncClient) -> None:
    await typed(mesh, caller)
    assert (await tell(caller, "older", sequence=1))["status"] == 200
    answer = (await caller.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["metrics"]["ahead_tokens"] == 12


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"id": "short"}, 400),
        ({"id": "a" * 65}, 400),
        ({"id": "ä" * 20}, 400),
        ({}, 404),
        ({"request": {"model": "nosuch", "messages": []}}, 404),
        ({"request": {"model": "small", "messages": "none"}}, 400),
        ({"request": {"model": "small", "messages": [], "logprobs": True}}, 400),
        ({"request": {"model": "small", "messages": [], "n": 2}}, 400),
        ({"text": 5}, 400),
    ],
)
async def test_bad_requests(
    mesh: Running, caller: AsyncClient, fields: dict[str, Any], status: int
) -> None:
    assert (await tell(caller, **fields))["status"] == status
    assert not mesh.region.opened and not len(mesh.http.frontend.typed_texts)


@pytest.mark.parametrize("settings", [{"ahead": AheadPolicy(max_tokens=0)}, {"tenants": ()}])
async def test_an_edge_that_begins_none_says_so(
    words: Vocabulary, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if "tenants" in settings:
        settings = {"tenants": (TenantConfig("acme", trust="chat"),)}
    async with serving_http(words, tmp_path, **settings) as mesh, plain(mesh) as caller:
        assert (await tell(caller, request=REQUEST))["status"] == 403
        assert not mesh.region.opened


DISTANT = {"added_rtt_ms": 250}


@pytest.mark.edge(added_distance=True)
async def test_an_added_distance_holds_before_enter_too(mesh: Running, caller: AsyncClient) -> None:
    """What is begun takes as long to come as it would from there."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    await typed(mesh, caller, **DISTANT)
    assert loop.time() - since >= DISTANT["added_rtt_ms"] / 1e3
    answer = (await caller.post("/v1/chat/completions", json={**CHAT, **DISTANT})).json()
    assert answer["metrics"]["ahead_tokens"] == 12
    await typed(mesh, caller)
    answer = (await caller.post("/v1/chat/completions", json={**CHAT, **DISTANT})).json()
    assert "ahead_tokens" not in answer["metrics"], "it came from nearby"


async def test_where_no_distance_is_added_none_is_typed_over(
    mesh: Running, caller: AsyncClient
) -> None:
    assert (await tell(caller, request={**REQUEST, **DISTANT}))["status"] == 403
    assert not mesh.region.opened


async def test_too_much_is_refused(words: Vocabulary, tmp_path: Path) -> None:
    async with (
        serving_http(words, tmp_path, ahead=AHEAD, typed_bytes_per_s=1.0) as mesh,
        plain(mesh) as caller,
    ):
        assert (await tell(caller, request=REQUEST))["status"] == 429
        assert not mesh.region.opened


async def test_texts_are_bounded_for_an_address_and_in_all(mesh: Running) -> None:
    table = TypedTexts(max_texts=3, max_per_address=2)
    made = [_text("a"), _text("a"), _text("b")]
    for number, text in enumerate(made):
        table.add("acme", f"id-{number}", text)
    with pytest.raises(OverloadedError, match="at this address"):
        table.add("acme", "id-3", _text("a"))
    with pytest.raises(OverloadedError, match="send this one as it is"):
        table.add("acme", "id-3", _text("c"))
    assert len(table) == 3
    assert table.take("acme", "id-0") is None and len(table) == 2
    table.add("acme", "id-3", _text("a"))
    table.close()
    assert not len(table)


def _text(address: str) -> TextBeingTyped:
    class Nothing:
        closed = False

        def feed(self, item: object) -> None:
            self.closed = True

        def hand_over(self) -> None:
            self.closed = True

    prefill: Any = Nothing()
    return TextBeingTyped(prefill, 1, 0, address)
