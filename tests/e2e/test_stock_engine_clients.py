"""OpenAI's own package before a mesh whose replica stands in front of a stock engine's server: what
is asked for reaches the server in its fields, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.definitions import to_toml
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from tests.e2e.calling_model import STOP_TOKENS, own_template
from tests.e2e.stock_server import StockServer, stock_server

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

MODEL = "caller"
SAID = "A river is water that flows to the sea. It begins at a spring."
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
RIVER = {"river": "Rhine", "km": 1233}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"river": {"type": "string"}, "km": {"type": "integer"}},
    "required": ["river", "km"],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is a river?"}],
    "max_tokens": 64,
}
BY_SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
}


@dataclass(frozen=True, slots=True)
class Door:
    """The mesh by its HTTP port, and the server behind it."""

    mesh: LocalMesh
    server: StockServer

    @property
    def client(self) -> openai.OpenAI:
        port = self.mesh.state.service("edge")["http_port"]
        key = development_key.read(self.mesh.state_dir)
        return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)

    def create(self, **fields: Any) -> Any:
        with self.client as client:
            create: Any = client.chat.completions.create
            return create(**{**ASK, **fields})

    def pieces(self, **fields: Any) -> list[Any]:
        with self.client as client:
            create: Any = client.chat.completions.create
            return list(create(**{**ASK, **fields}, stream=True))

    @property
    def last(self) -> dict[str, Any]:
        """What the server was asked last."""
        return self.server.asked[-1]


@pytest.fixture(scope="module")
def door(
    model_store: ModelStore, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    def write(body: dict[str, Any]) -> str:
        if "structured_outputs" in body:
            return json.dumps(RIVER)
        # The template shows tools as functions to call.
        return CALL if "Call these functions" in vocabulary.decode(body["prompt"]) else SAID

    folder: Path = tmp_path_factory.mktemp("stock")
    with (
        own_template(model_store, folder) as template,
        stock_server(vocabulary, write) as server,
    ):
        caller = {
            "source": DEFAULT_MODEL.source,
            "sha256": DEFAULT_MODEL.sha256,
            "chat_template_file": str(template),
            "stop_tokens": STOP_TOKENS,
            "max_context_tokens": 2048,
        }
        config = folder / "mesh.toml"
        config.write_text(to_toml({MODEL: caller}), "utf-8")
        settings = (f"inference.server.url={server.url}", "edge.drafter.model=none")
        with local_mesh(
            regions="here",
            engine="openai-server",
            settings=settings,
            model=MODEL,
            http=True,
            config=config,
        ) as mesh:
            yield Door(mesh, server)


def test_whole_and_streamed_replies(door: Door) -> None:
    whole = door.create(temperature=0.7, top_p=0.9, seed=11)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (SAID, "stop")
    assert whole.usage.prompt_tokens == len(door.last["prompt"])
    sampled = {"temperature": 0.7, "top_p": 0.9, "seed": 11, "max_tokens": 64}
    assert {name: door.last[name] for name in sampled} == sampled
    assert len(door.last["cache_salt"]) > 16, "trust groups are kept apart"
    pieces = door.pieces(stream_options={"include_usage": True})
    said = [it.choices[0].delta.content or "" for it in pieces if it.choices]
    assert "".join(said) == SAID and len(said) > 2
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    short = door.create(max_tokens=3).choices[0]
    assert short.finish_reason == "length" and SAID.startswith(short.message.content)


def test_stop_strings_cut_where_the_server_knows_none(door: Door) -> None:
    choice = door.create(stop=["sea"]).choices[0]
    assert choice.message.content == SAID.partition("sea")[0]
    assert choice.finish_reason == "stop" and "stop" not in door.last
    said = [it.choices[0].delta.content or "" for it in door.pieces(stop=["sea"])]
    assert "".join(said) == SAID.partition("sea")[0]


def test_log_probabilities_are_the_servers(door: Door) -> None:
    choice = door.create(logprobs=True, top_logprobs=2).choices[0]
    rows = choice.logprobs.content
    assert b"".join(bytes(it.bytes or ()) for it in rows).decode() == SAID
    assert {it.logprob for it in rows} == {-0.5}
    assert [it.logprob for it in rows[0].top_logprobs] == [-0.5, -1.5]
    assert door.last["logprobs"] == 2


def test_penalties_and_biases_are_the_servers(door: Door) -> None:
    asked = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"17": -100}}
    door.create(**asked)
    assert {name: door.last[name] for name in asked} == asked


def test_a_tool_is_called_and_its_result_told(door: Door) -> None:
    choice = door.create(tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        *("get_weather", {"city": "Paris"}),
    )
    streamed = [
        it for piece in door.pieces(tools=TOOLS) for it in piece.choices[0].delta.tool_calls or ()
    ]
    assert streamed[0].function.name == "get_weather"
    arguments = "".join(it.function.arguments or "" for it in streamed)
    assert json.loads(arguments) == {"city": "Paris"}
    told = {"role": "tool", "tool_call_id": call.id, "content": "-3 degrees"}
    messages = [*ASK["messages"], choice.message.model_dump(exclude_none=True), told]
    after = door.create(messages=messages, tools=TOOLS, tool_choice="none").choices[0]
    assert after.message.content == SAID and after.message.tool_calls is None
    assert "-3 degrees" in door.server.vocabulary.decode(door.last["prompt"])


def test_schemas_are_the_servers_grammars(door: Door) -> None:
    choice = door.create(response_format=BY_SCHEMA).choices[0]
    assert json.loads(choice.message.content) == RIVER
    sent = door.last["structured_outputs"]["json"]
    assert sent["properties"] == SCHEMA["properties"] and not door.last["ignore_eos"]
    choice = door.create(response_format={"type": "json_object"}).choices[0]
    assert json.loads(choice.message.content) == RIVER
    assert door.last["structured_outputs"] == {"json_object": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": TOOLS[0]},
        {"response_format": BY_SCHEMA},
    ],
)
def test_a_forced_call_needs_a_grammar_and_is_refused_by_name(
    fields: dict[str, Any], door: Door
) -> None:
    num_asked = len(door.server.asked)
    for ask in (door.create, door.pieces):
        with pytest.raises(openai.BadRequestError, match=r"openai-server .*does not know lark"):
            ask(tools=TOOLS, **fields)
    assert len(door.server.asked) == num_asked, "the server was not asked"


async def test_who_leaves_a_stream_is_written_for_no_longer(door: Door) -> None:
    num_left = door.server.num_left
    door.server.more.clear()
    try:
        with door.client as client:
            with client.chat.completions.create(**ASK, stream=True) as stream:
                next(iter(stream))
        await eventually(lambda: door.server.num_left > num_left)
    finally:
        door.server.more.set()
