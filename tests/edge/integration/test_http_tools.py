"""What chats over HTTP have besides text, by every route that has it: tools, schemas, and log
probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.models.vocabulary import Vocabulary
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import (
    CHAT,
    COMPLETION,
    PARAMETERS,
    RESPONSE,
    ChatRoute,
    data_of,
    over_tool_routes,
)
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.test_tools import ARGUMENTS, REPLIES
from tests.models import tool_templates

REPLY = "a reply of some length"


@over_tool_routes
async def test_tools_are_called_and_answered(tmp_path: Path, route: ChatRoute) -> None:
    assert route.tools is not None
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    asked: dict[str, Any] = {**route.body, **route.tools.fields}
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        whole = (await client.post(route.path, json=asked)).json()
        assert route.text(whole) == "I look."
        ((name, arguments),) = route.tools.calls(whole)
        assert name == "get_weather"
        assert arguments in (ARGUMENTS, json.loads(ARGUMENTS))
        stream = (await client.post(route.path, json=asked | {"stream": True})).content
        assert route.text_of(stream) == "I look."
        assert "".join(map(route.tools.arguments, data_of(stream))) == ARGUMENTS

        again = await client.post(route.path, json=asked | dict(route.tools.answered(whole)))
        assert route.tools.calls(again.json())
        await client.post(route.path, json=asked | dict(route.tools.forced))
        assert "get_weather" in mesh.region.opened[-1].sampling.grammar.text
        if path := route.tools.count_path:
            bare = (await client.post(path, json=route.body)).json()["input_tokens"]
            assert (await client.post(path, json=asked)).json()["input_tokens"] > bare
        await mesh.settled()


@over_tool_routes
async def test_a_stream_of_calls_goes_on_after_its_connection_was_lost(
    tmp_path: Path, route: ChatRoute
) -> None:
    assert route.tools is not None
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        body: dict[str, Any] = {**route.streamed, **route.tools.fields}
        headers = {"idempotency-key": "k"}
        whole = events_of((await client.post(route.path, json=body, headers=headers)).content)
        events = [it for it in whole if it["data"] != "[DONE]"]
        places = [at for at, it in enumerate(events) if "id" in it][:-1]
        assert len(places) > 4
        for at in places:
            had = {**headers, "last-event-id": events[at]["id"]}
            rest = (await client.post(route.path, json=body, headers=had)).content
            both = [*[json.loads(it["data"]) for it in events[: at + 1]], *data_of(rest)]
            assert "".join(map(route.tools.arguments, both)) == ARGUMENTS
            assert begun(both) == begun([json.loads(it["data"]) for it in events]), "none twice"
        assert len(mesh.region.opened) == 1, "nothing was computed twice"
        await mesh.settled()


def begun(events: list[Any]) -> list[str]:
    """What events of Messages and Responses say that begins, in order."""
    kinds = [it.get("type", "") for it in events]
    return [it for it in kinds if it.endswith(("block_start", ".added"))]


@over_tool_routes
async def test_schemas_reach_the_region_with_and_without_tools(
    tmp_path: Path, route: ChatRoute
) -> None:
    assert route.tools is not None and route.schema is not None
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    asked: dict[str, Any] = {**route.body, **route.schema(PARAMETERS)}
    async with serving_http(vocabulary, tmp_path, REPLY) as mesh, plain(mesh) as client:
        for body in (asked, asked | dict(route.tools.fields)):
            assert (await client.post(route.path, json=body)).status_code == 200
        alone, either = [it.sampling.grammar.text for it in mesh.region.opened]
        assert alone == json.dumps(PARAMETERS, separators=(",", ":"))
        assert "(calls | answer)" in either
        await mesh.settled()


@over_tool_routes
async def test_a_model_that_calls_no_tools_says_so(
    words: Vocabulary, tmp_path: Path, route: ChatRoute
) -> None:
    assert route.tools is not None
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        for path in filter(None, (route.path, route.tools.count_path)):
            refused = await client.post(path, json={**route.body, **route.tools.fields})
            assert refused.status_code == 400
            assert "shows no tools" in refused.json()["error"]["message"]
        assert mesh.region.opened == []


async def test_log_probabilities_come_with_their_tokens(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        asked = {**CHAT.body, "logprobs": True, "top_logprobs": 3}
        told = (await client.post(CHAT.path, json=asked)).json()["choices"][0]["logprobs"]
        assert "".join(it["token"] for it in told["content"]) == REPLY
        assert all(len(it["top_logprobs"]) == 3 for it in told["content"])
        stream = await client.post(CHAT.path, json=asked | {"stream": True})
        pieces = [it["choices"][0]["logprobs"] for it in data_of(stream.content)]
        assert [it for piece in pieces if piece for it in piece["content"]] == told["content"]
        text = await client.post(COMPLETION.path, json={**COMPLETION.body, "logprobs": 2})
        lists = text.json()["choices"][0]["logprobs"]
        assert "".join(lists["tokens"]) == REPLY
        assert lists["text_offset"][:3] == [0, 1, 2]
        await mesh.settled()


async def test_responses_tell_log_probabilities_with_their_text(
    words: Vocabulary, tmp_path: Path
) -> None:
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    asked = {**RESPONSE.body, **include}
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        whole = (await client.post(RESPONSE.path, json=asked)).json()
        (part,) = whole["output"][0]["content"]
        assert "".join(it["token"] for it in part["logprobs"]) == REPLY
        assert all(len(it["top_logprobs"]) == 3 for it in part["logprobs"])
        stream = await client.post(RESPONSE.path, json=asked | {"stream": True})
        told = []
        for event in data_of(stream.content):
            if text := RESPONSE.delta(event):
                assert "".join(it["token"] for it in event["logprobs"]) == text
                told += event["logprobs"]
        assert [it for it in told if it["token"]] == [it for it in part["logprobs"] if it["token"]]
        await mesh.settled()
