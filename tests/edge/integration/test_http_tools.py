"""What chats over HTTP have besides text, by every route that has it: tools and schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient
from structlog.testing import capture_logs

from services.edge.http.config import HttpConfig
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import (
    PARAMETERS,
    ChatRoute,
    data_of,
    over_tool_routes,
)
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.test_tools import ARGUMENTS, REPLIES
from tests.models import tool_templates

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


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
    route: ChatRoute, mesh: Running, caller: AsyncClient
) -> None:
    assert route.tools is not None
    for path in filter(None, (route.path, route.tools.count_path)):
        refused = await caller.post(path, json={**route.body, **route.tools.fields})
        assert refused.status_code == 400
        assert "shows no tools" in refused.json()["error"]["message"]
    assert mesh.region.opened == []


@over_tool_routes
async def test_what_is_passed_over_is_told_in_a_header(tmp_path: Path, route: ChatRoute) -> None:
    assert route.tools is not None
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    asked: dict[str, Any] = {**route.body, **route.tools.fields}
    asked["tools"] = [*asked["tools"], {"type": "web_search_20250305", "name": "web_search"}]
    asked["temprature"] = 0
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        with capture_logs() as logs:
            answers = [
                await client.post(route.path, json=asked),
                await client.post(route.path, json=asked | {"stream": True}),
            ]
        if path := route.tools.count_path:
            answers.append(await client.post(path, json=asked))
        for answer in answers:
            told = answer.headers["x-outrider-passed-over"]
            assert answer.status_code == 200 and told.startswith("temprature, tools")
            assert told.endswith(":web_search_20250305")
        parts = [it["parts"] for it in logs if it["event"] == "passed_over"]
        assert [len(it) for it in parts] == [2, 2] and parts[0][0] == "unlisted_fields"
        assert "temprature" not in str(logs) and "web_search" not in str(logs), "a client's words"
        assert (
            "x-outrider-passed-over"
            not in (
                await client.post(route.path, json={**route.body, **route.tools.fields})
            ).headers
        )
        await mesh.settled()


CUT = '{"city": "Pa'
HISTORY: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "Is it cold?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c 1", "type": "function", "function": {"name": "f", "arguments": CUT}},
                    {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "*"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c 1", "content": "no JSON"},
            {"role": "user", "content": "Again."},
        ]
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "Is it cold?"},
            {"type": "function_call", "call_id": "c 1", "name": "f", "arguments": CUT},
            {"type": "local_shell_call", "call_id": "c2", "action": {"command": ["ls"]}},
            {"type": "function_call_output", "call_id": "c 1", "output": "no JSON"},
            {"role": "user", "content": "Again."},
        ]
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": "Is it cold?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "c 1", "name": "f", "input": CUT},
                    {"type": "server_tool_use", "id": "c2", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "c2", "content": []},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c 1", "content": "no JSON"},
                    {"type": "text", "text": "Again."},
                ],
            },
        ]
    },
}


@over_tool_routes
@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "plain"])
async def test_no_history_ends_a_conversation(
    tmp_path: Path, route: ChatRoute, family: str
) -> None:
    assert route.tools is not None
    templates = {**tool_templates.FAMILIES, "plain": tool_templates.PLAIN}
    vocabulary = tool_templates.vocabulary_of(templates[family])
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        answer = await client.post(route.path, json={**route.body, **HISTORY[route.path]})
        assert answer.status_code == 200, answer.text
        await mesh.settled()
