"""The replica with the real model: exact text over gRPC, and the service as a process runs it."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from outrider.codec.ranks import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry.metrics import Metrics
from outrider.testing import leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from outrider.wire import sampling as wire_sampling
from outrider.wire import tokens as wire_tokens
from services.inference.app import LoadedModel, Replica, serve
from services.inference.config import InferenceConfig
from services.inference.engines.base import EngineInfo, Ids, Round, Rows
from services.inference.reference import ReferenceReply, generate

if TYPE_CHECKING:
    from services.inference.engines.openvino.engine import OpenVinoEngine

pytestmark = pytest.mark.model

QUESTIONS = (
    "Name three rivers.",
    "Write a Python function that reverses a list.",
    "Was ist die Hauptstadt von Frankreich?",
    "Repeat the word tick ten times.",
    "日本の首都はどこですか。",
    "Summarise: " + "the quick brown fox jumps over the lazy dog. " * 12,
)

RESERVED = range(3, 17)
"""Ids of tokens for repositories and files, which no chat reply has: drafts surely wrong."""


class Borrowed:
    """The session's shared engine, which the replica must not close."""

    def __init__(self, engine: OpenVinoEngine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def open(self, sequence: int, prompt: Ids) -> None:
        self._engine.open(sequence, prompt)

    def step(self, rounds: Sequence[Round]) -> list[Rows]:
        return self._engine.step(rounds)

    def close_sequence(self, sequence: int) -> None:
        self._engine.close_sequence(sequence)

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        return self._engine.export_blocks(blocks)

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._engine.import_blocks(blocks, data)

    def close(self) -> None:
        pass


def _sampling(number: int) -> SamplingParams:
    temperature = 0.8 if number % 2 else 0.0
    return SamplingParams(temperature=temperature, seed=number, max_tokens=20)


def _coder(vocabulary: Vocabulary) -> TokenCoder:
    return TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.digest))


def _opening(
    vocabulary: Vocabulary, prompt: list[int], sampling: SamplingParams, number: int
) -> inference_pb2.OpenSession:
    coder = _coder(vocabulary)
    return inference_pb2.OpenSession(
        request_id=str(number),
        vocabulary_digest=vocabulary.digest,
        ids=inference_pb2.PromptDelta(tail=wire_tokens.to_proto(coder.encode(prompt))),
        sampling=wire_sampling.to_proto(sampling),
        codecs=[common_pb2.TokenCodec.ValueType(codec) for codec in coder.supported],
    )


async def _converse(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
    vocabulary: Vocabulary,
    openings: list[inference_pb2.OpenSession],
    *,
    garbage: random.Random | None,
) -> list[tuple[int, ...]]:
    """Run all sessions at once; with `garbage`, answer every commit with wrong drafts."""
    coder = _coder(vocabulary)
    call = stub.Generate()
    for number, opening in enumerate(openings, start=1):
        up = inference_pb2.SessionUp(session=number, open=opening)
        await call.write(inference_pb2.GenerateRequest(frame=up))
    ids: dict[int, list[int]] = {number: [] for number in range(1, len(openings) + 1)}
    left = len(openings)
    epoch = 0
    while left:
        response = await call.read()
        assert isinstance(response, inference_pb2.GenerateResponse)
        frame = response.frame
        assert frame.WhichOneof("kind") != "error", frame.error.message
        left -= frame.WhichOneof("kind") == "done"
        if frame.WhichOneof("kind") != "commit":
            continue
        assert frame.commit.accepted == 0
        block = wire_tokens.from_proto(frame.commit.ids)
        ids[frame.session] += coder.decode(block, max_count=64)
        if garbage is not None:
            epoch += 1
            guess = [garbage.choice(RESERVED) for _ in range(5)]
            up = inference_pb2.SessionUp(
                session=frame.session,
                draft=inference_pb2.Draft(
                    epoch=epoch,
                    base=frame.commit.upto,
                    ids=wire_tokens.to_proto(coder.encode(guess)),
                ),
            )
            await call.write(inference_pb2.GenerateRequest(frame=up))
    await call.done_writing()
    return [tuple(tokens) for tokens in ids.values()]


@pytest.fixture(scope="module")
def prompts(vocabulary: Vocabulary) -> list[list[int]]:
    return [vocabulary.encode_chat([Message("user", question)]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def truth(
    openvino_engine: OpenVinoEngine, vocabulary: Vocabulary, prompts: list[list[int]]
) -> list[ReferenceReply]:
    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    return [
        generate(openvino_engine, prompt, _sampling(number), new_reply)
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("drafts", "chunk_tokens"), [("own", 5), ("off", 256), ("garbage", 32)])
async def test_concurrent_sessions_equal_the_reference(
    openvino_engine: OpenVinoEngine,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    truth: list[ReferenceReply],
    drafts: str,
    chunk_tokens: int,
) -> None:
    config = InferenceConfig(prefill_chunk_tokens=chunk_tokens, drain_s=0.0)

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    engine = Borrowed(openvino_engine)
    model = LoadedModel("smollm2", engine, _coder(vocabulary), vocabulary.digest, new_reply)
    openings = [
        _opening(vocabulary, prompt, _sampling(number), number)
        for number, prompt in enumerate(prompts)
    ]
    if drafts == "off":
        for frame in openings:
            frame.speculation = common_pb2.SPECULATION_OFF
    metrics = Metrics("test")
    replica = Replica(config, model, metrics)
    async with leak_check():
        await replica.start()
        async with make_channel(f"127.0.0.1:{replica.port}") as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            rng = random.Random(1) if drafts == "garbage" else None
            seen = await _converse(stub, vocabulary, openings, garbage=rng)
        await replica.stop()
    metrics.close()
    assert seen == [reply.ids for reply in truth]
    assert replica.scheduler.load().kv_blocks_free == engine.info.num_blocks


async def test_serve_loads_says_ready_and_stops(vocabulary: Vocabulary) -> None:
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    config = InferenceConfig(engine="fake", replica="r1", drain_s=0.0)
    async with leak_check():
        serving = asyncio.create_task(serve(config, ready=ports.set_result, stop=stop))
        bound = await ports

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{bound.admin}{path}") as answer:
                return bytes(answer.read())

        assert json.loads(await asyncio.to_thread(get, "/ready"))["ready"]
        async with make_channel(f"127.0.0.1:{bound.main}") as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            model = await stub.GetModel(inference_pb2.GetModelRequest())
            assert model.model == "smollm2-135m-instruct"
            assert model.vocabulary_digest == vocabulary.digest
            opening = _opening(vocabulary, [5, 6], SamplingParams(max_tokens=3), 1)
            (seen,) = await _converse(stub, vocabulary, [opening], garbage=None)
            assert len(seen) == 3
        assert b"ttft_ms_bucket" in await asyncio.to_thread(get, "/metrics")
        stop.set()
        await serving
