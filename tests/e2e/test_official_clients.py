"""Programs that people have drive a mesh of real processes with the real engine: the official
packages of OpenAI and Anthropic, LangChain, `curl`, an HTTP/3 client that is not ours (qh3), and
packages from npm and PyPI (tests/e2e/clients)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local import development_key
from outrider.client import Message, SamplingParams, connect_blocking
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.definitions import to_toml
from outrider.models.store import ModelStore
from outrider.testing import eventually
from tests.e2e.calling_model import STOP_TOKENS, own_template
from tests.edge.http.asking import objects_of
from tests.edge.http3.client import other_client

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

MODEL = "caller"
FEW = ("inference.max_fixed_rows=2", "inference.warm_up_rows=16", "edge.drafter.model=none")
USER: Any = {"role": "user", "content": "What is a river?"}
SAMPLED: dict[str, Any] = {"model": MODEL, "messages": [USER], "max_tokens": 24, "temperature": 0.8}
"""By any door, with the same seed, the same text."""
SEED = 7
MESSAGE: dict[str, Any] = {key: value for key, value in SAMPLED.items() if key != "temperature"}
"""The same for the package of Anthropic's, which has no temperature any more; the API has."""
SEEDED: dict[str, Any] = {"extra_body": {"temperature": 0.8, "seed": SEED}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"river": {"type": "string", "maxLength": 12}, "km": {"type": "boolean"}},
    "required": ["river", "km"],
    "additionalProperties": False,
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
}
WEATHER: dict[str, Any] = {"name": "get_weather", "parameters": CITY}
ASK: Any = [{"role": "user", "content": "Is it cold in Paris?"}]


@dataclass(frozen=True, slots=True)
class Door:
    """Where clients reach a mesh, and with what."""

    mesh: LocalMesh
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.state.service('edge')['http_port']}"

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, **options)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=self.key, max_retries=0)

    def sample(self, role: str, name: str) -> float:
        """The sum of a metric of the service, over its labels."""
        (row,) = self.mesh.services(role)
        address = f"http://{self.mesh.state.host}:{row['admin_port']}/metrics"
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        return sum(
            float(it) for it in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        )


@pytest.fixture(scope="module")
def door(model_store: ModelStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("clients")
    with own_template(model_store, folder) as template:
        caller = {
            "source": DEFAULT_MODEL.source,
            "sha256": DEFAULT_MODEL.sha256,
            "chat_template_file": str(template),
            "stop_tokens": STOP_TOKENS,
            "max_context_tokens": 2048,
        }
        config = folder / "mesh.toml"
        config.write_text(to_toml({MODEL: caller}), "utf-8")
        with local_mesh(
            regions="here", settings=FEW, model=MODEL, http=True, config=config
        ) as mesh:
            yield Door(mesh, development_key.read(mesh.state_dir))


def native(door: Door) -> str:
    """What our own protocol says."""
    host, port = door.mesh.edge
    sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=SEED)
    with connect_blocking(host, port, ca=door.mesh.ca, key=door.key) as client:
        with client.chat([Message(**USER)], sampling=sampling) as chat:
            return chat.result().text


async def over_http3(door: Door, body: bytes) -> bytes:
    headers = [
        (b"authorization", f"Bearer {door.key}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    async with other_client(door.mesh.edge[1], door.mesh.ca) as client:
        response = await client.ask("POST", "/v1/chat/completions", body, headers).whole()
        assert response.status == 200
        return response.body


def streamed(stream: bytes) -> str:
    """The text of a stream of chat completions, which is whole."""
    assert stream.endswith(b"data: [DONE]\n\n")
    deltas = [it["choices"][0]["delta"] for it in objects_of(stream) if it["choices"]]
    return "".join(it.get("content") or "" for it in deltas)


def test_every_client_gets_the_text_of_the_native_door(door: Door) -> None:
    truth = native(door)
    with door.openai() as client:
        whole = client.chat.completions.create(**SAMPLED, seed=SEED, logprobs=True, top_logprobs=2)
        stream = client.chat.completions.create(
            **SAMPLED, seed=SEED, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        asked: dict[str, Any] = {"model": MODEL, "input": [USER], **SEEDED}
        response = client.responses.create(**asked, max_output_tokens=24)
        with client.responses.stream(**asked, max_output_tokens=24) as events:
            deltas = [it.delta for it in events if it.type == "response.output_text.delta"]
    (choice,) = whole.choices
    assert choice.message.content == truth and whole.usage is not None
    assert choice.logprobs is not None and choice.logprobs.content is not None
    rows = choice.logprobs.content
    assert b"".join(bytes(it.bytes or ()) for it in rows).decode() == truth
    assert len(rows) == whole.usage.completion_tokens
    assert all(len(it.top_logprobs) == 2 and it.logprob <= 0 for it in rows)
    pieces = [it.choices[0].delta.content or "" for it in chunks if it.choices]
    assert "".join(pieces) == truth and len(pieces) > 2
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert response.output_text == truth and "".join(deltas) == truth

    with door.anthropic() as claude:
        message = claude.messages.create(**MESSAGE, **SEEDED)
        with claude.messages.stream(**MESSAGE, **SEEDED) as parts:
            assert "".join(parts.text_stream) == truth
            assert parts.get_final_message().usage.output_tokens == message.usage.output_tokens
        counted = claude.messages.count_tokens(model=MODEL, messages=[USER])
    (block,) = message.content
    assert block.type == "text" and block.text == truth
    assert counted.input_tokens == whole.usage.prompt_tokens

    body = json.dumps(SAMPLED | {"seed": SEED, "stream": True})
    curl = subprocess.run(
        [
            *("curl", "-sSN", "--fail", f"{door.url}/v1/chat/completions", "-d", body),
            *("-H", f"Authorization: Bearer {door.key}", "-H", "Content-Type: application/json"),
        ],
        capture_output=True,
        check=True,
    )
    assert streamed(curl.stdout) == truth
    assert streamed(asyncio.run(over_http3(door, body.encode()))) == truth


def test_choices_and_stop_strings(door: Door) -> None:
    with door.openai() as client:
        several = client.chat.completions.create(**SAMPLED, n=2)
        for choice in several.choices:
            seed = (choice.model_extra or {})["outrider"]["seed"]
            again = client.chat.completions.create(**SAMPLED, seed=seed)
            assert again.choices[0].message.content == choice.message.content
        said = client.chat.completions.create(**SAMPLED, seed=SEED).choices[0].message.content
        assert said is not None
        word = said.split()[3]
        cut = client.chat.completions.create(**SAMPLED, seed=SEED, stop=[word]).choices[0]
        assert (cut.message.content, cut.finish_reason) == (said.partition(word)[0], "stop")
        prompt = client.completions.create(model=MODEL, prompt="A river is", max_tokens=8)
        assert prompt.choices[0].text and prompt.usage is not None
    with door.anthropic() as claude:
        message = claude.messages.create(**MESSAGE, **SEEDED, stop_sequences=[word])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


def test_schemas_are_followed(door: Door) -> None:
    asked = SAMPLED | {"max_tokens": 200}
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
    }
    with door.openai() as client:
        texts = [client.chat.completions.create(**asked, response_format=wanted)]
        answers = [it.choices[0].message.content for it in texts]
        stream = client.chat.completions.create(**asked, response_format=wanted, stream=True)
        answers.append("".join(it.choices[0].delta.content or "" for it in stream))
        text: Any = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
        answers.append(
            client.responses.create(model=MODEL, input="A river.", text=text).output_text
        )
    with door.anthropic() as claude:
        output: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        (block,) = claude.messages.create(
            model=MODEL, messages=[USER], max_tokens=200, output_config=output
        ).content
        assert block.type == "text"
        answers.append(block.text)
    for answer in answers:
        found = json.loads(answer or "")
        assert list(found) == ["river", "km"] and isinstance(found["km"], bool)


def test_tools_are_called(door: Door) -> None:
    tools: Any = [{"type": "function", "function": WEATHER}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "temperature": 0}
    with door.openai() as client:
        create: Any = client.chat.completions.create
        chat = partial(create, **asked, messages=ASK, tools=tools)
        free = chat().choices[0]
        forced = chat(tool_choice="required", parallel_tool_calls=False).choices[0]
        # A call or an answer by the schema: this model calls.
        schema = {"name": "n", "schema": SCHEMA}
        either = chat(response_format={"type": "json_schema", "json_schema": schema}).choices[0]
        for choice in (free, forced, either):
            assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
            (call,) = choice.message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == (
                *("get_weather", {"city": "Paris"}),
            )
        stream = chat(tool_choice="required", parallel_tool_calls=False, stream=True)
        arguments = ""
        for chunk in stream:
            for piece in chunk.choices[0].delta.tool_calls or ():
                arguments += piece.function.arguments or ""
        assert json.loads(arguments) == {"city": "Paris"}
        told = {"role": "tool", "tool_call_id": call.id, "content": "-3 degrees"}
        said = forced.message.model_dump(exclude_none=True)
        after = create(**asked, messages=[*ASK, said, told], tools=tools, tool_choice="none")
        assert after.choices[0].message.tool_calls is None
        function: Any = {"type": "function", "strict": None, **WEATHER}
        response = client.responses.create(
            model=MODEL, temperature=0, input=ASK, tools=[function], tool_choice="required"
        )
        assert "function_call" in {it.type for it in response.output}
    with door.anthropic() as claude:
        tool: Any = {"name": "get_weather", "input_schema": CITY}
        message = claude.messages.create(
            model=MODEL,
            max_tokens=200,
            messages=ASK,
            tools=[tool],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        )
        (block,) = message.content
        assert block.type == "tool_use" and message.stop_reason == "tool_use"
        assert (block.name, block.input) == ("get_weather", {"city": "Paris"})


def test_langchain_as_its_users_point_it(door: Door) -> None:
    # Here, for every worker collects this file, and it takes a second or two.
    from langchain_openai import ChatOpenAI

    def model(**more: Any) -> Any:
        fields = {"base_url": f"{door.url}/v1", "api_key": door.key, "model": MODEL}
        return ChatOpenAI(**{**fields, "temperature": 0.8, "max_retries": 0, **more})

    said = model(max_tokens=24, seed=SEED)
    whole = said.invoke(USER["content"])
    assert whole.content == native(door)
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = list(said.stream(USER["content"]))
    assert len(pieces) > 2 and "".join(it.content for it in pieces) == whole.content
    scored = said.bind(logprobs=True, top_logprobs=2).invoke(USER["content"])
    assert len(scored.response_metadata["logprobs"]["content"]) > 2
    named = {"title": "river", **SCHEMA}
    by_schema = model(max_tokens=200).with_structured_output(named, method="json_schema")
    assert set(by_schema.invoke("A river.")) == {"river", "km"}
    tool = {"name": "get_weather", "description": "Of a city.", "parameters": CITY}
    calling = model(max_tokens=200, temperature=0).bind_tools([tool], tool_choice="get_weather")
    calls = calling.bind(parallel_tool_calls=False).invoke(ASK[0]["content"]).tool_calls
    assert [(it["name"], it["args"]) for it in calls] == [("get_weather", {"city": "Paris"})]
    with pytest.raises(openai.AuthenticationError):
        model(api_key="none").invoke("hi")


def leaves_a_stream(door: Door, endless: dict[str, Any]) -> None:
    with door.openai() as client:
        with client.chat.completions.create(**endless, stream=True) as stream:
            next(iter(stream))


def leaves_a_message(door: Door, endless: dict[str, Any]) -> None:
    del endless["temperature"]
    with door.anthropic() as claude, claude.messages.stream(**endless) as stream:
        next(stream.text_stream)


def leaves_before_the_answer(door: Door, endless: dict[str, Any]) -> None:
    with door.openai(timeout=0.5) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**endless)


@pytest.mark.parametrize("leaves", [leaves_a_stream, leaves_a_message, leaves_before_the_answer])
async def test_who_leaves_is_computed_for_no_longer(
    door: Door, leaves: Callable[[Door, dict[str, Any]], None]
) -> None:
    def tokens() -> float:
        return door.sample("edge", "outrider_edge_tokens_total")

    endless = SAMPLED | {"max_tokens": 1900, "extra_body": {"ignore_eos": True}}
    before = tokens()
    await asyncio.to_thread(leaves, door, endless)
    await eventually(lambda: door.sample("inference", "outrider_sessions_running") == 0)
    await eventually(lambda: door.sample("edge", "outrider_edge_open_chats") == 0)
    assert tokens() - before < 1900, "it would have gone on to the end"


_CLIENTS = Path(__file__).parent / "clients"
_INSTALLED = Path(__file__).parents[2] / ".tools" / "clients"
_PYTHON_CASES = (
    *("litellm openai", "litellm anthropic", "instructor objects"),
    *("pydantic ai openai chat", "pydantic ai openai responses", "pydantic ai anthropic"),
    *("llama index", "langchain anthropic"),
)
_AGENTS_CASES = ("openai agents chat", "openai agents responses")
_NUM_NODE_CASES = 37


def faults(door: Door, *command: str) -> dict[str, str]:
    """Why each case of a program failed, empty if it did not; `{}` in its command line is where it
    finds the mesh."""
    where = json.dumps({"url": door.url, "key": door.key, "model": MODEL})
    ran = subprocess.run(
        [where if word == "{}" else word for word in command],
        cwd=_INSTALLED / "node",
        # This package would fetch a list of prices.
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=subprocess.PIPE,
        text=True,
    )
    cases = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
    return {it["case"]: it["error"] for it in cases}


@pytest.mark.packages
def test_packages_from_npm(door: Door) -> None:
    shutil.copy(_CLIENTS / "clients.mjs", _INSTALLED / "node")
    found = faults(door, str(_INSTALLED / "python/bin/node"), "clients.mjs", "{}")
    assert {name: why for name, why in found.items() if why} == {}
    assert len(found) == _NUM_NODE_CASES


@pytest.mark.packages
@pytest.mark.parametrize(("place", "cases"), [("python", _PYTHON_CASES), ("agents", _AGENTS_CASES)])
def test_packages_from_pypi(door: Door, place: str, cases: tuple[str, ...]) -> None:
    program = str(_CLIENTS / "clients.py")
    found = faults(door, str(_INSTALLED / place / "bin/python"), program, "{}", *cases)
    assert found == dict.fromkeys(cases, "")
