"""The replica with the real model: exact text over gRPC, and the service as a process runs it."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.session.region_wire import ids_of, put_ids
from outrider.session.types import TokenLogprobs
from outrider.telemetry.metrics import Metrics
from outrider.testing import leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from outrider.wire import logprobs_from_proto, sampling_to_proto, token_block_to_proto
from services.inference.app import LoadedModel, Replica, serve
from services.inference.config import InferenceConfig
from services.inference.reference import ReferenceReply, generate
from services.inference.scheduler.limits import SchedulerLimits
from tests.inference.integration.real_engine import Borrowed, coder_of, loaded, texts_of

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

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


def _sampling(number: int) -> SamplingParams:
    temperature = 0.8 if number % 2 else 0.0
    num_logprobs = (3, -1, 0)[number % 3]
    return SamplingParams(
        temperature=temperature, seed=number, max_tokens=20, num_logprobs=num_logprobs
    )


def _opening(
    vocabulary: Vocabulary, prompt: list[int], sampling: SamplingParams, number: int
) -> inference_pb2.OpenSession:
    coder = coder_of(vocabulary)
    return inference_pb2.OpenSession(
        request_id=str(number),
        vocabulary_digest=vocabulary.digest,
        ids=inference_pb2.PromptDelta(tail=token_block_to_proto(coder.encode(prompt))),
        sampling=sampling_to_proto(sampling),
        codecs=[common_pb2.TokenCodec.ValueType(codec) for codec in coder.supported],
    )


class Conversation:
    """All sessions at once on one stream; with `garbage`, every commit gets wrong drafts."""

    def __init__(
        self,
        stub: inference_pb2_grpc.InferenceServiceAsyncStub,
        vocabulary: Vocabulary,
        garbage: random.Random | None = None,
    ) -> None:
        self._coder = coder_of(vocabulary)
        self._garbage = garbage
        self._call = stub.Generate()
        self._epoch = 0
        self._ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}

    async def run(self, openings: list[inference_pb2.OpenSession]) -> list[tuple[int, ...]]:
        for number, opening in enumerate(openings, start=1):
            self._ids[number] = []
            self.logprobs[number] = []
            await self._send(inference_pb2.SessionUp(session=number, open=opening))
        left = len(openings)
        while left:
            response = await self._call.read()
            assert isinstance(response, inference_pb2.GenerateResponse)
            for frame in response.frames:
                kind = frame.WhichOneof("kind")
                assert kind != "error", frame.error.message
                left -= kind == "done"
                if kind == "commit":
                    await self._commit(frame.session, frame.commit)
        await self._call.done_writing()
        return [tuple(tokens) for tokens in self._ids.values()]

    async def _commit(self, number: int, commit: inference_pb2.Commit) -> None:
        assert commit.accepted == 0
        self._ids[number] += ids_of(commit, self._coder, max_count=64)
        details = inference_pb2.CommitDetails.FromString(commit.details)
        self.logprobs[number] += logprobs_from_proto(details.logprobs, max_tokens=64)
        if self._garbage is None:
            return
        self._epoch += 1
        guess = [self._garbage.choice(RESERVED) for _ in range(5)]
        draft = inference_pb2.Draft(epoch=self._epoch, base=commit.upto)
        put_ids(draft, self._coder, guess, self._coder.supported[0])
        await self._send(inference_pb2.SessionUp(session=number, draft=draft))

    async def _send(self, frame: inference_pb2.SessionUp) -> None:
        await self._call.write(inference_pb2.GenerateRequest(frames=[frame]))


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    async with make_channel(f"127.0.0.1:{port}") as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        yield stub


@pytest.fixture(scope="module")
def prompts(vocabulary: Vocabulary) -> list[list[int]]:
    return [vocabulary.encode_chat([Message("user", question)]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def model(openvino_engine: OpenVinoEngine, vocabulary: Vocabulary) -> LoadedModel:
    return loaded(Borrowed(openvino_engine), vocabulary)


@pytest.fixture(scope="module")
def truth(
    model: LoadedModel, vocabulary: Vocabulary, prompts: list[list[int]]
) -> list[ReferenceReply]:
    return [
        generate(model.engine, prompt, _sampling(number), texts_of(vocabulary))
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("drafts", "chunk_tokens"), [("own", 5), ("off", 256), ("garbage", 32), ("predicted", 256)]
)
async def test_concurrent_sessions_equal_the_reference(
    model: LoadedModel,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    truth: list[ReferenceReply],
    drafts: str,
    chunk_tokens: int,
) -> None:
    pairs = enumerate(prompts)
    openings = [_opening(vocabulary, prompt, _sampling(n), n) for n, prompt in pairs]
    for frame in openings if drafts == "off" else ():
        frame.speculation = common_pb2.SPECULATION_OFF
    for frame, reply in zip(openings, truth, strict=True) if drafts == "predicted" else ():
        edited = [*reply.ids[:6], 99, *reply.ids[8:]]
        frame.prediction.CopyFrom(token_block_to_proto(coder_of(vocabulary).encode(edited)))
    garbage = random.Random(1) if drafts == "garbage" else None
    config = InferenceConfig(
        scheduler=SchedulerLimits(prefill_chunk_tokens=chunk_tokens), port=0, drain_s=0.0
    )
    metrics = Metrics("test")
    replica = Replica(config, model, metrics)
    async with leak_check():
        await replica.start()
        async with _connected(replica.port) as stub:
            conversation = Conversation(stub, vocabulary, garbage)
            seen = await conversation.run(openings)
        await replica.stop()
    metrics.close()
    assert seen == [reply.ids for reply in truth]
    told = [tuple(logprobs) for logprobs in conversation.logprobs.values()]
    assert told == [reply.logprobs for reply in truth], "bit for bit"
    assert replica.scheduler.load().kv_blocks_free == model.engine.info.num_blocks


async def test_serve_loads_says_ready_and_stops(vocabulary: Vocabulary) -> None:
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    config = InferenceConfig(engine="fake", port=0, replica="r1", drain_s=0.0)
    async with leak_check():
        serving = asyncio.create_task(serve(config, ready=ports.set_result, stop=stop))
        bound = await ports

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{bound.admin}{path}") as answer:
                return bytes(answer.read())

        assert json.loads(await asyncio.to_thread(get, "/ready"))["ready"]
        async with _connected(bound.main) as stub:
            model = await stub.GetModel(inference_pb2.GetModelRequest())
            assert model.model == "smollm2-135m-instruct"
            assert model.vocabulary_digest == vocabulary.digest
            opening = _opening(vocabulary, [5, 6], SamplingParams(max_tokens=3), 1)
            (seen,) = await Conversation(stub, vocabulary).run([opening])
            assert len(seen) == 3
        assert b"outrider_ttft_seconds_bucket" in await asyncio.to_thread(get, "/metrics")
        stop.set()
        await serving
