"""The tasks as chats: by the reference, and through a mesh."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jsonschema

from bench.harness.local_mesh import LocalMesh
from bench.structured.schemas import Task
from outrider.client import ReconnectPolicy, connect
from outrider.client.wire import SpeculationName
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.grammar import json_schema
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session_types import FinishReason
from services.inference.config import InferenceConfig
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable
from services.inference.reference import generate

MAX_TOKENS = 400
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Said:
    """One reply."""

    ids: tuple[int, ...]
    text: str
    is_whole: bool
    """It ended by itself."""


@dataclass(frozen=True, slots=True)
class Round:
    """All tasks, asked once."""

    replies: tuple[Said, ...]
    seconds: float
    accepted_share: float
    """Of the tokens, those that were drafts."""

    @property
    def tokens_per_s(self) -> float:
        return sum(len(said.ids) for said in self.replies) / self.seconds


def sampling(task: Task, number: int) -> SamplingParams:
    """Every second one is sampled."""
    temperature = 0.8 * (number % 2)
    return SamplingParams(
        temperature=temperature,
        top_p=0.95,
        seed=number,
        max_tokens=MAX_TOKENS,
        grammar=json_schema(task.schema),
    )


def without_schema(params: SamplingParams, num_tokens: int) -> SamplingParams:
    """As many tokens of free text."""
    return replace(params, grammar=None, max_tokens=num_tokens, ignore_eos=True)


def is_valid(task: Task, said: Said) -> bool:
    """Whether the reply is JSON, whole, and what the schema says."""
    if not said.is_whole:
        return False
    try:
        jsonschema.validate(json.loads(said.text), task.schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def references(tasks: Sequence[Task]) -> list[Said]:
    """The truth: one after the other, one token at a time; blocks for minutes."""
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    table = TokenTable(vocabulary)
    config = InferenceConfig(max_fixed_rows=1, threads=os.cpu_count() or 1)
    engine = create_engine(config.engine_config(vocabulary.size))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    said: list[Said] = []
    try:
        for number, task in enumerate(tasks):
            params = sampling(task, number)
            assert params.grammar is not None
            constraint = compile_grammar(table, params.grammar).constraint()
            ids = vocabulary.encode_chat([Message("user", task.prompt)])
            reply = generate(engine, ids, params, new_reply, constraint=constraint)
            whole = reply.finish_reason is FinishReason.STOP
            said.append(Said(reply.ids, reply.text, whole))
    finally:
        engine.close()
    return said


async def ask(
    mesh: LocalMesh,
    tasks: Sequence[Task],
    params: Sequence[SamplingParams],
    *,
    parallel: int,
    speculation: SpeculationName,
    kill_after: int = 0,
) -> Round:
    """All of them, so many at a time; when `kill_after` replies are there, a replica that has chats
    is killed (SIGKILL)."""
    host, port = mesh.edge
    gate = asyncio.Semaphore(parallel)
    num_done = num_accepted = 0
    patient = ReconnectPolicy(give_up_after_s=_PATIENCE_S)
    async with connect(host, port, ca=mesh.ca, reconnect=patient) as client:

        async def one(task: Task, how: SamplingParams) -> Said:
            nonlocal num_done, num_accepted
            async with gate:
                message = Message("user", task.prompt)
                asked = client.chat([message], sampling=how, speculation=speculation)
                async with asked as chat:
                    result = await chat.result()
            num_done += 1
            num_accepted += result.usage.accepted_tokens
            if num_done == kill_after:
                _kill(mesh, result.replica)
            whole = result.finish_reason is FinishReason.STOP
            return Said(result.ids, result.text, whole)

        begin = time.perf_counter()
        pairs = zip(tasks, params, strict=True)
        replies = await asyncio.gather(*(one(task, how) for task, how in pairs))
        seconds = time.perf_counter() - begin
    num_tokens = sum(len(said.ids) for said in replies)
    return Round(tuple(replies), seconds, num_accepted / max(1, num_tokens))


def _kill(mesh: LocalMesh, replica: str) -> None:
    """The mesh's supervisor starts another."""
    rows = mesh.services("inference")
    named = [row for row in rows if row["name"] in replica or replica in row["name"]]
    os.kill((named or rows)[0]["pid"], signal.SIGKILL)
