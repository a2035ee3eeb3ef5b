"""Files of the classes of models that people bring, a random one of each: a mesh of real processes
streams what the reference says, over HTTP and over the native protocol, there with its replica
killed in the middle of the reply."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local import development_key
from outrider.client import Committed, SamplingParams, connect
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.store import ModelStore
from outrider.models.tools import check_tools, tool_text
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.grammar import call_grammar
from outrider.reply_parsing.parser import ReadReply, read_reply
from outrider.sampling.grammar import Grammar, GrammarKind
from tests.e2e.model_classes import CLASSES, ModelClass
from tests.e2e.reference import Reference
from tests.e2e.router import Router

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FEW = (
    *("inference.max_fixed_rows=2", "inference.warm_up_rows=16", "edge.drafter.model=none"),
    *("edge.tokenization.backend=tokenizers", "tokenizer.backend=tokenizers"),
)
NUM_TOKENS = 1000
"""Of a reply: some hundred are there before a busy machine has read the first ones."""
LIMIT_S = 200.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat, and the right reply to it."""

    kind: ModelClass
    sampling: SamplingParams
    must_call: bool
    ids: tuple[int, ...]
    text: str
    read: ReadReply

    @property
    def tools(self) -> list[Any]:
        return [self.kind.tool] if self.kind.tool else []

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments."""
        return [(call.name, call.arguments) for call in self.read.calls]


def truths(kind: ModelClass, file: Path, store: ModelStore) -> list[Asked]:
    """By the engine alone: a long reply, and, with a tool, one that has to call it."""
    vocabulary = Vocabulary.from_gguf(file)
    form = vocabulary.reply_format()
    tools = check_tools([tool_text(kind.tool)]) if kind.tool else ()
    form = replace(form, tool_names=("get_weather",)) if tools else form.without_calls
    long = SamplingParams(
        temperature=0.8,
        seed=7,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        max_thinking_tokens=kind.max_thinking_tokens,
    )
    asked = [long]
    grammar = None
    if tools:
        limit = 20 if form.reasoning else -1
        asked.append(
            SamplingParams(temperature=0.8, seed=3, max_tokens=200, max_thinking_tokens=limit)
        )
        lark = call_grammar(form, tools, vocabulary.find_control, parallel=False)
        grammar = Grammar(GrammarKind.LARK, lark)
    found = list[Asked]()
    spec = ModelSpec(kind.name, f"file:{file}", file_sha256(file))
    engine = load_engine(spec, store, EngineConfig(num_blocks=256, max_fixed_rows=0))
    try:
        reference = Reference(engine, vocabulary)
        for sampling in asked:
            must_call = sampling is not long
            # As edges complete a request.
            whole = replace(
                sampling,
                special_tokens=vocabulary.needs_special_tokens(form),
                reasoning_tags=form.reasoning,
                grammar=grammar if must_call else None,
            )
            reply = reference.reply(kind.messages, whole, tools)
            read = read_reply(reply.text, form, "")
            found.append(Asked(kind, sampling, must_call, reply.ids, reply.text, read))
    finally:
        engine.close()
    return found


async def over_http(mesh: LocalMesh, asked: Asked) -> None:
    """Checks a streamed chat completion."""
    content, reasoning, name, arguments = "", "", "", ""
    port = mesh.state.service("edge")["http_port"]
    sampling = asked.sampling
    tools: dict[str, Any] = {
        "tools": [{"type": "function", "function": tool} for tool in asked.tools],
        "parallel_tool_calls": False,
        "tool_choice": "required" if asked.must_call else "auto",
    }
    more = {"ignore_eos": sampling.ignore_eos, "max_thinking_tokens": sampling.max_thinking_tokens}
    async with AsyncOpenAI(
        base_url=f"http://{mesh.state.host}:{port}/v1",
        api_key=development_key.read(mesh.state_dir),
        max_retries=0,
        timeout=LIMIT_S,
    ) as client:
        messages: Any = [{"role": it.role, "content": it.content} for it in asked.kind.messages]
        stream: Any = await client.chat.completions.create(
            model=mesh.state.models[0]["name"],
            messages=messages,
            max_completion_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=1.0,
            seed=sampling.seed,
            stream=True,
            extra_body=more | (tools if asked.tools else {}),
        )
        async for chunk in stream:
            delta = chunk.choices[0].delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (content, reasoning) == (asked.read.content, asked.read.reasoning)
    assert ([(name, arguments)] if name else []) == asked.calls


async def native_and_killed(mesh: LocalMesh, asked: Asked) -> None:
    """Checks a reply over the native protocol, whose replica is killed early in it."""
    host, port = mesh.edge
    said, killed = "", ""
    async with Router(mesh) as router, connect(host, port, ca=mesh.ca) as client:
        async with client.chat(
            asked.kind.messages,
            sampling=asked.sampling,
            tools=asked.tools,
            speculation="off",
            parallel_tool_calls=False,
        ) as chat:
            async for event in chat:
                said += event.text if isinstance(event, Committed) else ""
                if said and not killed:
                    # Such a small model would have ended its reply before the router answers.
                    signal_replicas(mesh, signal.SIGSTOP)
                    killed = await router.latest_replica()
                    os.kill(mesh.state.service(killed)["pid"], signal.SIGKILL)
                    signal_replicas(mesh, signal.SIGCONT)
            result = await chat.result()
    assert said == result.text == asked.text
    assert result.ids == asked.ids
    assert (result.content, result.reasoning) == (asked.read.content, asked.read.reasoning)
    assert result.num_moves == 1, "the chat was over too soon"
    assert result.replica != killed


def signal_replicas(mesh: LocalMesh, number: signal.Signals) -> None:
    for replica in mesh.services("inference"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(replica["pid"], number)


def check_replies(kind: ModelClass, asked: Sequence[Asked]) -> None:
    """They are worth comparing."""
    long, *forced = asked
    assert len(long.ids) == NUM_TOKENS and len(set(long.ids)) > NUM_TOKENS // 10
    assert bool(long.read.reasoning) == (kind.max_thinking_tokens >= 0)
    assert long.read.content
    assert [[name for name, _ in it.calls] for it in forced] == [["get_weather"]] * len(forced)
    assert len(forced) == bool(kind.tool)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
async def test_a_mesh_says_what_the_reference_says(
    kind: ModelClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    file = kind.write(tmp_path)
    asked = await asyncio.to_thread(truths, kind, file, ModelStore(tmp_path / "store"))
    check_replies(kind, asked)
    with local_mesh(settings=FEW, model=str(file), http=True) as mesh:
        for each in asked:
            await over_http(mesh, each)
        await native_and_killed(mesh, asked[0])
