"""The tasks as chats: by the reference, and through a mesh."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jsonschema

from bench.harness.local_mesh import LocalMesh
from bench.structured.schemas import NUM_SHAPES, Task
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
from outrider.session.types import FinishReason
from services.inference.config import InferenceConfig
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable
from services.inference.reference import generate

MAX_TOKENS = 400
_PATIENCE_S = 120.0
_DURATION = re.compile(r"P(?!$)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?")
_FORMATS = jsonschema.FormatChecker(("date", "email", "ipv4", "uuid"))


def _is_moment(value: object) -> bool:
    """RFC 3339; Python knows no leap seconds."""
    if isinstance(value, str):
        datetime.datetime.fromisoformat(value.upper().replace(":60", ":59"))
    return not isinstance(value, str) or re.search(r"[zZ]|[+-]\d\d:\d\d$", value) is not None


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or _is_moment(f"2000-01-01T{value}")


def _is_duration(value: object) -> bool:
    return not isinstance(value, str) or _DURATION.fullmatch(value) is not None


_FORMATS.checks("date-time", raises=ValueError)(_is_moment)
_FORMATS.checks("time", raises=ValueError)(_is_time)
_FORMATS.checks("duration")(_is_duration)


@dataclass(frozen=True, slots=True)
class Said:
    """One reply."""

    ids: tuple[int, ...]
    text: str
    is_whole: bool
    """It ended by itself."""


@dataclass(frozen=True, slots=True)
class Round:
    """Some tasks, asked once."""

    replies: tuple[Said, ...]
    seconds: float
    num_accepted: int
    """Tokens that were drafts."""

    @property
    def num_tokens(self) -> int:
        return sum(len(said.ids) for said in self.replies)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


def sampling(task: Task, number: int) -> SamplingParams:
    """Every second one is sampled, of every shape half of them."""
    temperature = 0.8 * ((number + number // NUM_SHAPES) % 2)
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
    """Whether the reply is JSON, whole, and what the schema says: judged by the package jsonschema,
    formats by Python's own parsers. Neither knows llguidance."""
    if not said.is_whole:
        return False
    judge = jsonschema.Draft202012Validator(task.schema, format_checker=_FORMATS)
    try:
        return bool(judge.is_valid(json.loads(said.text)))
    except ValueError:
        return False


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
    """All of them, so many at a time; when `kill_after` replies are there, the replica that gave
    the last one is killed (SIGKILL)."""
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
    return Round(tuple(replies), seconds, num_accepted)


def num_moved(mesh: LocalMesh) -> int:
    """Replies that the router had go on at another replica."""
    (router,) = mesh.services("router")
    url = f"http://{mesh.state.host}:{router['admin_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    moves = [line for line in lines if line.startswith("outrider_router_moves_total")]
    return round(sum(float(line.split()[-1]) for line in moves))


def _kill(mesh: LocalMesh, replica: str) -> None:
    """The mesh's supervisor starts another."""
    (row,) = (row for row in mesh.services("inference") if row["name"] == replica)
    os.kill(row["pid"], signal.SIGKILL)
