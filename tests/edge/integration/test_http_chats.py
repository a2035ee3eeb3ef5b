"""Chats over HTTP, by every route that answers them: their text, their ends, their failures, and
clients that come and go."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path

import openai
import pytest
from anthropic import AsyncAnthropic
from httpx2 import AsyncClient

from outrider.errors import OverloadedError
from outrider.models.catalog import ModelCatalog
from outrider.models.chat import Message
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.template_variables import check_variables
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.pool.config import TokenizationConfig
from services.edge.access.identity import TenantConfig
from services.edge.http import paced_stream
from services.edge.http.config import HttpConfig
from services.edge.http.exchange import Exchange
from services.edge.http.http2 import Http2
from services.edge.http.stream import RunningReply
from tests.edge.http.asking import data_of, events_of
from tests.edge.integration.access_matrix import DOORS, as_bearer
from tests.edge.integration.chat_routes import (
    CHAT,
    COMPLETION,
    MESSAGE,
    RESPONSE,
    USER,
    ChatRoute,
    over_chat_routes,
)
from tests.edge.integration.held_threads import HeldThreads
from tests.edge.integration.http_client import (
    KEY,
    RawRequest,
    official,
    plain,
    serving_http,
    url,
)
from tests.edge.integration.region import Region, small_vocabulary
from tests.edge.integration.running import REPLY, Running
from tests.mesh import catalog_of
from tests.models import tool_templates

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


@over_chat_routes
@pytest.mark.parametrize("stream", [False, True])
async def test_the_apis_own_client_reads_the_reply(
    route: ChatRoute, stream: bool, mesh: Running
) -> None:
    told = await route.official(mesh, stream)
    assert (told.text, told.num_tokens, told.end) == (REPLY, len(REPLY) + 1, route.end)
    assert (told.num_pieces > 1) is stream
    assert len(mesh.region.opened) == 1, "to count tokens opens nothing"


@over_chat_routes
@pytest.mark.edge(tokenization=TokenizationConfig(threads=1, bail_out_ms=20.0))
async def test_a_prompt_that_takes_too_long_is_tokenized_in_the_region(
    route: ChatRoute, mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = mesh.model.tokenization
    monkeypatch.setattr(pool, "_policy", replace(pool._policy, max_inline_chars=0))
    with HeldThreads(mesh.model.encoder, monkeypatch) as held:
        if not (is_chat := route is not COMPLETION):
            held.is_open.set()  # a completion's text is tokenized here alone
        async with DOORS["HTTP/1.1"](mesh) as ask:
            whole = await ask("POST", route.path, route.body, as_bearer(KEY))
            assert route.text(json.loads(whole.body)) == REPLY
            stream = await ask("POST", route.path, route.streamed, as_bearer(KEY))
            assert route.text_of(stream.body) == REPLY
    assert [bool(it.messages.messages) for it in mesh.region.opened] == [is_chat] * 2


@pytest.mark.parametrize("door", DOORS)
async def test_the_reply_is_the_same_by_every_door(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        for route in (CHAT, COMPLETION, MESSAGE, RESPONSE):
            whole = await ask("POST", route.path, route.body, as_bearer(KEY))
            assert route.text(json.loads(whole.body)) == REPLY
            stream = await ask("POST", route.path, route.streamed, as_bearer(KEY))
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert route.text_of(stream.body) == REPLY
            assert stream.body.endswith(b"data: [DONE]\n\n") is (route in (CHAT, COMPLETION))


@pytest.mark.edge(http=HttpConfig(port=0, tls="on"))
async def test_over_http2_and_tls(mesh: Running) -> None:
    trusted = ssl.create_default_context(cafile=str(mesh.ca))
    async with plain(mesh, verify=trusted, http2=True, http1=False) as client:
        many = [client.post(CHAT.path, json=CHAT.body) for _ in range(8)]
        for answer in await asyncio.gather(*many):
            assert answer.http_version == "HTTP/2"
            assert answer.headers["alt-svc"].startswith(f'h3=":{mesh.ports.main}"')
            assert CHAT.text(answer.json()) == REPLY
        await mesh.settled()


@pytest.mark.edge(http=HttpConfig(port=0, tls="on"))
@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
async def test_the_tokens_of_a_stream_wake_no_task(
    version: str, mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first: then a task waits for the end, and tokens are pushed past it."""
    num_writes = 0
    write = Exchange.write

    async def noted(self: Exchange, data: bytes, *, more: bool) -> None:
        nonlocal num_writes
        num_writes += 1
        await write(self, data, more=more)

    monkeypatch.setattr(Exchange, "write", noted)
    region = mesh.region
    region.hold(3)
    trusted = ssl.create_default_context(cafile=str(mesh.ca))
    is_second = version == "HTTP/2"
    had, num_stops = b"", 0
    async with (
        plain(mesh, verify=trusted, http2=is_second, http1=not is_second) as client,
        client.stream("POST", CHAT.path, json=CHAT.streamed) as answer,
    ):
        assert answer.http_version == version
        async for piece in answer.aiter_bytes():
            had += piece
            if len(CHAT.text_of(had)) >= region.hold_at and not region.gate.is_set():
                num_stops += 1
                (reply,) = mesh.http.frontend.replies
                await eventually(partial(_waits, reply))
                region.gate.set()  # the session goes on...
                if region.hold_at + 3 < len(REPLY):
                    region.hold(region.hold_at + 3)  # ...to here
    assert CHAT.text_of(had) == REPLY and num_stops > 3
    assert num_writes <= 3, "the first, the last, and what says that it was the last"


@pytest.mark.edge(http=HttpConfig(port=0, tls="on", comment_s=600.0))
async def test_tokens_that_find_no_room_at_the_end_of_their_turn_are_sent_all_the_same(
    mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP/2 they wait until then for those of other streams, which may fill the socket."""
    num_pushed = 0
    push, room = Http2.push, paced_stream._MAX_WAITING_BYTES

    def crowded(self: Http2, stream_id: int, data: bytes) -> bool:
        nonlocal num_pushed
        is_sent = push(self, stream_id, data)
        if is_sent:
            num_pushed += 1
            _set_room(-1)
            asyncio.get_running_loop().call_soon(_set_room, room)  # behind Http2's own
        return is_sent

    def _set_room(num_bytes: int) -> None:
        monkeypatch.setattr(paced_stream, "_MAX_WAITING_BYTES", num_bytes)

    monkeypatch.setattr(Http2, "push", crowded)
    region = mesh.region
    region.hold(3)
    trusted = ssl.create_default_context(cafile=str(mesh.ca))
    had = b""
    async with (
        plain(mesh, verify=trusted, http2=True, http1=False) as client,
        client.stream("POST", CHAT.path, json=CHAT.streamed) as answer,
    ):
        async for piece in answer.aiter_bytes():
            had += piece
            if len(CHAT.text_of(had)) >= region.hold_at and not region.gate.is_set():
                (reply,) = mesh.http.frontend.replies
                await eventually(partial(_waits, reply))
                region.gate.set()  # nothing follows what comes now...
                if region.hold_at + 3 < len(REPLY):
                    region.hold(region.hold_at + 3)  # ...until it has arrived
    assert CHAT.text_of(had) == REPLY and num_pushed > 3
    await mesh.settled()


def _waits(reply: RunningReply) -> bool:
    return reply._waiter is not None


async def test_what_is_asked_for_reaches_the_region(
    words: Vocabulary, mesh: Running, caller: AsyncClient
) -> None:
    body = {**CHAT.body, "seed": 5, "max_completion_tokens": 99}
    prediction = {"type": "content", "content": REPLY}
    answer = await caller.post(CHAT.path, json=body | {"prediction": prediction})
    assert answer.json()["choices"][0]["outrider"]["seed"] == 5
    (opened,) = mesh.region.opened
    assert (opened.sampling.seed, opened.sampling.max_tokens) == (5, 99)
    assert opened.prediction.count == len(words.encode(REPLY))


async def test_completions_go_on_a_prompt_as_it_is(
    words: Vocabulary, mesh: Running, caller: AsyncClient
) -> None:
    ids: list[int] = []
    for segment in words.raw_segments(COMPLETION.body["prompt"]):
        is_token = segment.is_token
        ids += [words.token_id(segment.text)] if is_token else words.encode(segment.text)
    for prompt in (COMPLETION.body["prompt"], ids):
        await caller.post(COMPLETION.path, json={**COMPLETION.body, "prompt": prompt})
    prompts = {mesh.region.prompt(it) for it in mesh.region.opened}
    assert prompts == {tuple(ids)}, "text and ids are one prompt"
    beyond = await caller.post(COMPLETION.path, json={**COMPLETION.body, "prompt": [10**6]})
    assert beyond.status_code == 400
    assert "outside the vocabulary" in beyond.json()["error"]["message"]


async def test_completions_begin_with_the_models_begin_token(tmp_path: Path) -> None:
    words = small_vocabulary(adds_bos=True)
    begin = words.token_id("<|im_start|>")
    asked = ["a b", "<|im_start|>a b", words.encode("a b")]
    async with serving_http(words, tmp_path) as mesh, plain(mesh) as client:
        for prompt in asked:
            answer = await client.post(COMPLETION.path, json={"prompt": prompt, "max_tokens": 99})
            assert answer.status_code == 200, answer.text
        prompts = {mesh.region.prompt(it) for it in mesh.region.opened}
        assert prompts == {(begin, *words.encode("a b")), tuple(words.encode("a b"))}
        body = {"prompt": "a b", "max_tokens": 99, "add_special_tokens": False}
        answer = await client.post(COMPLETION.path, json=body)
        assert answer.status_code == 200, answer.text
        assert mesh.region.prompt(mesh.region.opened[-1]) == tuple(words.encode("a b"))
        await mesh.settled()


@pytest.mark.model
async def test_a_client_may_tokenize_a_chat_itself(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """Ids that it made with the model's own tokenizer, sent as a completion, are the prompt that
    the edge makes of the same messages, and what `/tokenize` says; none can be of no token."""
    rng = random.Random(7)
    pieces = ("word ", "é", "猫", "🚂", "\r\n", "  ", "\u0301", "\u200d", "<|im_end|>", "7", "'re")
    chats = [
        [
            Message(role, "".join(rng.choices(pieces, k=rng.randint(1, 60))))
            for role in ("system", "user", "assistant", "user")[: rng.choice((2, 4))]
        ]
        for _ in range(24)
    ]
    async with serving_http(vocabulary, tmp_path) as mesh, plain(mesh) as client:
        for chat in chats:
            messages = [{"role": it.role, "content": it.content} for it in chat]
            ids = vocabulary.encode_chat(chat)
            told = await client.post("/tokenize", json={"messages": messages})
            assert told.json()["tokens"] == ids
            by_text = await client.post(CHAT.path, json={"messages": messages, "seed": 1})
            by_ids = await client.post(COMPLETION.path, json={"prompt": ids, "seed": 1})
            assert (by_text.status_code, by_ids.status_code) == (200, 200)
            assert [mesh.region.prompt(it) for it in mesh.region.opened[-2:]] == [tuple(ids)] * 2
        num_opened = len(mesh.region.opened)
        size, most = vocabulary.size, mesh.model.limits.max_context_tokens
        for bad in ([size], [-1], [1.5], [True], [2**70], ["a", 1], [1] * most):
            refused = await client.post(COMPLETION.path, json={"prompt": bad})
            assert refused.status_code == 400, bad[:2]
            assert refused.json()["error"]["message"]
        assert len(mesh.region.opened) == num_opened, "no region is asked"
        await mesh.settled()


async def test_a_reply_continues_what_the_assistant_began(tmp_path: Path) -> None:
    """The prompt ends with it, whichever API asks; what counts tokens counts these."""
    words = tool_templates.vocabulary_of(tool_templates.PLAIN)
    begun = Message("assistant", "It is <|im_end|> because")
    messages = [USER, {"role": begun.role, "content": begun.content}]
    continued = {"messages": messages, "continue_final_message": True}
    variables = check_variables({"continue_final_message": True})
    ids = words.encode_chat([Message("user", USER["content"]), begun], (), variables)
    async with serving_http(words, tmp_path) as mesh, plain(mesh) as client:
        for route, body in (
            (MESSAGE, dict(MESSAGE.body) | {"messages": messages}),
            (CHAT, continued),
            (CHAT, continued | {"add_generation_prompt": False}),
            (CHAT, {"messages": messages, "chat_template_kwargs": json.loads(variables)}),
        ):
            assert (await client.post(route.path, json=body)).status_code == 200
            assert mesh.region.prompt(mesh.region.opened[-1]) == tuple(ids)
        told = await client.post("/tokenize", json=continued)
        assert told.json()["tokens"] == ids
        asked = {"model": "small", "messages": messages}
        counted = await client.post("/v1/messages/count_tokens", json=asked)
        assert counted.json() == {"input_tokens": len(ids)}
        num_opened = len(mesh.region.opened)
        for path, bad in (
            (CHAT.path, {"messages": [USER], "continue_final_message": True}),
            (CHAT.path, continued | {"add_generation_prompt": True}),
            (CHAT.path, {"messages": messages, "add_generation_prompt": False}),
            (CHAT.path, continued | {"response_format": {"type": "json_object"}}),
            ("/tokenize", {"messages": messages, "add_generation_prompt": False}),
            ("/tokenize", {"messages": [USER], "continue_final_message": True}),
        ):
            answer = await client.post(path, json=bad)
            assert answer.status_code == 400, (path, bad)
            assert answer.json()["error"]["param"]
        assert len(mesh.region.opened) == num_opened
        await mesh.settled()


async def test_a_response_is_gone_on_with_by_sending_it_again(caller: AsyncClient) -> None:
    said = (await caller.post(RESPONSE.path, json=RESPONSE.body)).json()["output"]
    again = await caller.post(RESPONSE.path, json={"model": "small", "input": [USER, *said, USER]})
    assert again.json()["status"] == "completed"


@over_chat_routes
async def test_the_first_tokens_come_before_the_others_are_made(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.hold(3)
    had = b""
    async with caller.stream("POST", route.path, json=route.streamed) as answer:
        async for piece in answer.aiter_bytes():
            had += piece
            if route.text_of(had) == REPLY[:3]:
                mesh.region.gate.set()
    assert route.text_of(had) == REPLY


@pytest.mark.parametrize("route", [CHAT, COMPLETION], ids=str)
async def test_choices_come_interleaved_and_each_is_whole(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    stream = await caller.post(route.path, json=route.streamed | {"n": 3})
    texts = ["", "", ""]
    events = [json.loads(it["data"]) for it in events_of(stream.content)[:-1]]
    for event in events:
        texts[event["choices"][0]["index"]] += route.delta(event)
    assert texts == [REPLY] * 3
    assert len({it.sampling.seed for it in mesh.region.opened}) == 3
    whole = (await caller.post(route.path, json={**route.body, "n": 2})).json()
    assert [route.text({"choices": [it]}) for it in whole["choices"]] == [REPLY] * 2


@pytest.mark.parametrize("route", [CHAT, COMPLETION, MESSAGE], ids=str)
async def test_stop_strings_end_the_text(
    words: Vocabulary, route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.reply = tuple(words.encode("a reply of"))  # a replica ends there
    asked = {**route.body, route.stop: ["nothing", "of"]}
    answer = (await caller.post(route.path, json=asked)).json()
    (opened,) = mesh.region.opened
    assert list(opened.sampling.stop) == ["nothing", "of"]
    assert route.text(answer) == "a reply "
    stream = await caller.post(route.path, json=asked | {"stream": True})
    assert route.text_of(stream.content) == "a reply "
    if route is MESSAGE:
        ended = ("stop_sequence", "of")
        assert (answer["stop_reason"], answer["stop_sequence"]) == ended
        assert b'"stop_reason":"stop_sequence","stop_sequence":"of"' in stream.content


@pytest.mark.edge(models=("small", "org/large"), anonymous_models=("small",))
async def test_models_are_those_that_the_key_may_use(mesh: Running) -> None:
    async with official(mesh) as client:
        listed = await client.models.list()
        assert [it.id for it in listed.data] == ["small", "org/large"]
        model = await client.models.retrieve("org/large")
        told = model.model_extra
        assert told is not None and 0 < told["default_max_tokens"] < told["context_window"]
        async with AsyncAnthropic(base_url=url(mesh), api_key=KEY, max_retries=0) as claude:
            of_claude = [it async for it in claude.models.list()]
            assert [it.id for it in of_claude] == ["small", "org/large"]
            assert [it.display_name for it in of_claude] == ["small", "org/large"]
            assert of_claude[0].type == "model" and of_claude[0].created_at.tzinfo is not None
            assert of_claude[0].max_input_tokens == told["context_window"]
        async with plain(mesh, key="") as anonymous:
            answer = (await anonymous.get("/v1/models")).json()
            assert [it["id"] for it in answer["data"]] == ["small"]
            assert (answer["has_more"], answer["first_id"], answer["last_id"]) == (
                *(False, "small", "small"),
            )
            of_codex = await anonymous.get("/v1/models?client_version=0.145.0")
            assert of_codex.json() == answer | {"models": []}
            hidden = await anonymous.get("/v1/models/org/large")
            unknown = await anonymous.get("/v1/models/org/other")
            assert hidden.status_code == unknown.status_code == 404
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nope", messages=[USER])
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_is_too_long_is_told_where_clients_look_for_it(
    streamed: bool, mesh: Running, caller: AsyncClient
) -> None:
    (model,) = (await caller.get("/v1/models")).json()["data"]
    longest = model["context_window"] - 1
    long = "a " * model["context_window"]
    messages = [{"role": "user", "content": long}]
    for route in (CHAT, MESSAGE, RESPONSE):
        field = {"input": long} if route is RESPONSE else {"messages": messages}
        body = {**route.body, **field, "stream": streamed}
        answer = await caller.post(route.path, json=body)
        if route is RESPONSE and streamed:
            assert answer.status_code == 200
            (*_, failed) = data_of(answer.content)
            error = failed["response"]["error"]
        else:
            assert answer.status_code == 400
            error = answer.json()["error"]
        start = "prompt is too long: " if route is MESSAGE else "this model's maximum context "
        assert error["message"].startswith(start)
        assert f"{longest} maximum" in error["message"] or f"most {longest} fit" in error["message"]
        assert error.get("code", "") == ("" if route is MESSAGE else "context_length_exceeded")
    assert not mesh.region.opened


OWN = SuggestedSampling(temperature=0.2, top_k=20, top_p=0.9)
COOL = ModelCatalog((replace(spec, sampling=OWN) for spec in catalog_of("small")), "small")


@over_chat_routes
@pytest.mark.edge(catalog=COOL)
async def test_what_a_request_leaves_out_is_the_models_own(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    (listed,) = (await caller.get("/v1/models")).json()["data"]
    assert listed["default_sampling_params"] == OWN.values()
    for body, temperature in ((route.body, 0.2), ({**route.body, "temperature": 0.7}, 0.7)):
        await caller.post(route.path, json=body)
        found = mesh.region.opened[-1].sampling
        assert (found.top_k, found.top_p) == pytest.approx((20, 0.9))
        assert found.temperature == pytest.approx(temperature)


@pytest.mark.edge(http=HttpConfig(port=0, default_max_tokens=5))
async def test_a_reply_without_a_limit_of_its_own_gets_the_edges(
    words: Vocabulary, mesh: Running, caller: AsyncClient
) -> None:
    (listed,) = (await caller.get("/v1/models")).json()["data"]
    assert listed["default_max_tokens"] == 5
    mesh.region.reply = tuple(words.encode("a"))
    chat = {"messages": [USER]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/responses", {"model": "small", "input": "hello"}),
        ("/v1/chat/completions", {**chat, "max_tokens": 9}),
    ):
        assert (await caller.post(path, json=body)).status_code == 200
    assert [opened.sampling.max_tokens for opened in mesh.region.opened] == [5, 5, 9]


# Failures, and limits.


@over_chat_routes
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_a_status_of_its_own(
    route: ChatRoute, stream: bool, mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.error = OverloadedError("the queue is full", retry_delay_ms=1500)
    answer = await caller.post(route.path, json={**route.body, "stream": stream})
    assert answer.status_code == (529 if route is MESSAGE else 429)
    headers = answer.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1500")
    assert headers["x-request-id"]
    kind = "overloaded_error" if route is MESSAGE else "rate_limit_error"
    assert answer.json()["error"]["type"] == kind


@over_chat_routes
@pytest.mark.edge(reopen_s=0.2)
async def test_a_failure_after_that_ends_the_stream_with_an_error(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.stop_after = 4
    had, is_cut = b"", False
    async with caller.stream("POST", route.path, json=route.streamed) as answer:
        async for piece in answer.aiter_bytes():
            had += piece
            if not is_cut and route.text_of(had):
                is_cut = True
                await mesh.edge.upstream.stop()
    said = [json.loads(it["data"]) for it in events_of(had) if it["data"] != "[DONE]"]
    assert route.failure(said[-1])
    assert not any(map(route.failure, said[:-1]))


@over_chat_routes
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tenant_is_told_what_is_left_of_its_limits(
    words: Vocabulary, tmp_path: Path, route: ChatRoute, stream: bool
) -> None:
    limited = TenantConfig("acme", requests_per_minute=2, output_tokens_per_minute=10_000)
    tokens = "output-tokens" if route is MESSAGE else "tokens"
    async with (
        serving_http(words, tmp_path, REPLY, tenants=(limited, TenantConfig("bolt"))) as mesh,
        plain(mesh) as client,
    ):
        left = []
        for status in (200, 200, 429):
            answer = await client.post(route.path, json={**route.body, "stream": stream})
            assert answer.status_code == status
            headers = answer.headers
            assert headers[route.rates.format(what="limit", of="requests")] == "2"
            assert headers[route.rates.format(what="limit", of=tokens)] == "10000"
            left.append(headers[route.rates.format(what="remaining", of="requests")])
            told = {name.partition("ratelimit")[0] for name in headers if "ratelimit" in name}
            assert told == {route.rates.partition("ratelimit")[0]}, "in the words of its API"
        assert left == ["1", "0", "0"]
        assert int(headers["retry-after-ms"]) > 1000
        assert 1 <= int(headers["retry-after"]) <= 60
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert len(mesh.region.opened) == 2
        await mesh.settled()


# Clients that come and go.


@over_chat_routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop_after", [0, 4])
async def test_a_client_that_leaves_cancels_its_chats(
    route: ChatRoute, stream: bool, stop_after: int, mesh: Running
) -> None:
    count = 2 if route.has_choices else 1
    mesh.region.stop_after = stop_after
    body = {**route.body, "stream": stream} | ({"n": count} if route.has_choices else {})
    request = await RawRequest.post(mesh, route.path, body)
    await eventually(lambda: len(mesh.region.live) == count)
    if stream and stop_after:
        await request.until(b"data: ")
    request.close()
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"] * count)


@over_chat_routes
async def test_a_stream_with_a_key_goes_on_where_it_was_cut(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.hold(6)
    headers = {"Idempotency-Key": "k"}
    had = b""
    async with caller.stream("POST", route.path, json=route.streamed, headers=headers) as cut:
        async for piece in cut.aiter_bytes():
            had += piece
            if route.text_of(had) == REPLY[:6]:
                break
    await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
    mesh.region.gate.set()
    last = [it["id"] for it in events_of(had) if "id" in it][-1]
    rest = await caller.post(
        route.path, json=route.streamed, headers=headers | {"Last-Event-ID": last}
    )
    assert route.text_of(rest.content) == REPLY[6:]
    whole = await caller.post(route.path, json=route.body, headers=headers)
    assert route.text(whole.json()) == REPLY
    other = {**route.body, "temperature": 0}
    assert (await caller.post(route.path, json=other, headers=headers)).status_code == 422
    assert mesh.region.cancelled == []
    assert len(mesh.region.opened) == 1


@pytest.mark.parametrize("route", [CHAT, MESSAGE], ids=str)
@pytest.mark.edge(http=HttpConfig(port=0, comment_s=0.05))
async def test_a_silent_stream_is_kept_alive(
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    sign = b"event: ping" if route is MESSAGE else b"\n\n: "
    mesh.region.hold(3)
    had = b""
    async with caller.stream("POST", route.path, json=route.streamed) as answer:
        async for piece in answer.aiter_bytes():
            had += piece
            if sign in had:
                mesh.region.gate.set()
    assert route.text_of(had) == REPLY


@pytest.mark.parametrize("route", [CHAT, COMPLETION, MESSAGE, RESPONSE], ids=str)
@pytest.mark.edge(http=HttpConfig(port=0, comment_s=0.02), reopen_s=0.5)
async def test_no_success_is_told_while_no_region_has_the_chat(
    route: ChatRoute, mesh: Running, caller: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Region, "_open", lambda self, *opening: self.break_streams())
        answer = await caller.post(route.path, json=route.streamed)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    await eventually(lambda: mesh.edge.upstream.ready)
