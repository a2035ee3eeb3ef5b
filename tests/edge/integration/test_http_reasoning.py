"""What models think, over every HTTP route of chats: streamed and whole, with and without tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from services.edge.http.config import HttpConfig
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import (
    CHAT,
    MESSAGE,
    RESPONSE,
    ChatRoute,
    data_of,
    over_tool_routes,
)
from tests.edge.integration.http_client import KEY, official, plain, serving_http, url
from tests.models import thinking_templates
from tests.models.thinking_templates import FAMILIES, QWEN3, R1, reply_ids

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))

REPLIES = {
    "qwen3": "<think>\nHm, é.\n</think>\n\nFour.",
    "r1": "Hm, é.\n</think>\n\nFour.",
    "smollm3": "<think>\nHm, é.\n</think>\nFour.",
    "magistral": "[THINK]Hm, é.[/THINK]Four.",
}


def reasoning_of(answer: Any) -> str:
    """In the body of an answer of any route."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"].get("reasoning_content", ""))
    if "output" in answer:
        thoughts = [it for it in answer["output"] if it["type"] == "reasoning"]
        return "".join(part["text"] for it in thoughts for part in it["content"])
    blocks = answer["content"]
    return "".join(it["thinking"] for it in blocks if it["type"] == "thinking")


def reasoning_delta(event: Any) -> str:
    """What an event of any route adds to the reasoning."""
    if "choices" in event:
        (choice,) = event["choices"] or [{}]
        return str(choice.get("delta", {}).get("reasoning_content", ""))
    if event["type"] == "response.reasoning_text.delta":
        return str(event["delta"])
    if event["type"] == "content_block_delta":
        return str(event["delta"].get("thinking", ""))
    return ""


@pytest.mark.parametrize("family", FAMILIES)
@over_tool_routes
async def test_reasoning_stands_apart_streamed_and_whole(
    tmp_path: Path, route: ChatRoute, family: str
) -> None:
    vocabulary = thinking_templates.vocabulary_of(FAMILIES[family])
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        mesh.region.reply = reply_ids(vocabulary, REPLIES[family])
        whole = (await client.post(route.path, json=route.body)).json()
        assert (reasoning_of(whole), route.text(whole)) == ("Hm, é.", "Four.")
        for name in ("completion_tokens_details", "output_tokens_details"):
            if details := whole["usage"].get(name):
                # One per byte, and the line breaks around them.
                assert details["reasoning_tokens"] >= len("Hm, é.".encode())
        # Without drafts, of which the region would commit many at once.
        alone = {**route.streamed, "speculation": "off"}
        stream = (await client.post(route.path, json=alone)).content
        events = data_of(stream)
        assert "".join(map(reasoning_delta, events)) == "Hm, é."
        assert len([it for it in events if reasoning_delta(it)]) > 1, "as it comes"
        assert route.text_of(stream) == "Four."
        mesh.region.reply = reply_ids(vocabulary, "Four." if family != "r1" else "Hm.")
        short = (await client.post(route.path, json=route.body)).json()
        said = (reasoning_of(short), route.text(short) or "")
        assert said == (("Hm.", "") if family == "r1" else ("", "Four."))
        await mesh.settled()


@over_tool_routes
async def test_reasoning_before_calls_stands_apart(tmp_path: Path, route: ChatRoute) -> None:
    assert route.tools is not None
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
    asked: dict[str, Any] = {**route.body, **route.tools.fields}
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        mesh.region.reply = reply_ids(vocabulary, f"<think>\nHm.\n</think>\n\n{call}")
        whole = (await client.post(route.path, json=asked)).json()
        ((name, _),) = route.tools.calls(whole)
        assert (reasoning_of(whole), name) == ("Hm.", "get_weather")
        again = await client.post(route.path, json=asked | dict(route.tools.answered(whole)))
        assert again.status_code == 200
        prompt = mesh.region.prompt(mesh.region.opened[-1])
        assert "<think>\nHm.\n</think>\n\n\n<tool_call>" in vocabulary.decode(prompt)
        await mesh.settled()


@over_tool_routes
async def test_a_stream_goes_on_in_the_middle_of_its_reasoning(
    tmp_path: Path, route: ChatRoute
) -> None:
    vocabulary = thinking_templates.vocabulary_of(R1)
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        mesh.region.reply = reply_ids(vocabulary, REPLIES["r1"])
        headers = {"idempotency-key": "k"}
        whole = events_of(
            (await client.post(route.path, json=route.streamed, headers=headers)).content
        )
        events = [it for it in whole if it["data"] != "[DONE]"]
        for at in [at for at, it in enumerate(events) if "id" in it][:-1]:
            had = {**headers, "last-event-id": events[at]["id"]}
            rest = (await client.post(route.path, json=route.streamed, headers=had)).content
            both = [*[json.loads(it["data"]) for it in events[: at + 1]], *data_of(rest)]
            assert "".join(map(reasoning_delta, both)) == "Hm, é."
            assert "".join(map(route.delta, both)) == "Four."
        assert len(mesh.region.opened) == 1
        await mesh.settled()


async def test_log_probabilities_of_a_response_are_those_of_its_text(tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    asked = {
        **RESPONSE.body,
        "include": ["message.output_text.logprobs"],
    }
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        mesh.region.reply = reply_ids(vocabulary, REPLIES["qwen3"])
        whole = (await client.post(RESPONSE.path, json=asked)).json()
        scored = whole["output"][-1]["content"][0]["logprobs"]
        assert "".join(it["token"] for it in scored) == "Four."
        stream = (await client.post(RESPONSE.path, json=asked | {"stream": True})).content
        told = [
            entry
            for event in data_of(stream)
            if event["type"] == "response.output_text.delta"
            for entry in event["logprobs"]
        ]
        # The end of the reply is a token behind the text.
        assert told == scored[: len(told)] and len(told) >= len("Four.")
        await mesh.settled()


OFF: dict[str, dict[str, Any]] = {
    CHAT.path: {"reasoning_effort": "none"},
    MESSAGE.path: {"thinking": {"type": "disabled"}},
    RESPONSE.path: {"reasoning": {"effort": "none"}},
}
"""How each API says that the model is not to think."""


@over_tool_routes
async def test_thinking_is_turned_off_by_the_templates_variable(
    tmp_path: Path, route: ChatRoute
) -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    ways = [
        OFF[route.path],
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    async with serving_http(vocabulary, tmp_path, "Four.") as mesh, plain(mesh) as client:
        await client.post(route.path, json=route.body)
        for way in ways:
            told = (await client.post(route.path, json={**route.body, **way})).json()
            assert route.text(told) == "Four."
        thinking, *others = [vocabulary.decode(mesh.region.prompt(it)) for it in mesh.region.opened]
        assert set(others) == {f"{thinking}<think>\n\n</think>\n\n"}
        assert route.tools is not None
        if path := route.tools.count_path:
            asked = [{**route.body, **way} for way in ({}, *ways)]
            for body in asked:
                body.pop("max_tokens", None)
            counts = [(await client.post(path, json=body)).json()["input_tokens"] for body in asked]
            assert set(counts[1:]) == {
                counts[0] + len(vocabulary.encode_reply("<think>\n\n</think>\n\n"))
            }
        await mesh.settled()


@over_tool_routes
async def test_what_a_template_has_no_variable_for_is_refused_by_name(
    tmp_path: Path, route: ChatRoute
) -> None:
    vocabulary = thinking_templates.vocabulary_of(R1)
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        named: list[dict[str, Any]] = [{"enable_thinking": False}, {"messages": []}]
        for value in named:
            asked = {**route.body, "chat_template_kwargs": value}
            refused = await client.post(route.path, json=asked)
            assert refused.status_code == 400
            assert "chat_template_kwargs" in refused.json()["error"]["message"]
        assert mesh.region.opened == []
        await mesh.settled()


BUDGETS: dict[str, list[dict[str, Any]]] = {
    CHAT.path: [],
    MESSAGE.path: [{"thinking": {"type": "enabled", "budget_tokens": 7}}],
    RESPONSE.path: [],
}
"""How APIs limit reasoning in words of their own."""


@over_tool_routes
async def test_limits_of_reasoning_reach_the_region(tmp_path: Path, route: ChatRoute) -> None:
    vocabulary = thinking_templates.vocabulary_of(R1)
    ways = [{"max_thinking_tokens": 7}, {"thinking_token_budget": 7}, *BUDGETS[route.path]]
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        for way in ways:
            await client.post(route.path, json={**route.body, **way})
        for opened in mesh.region.opened:
            assert opened.sampling.max_thinking_tokens == 7
            assert list(opened.sampling.reasoning_tags) == ["<think>", "</think>"]
        for way in (OFF[route.path], {"enable_thinking": False}):
            await client.post(route.path, json={**route.body, **way})
            opened = mesh.region.opened[-1]
            assert opened.sampling.HasField("max_thinking_tokens")
            assert opened.sampling.max_thinking_tokens == 0, "it always thinks, so it is ended"
        await client.post(route.path, json={**route.body, "max_thinking_tokens": -1})
        assert not mesh.region.opened[-1].sampling.HasField("max_thinking_tokens")
        refused = await client.post(route.path, json={**route.body, "max_thinking_tokens": -2})
        assert "max_thinking_tokens" in refused.json()["error"]["message"]
        assert len(mesh.region.opened) == len(ways) + 3
        await mesh.settled()


@over_tool_routes
async def test_a_schema_is_that_of_what_follows_reasoning(tmp_path: Path, route: ChatRoute) -> None:
    assert route.schema is not None
    vocabulary = thinking_templates.vocabulary_of(R1)
    asked = {**route.body, **route.schema({"type": "object"})}
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        mesh.region.reply = reply_ids(vocabulary, "Hm.\n</think>\n\n{}")
        whole = (await client.post(route.path, json=asked)).json()
        assert (reasoning_of(whole), route.text(whole)) == ("Hm.", "{}")
        sampling = mesh.region.opened[0].sampling
        assert sampling.grammar.text == '{"type":"object"}'
        assert list(sampling.reasoning_tags) == ["<think>", "</think>"]
        await mesh.settled()


async def test_tokens_of_a_conversation_are_those_with_its_variables(tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    asked = {"messages": CHAT.body["messages"], "chat_template_kwargs": {"enable_thinking": False}}
    async with serving_http(vocabulary, tmp_path, "") as mesh, plain(mesh) as client:
        answer = (await client.post("/tokenize", json=asked)).json()
        assert vocabulary.decode(answer["tokens"]).endswith("<think>\n\n</think>\n\n")
        text = {"prompt": "x", "chat_template_kwargs": {"enable_thinking": False}}
        assert (await client.post("/tokenize", json=text)).status_code == 400
        await mesh.settled()


async def test_official_clients_read_it(tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    async with (
        serving_http(vocabulary, tmp_path, "") as mesh,
        official(mesh) as openai,
        AsyncAnthropic(base_url=url(mesh), api_key=KEY, max_retries=0) as anthropic,
    ):
        mesh.region.reply = reply_ids(vocabulary, REPLIES["qwen3"])
        ask: Any = openai.chat.completions.create
        message = (await ask(**CHAT.body)).choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm, é.", "Four.")
        deltas = [it.choices[0].delta async for it in await ask(**CHAT.streamed)]
        assert "".join(getattr(it, "reasoning_content", "") for it in deltas) == "Hm, é."

        body: dict[str, Any] = dict(RESPONSE.body)
        async with openai.responses.stream(**body) as events:
            told = [it async for it in events if it.type == "response.reasoning_text.delta"]
            response: Any = await events.get_final_response()
        thought, answer = response.output
        assert "".join(it.delta for it in told) == thought.content[0].text == "Hm, é."
        assert answer.content[0].text == response.output_text == "Four."

        asked: dict[str, Any] = dict(MESSAGE.body)
        async with anthropic.messages.stream(**asked) as stream:
            seen: Any = [it.type async for it in stream]
            streamed: Any = await stream.get_final_message()
        assert {"thinking", "signature", "text"} <= set(seen)
        whole: Any = await anthropic.messages.create(**asked)
        for said in (streamed, whole):
            thinking, text = said.content
            assert (thinking.thinking, text.text) == ("Hm, é.", "Four.")
            assert thinking.signature == said.id
            replayed = [*asked["messages"], {"role": "assistant", "content": said.content}]
            again = [*replayed, *asked["messages"]]
            await anthropic.messages.create(**asked | {"messages": again})
        await mesh.settled()
