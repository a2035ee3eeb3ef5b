"""A replica that embeds over real gRPC, with a small model, and with an engine that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import numpy as np
import pytest

from outrider.codec.vectors import VectorFormat, unpacked
from outrider.engines.embedding import Embedder, EmbedderInfo, Ids, Vectors
from outrider.errors import (
    ConfigError,
    DrainingError,
    EngineError,
    InvalidRequestError,
    MalformedFrameError,
    OutriderError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.models.definitions import ModelSpec
from outrider.rpc import make_channel
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.v1 import embedding_pb2, embedding_pb2_grpc, inference_pb2, inference_pb2_grpc
from outrider.wire import error_from_proto
from services.inference.config import InferenceConfig
from services.inference.embedding import service
from services.inference.embedding.app import EmbeddingReplica, LoadedEmbedder, load_embedder
from services.inference.embedding_limits import EmbeddingLimits
from tests.models.encoders import WIDTH, write_encoder

TEXTS = ["the cat sat.", "a dog", "the cats sat. the dogs sat.", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedEmbedder:
    folder = tmp_path_factory.mktemp("embedder")
    write_encoder(folder / "model", max_tokens=16)
    config = configured(folder)
    return load_embedder(config, ModelSpec("tiny", f"dir:{folder / 'model'}", embeds=True))


def configured(folder: Path, **limits: Any) -> InferenceConfig:
    return InferenceConfig(
        port=0,
        admin=AdminConfig(port=0),
        replica="r0",
        region="here",
        model_store=folder / "store",
        drain_s=0.0,
        embedding=EmbeddingLimits(**limits),
    )


class Waiting:
    """An engine that computes what another one does, once it may."""

    def __init__(self, engine: Embedder) -> None:
        self._engine = engine
        self.may_go = threading.Event()
        self.num_calls = 0
        self.failure: Exception | None = None

    @property
    def info(self) -> EmbedderInfo:
        return self._engine.info

    def embed(self, texts: Sequence[Ids]) -> Vectors:
        self.num_calls += 1
        assert self.may_go.wait(60)
        if self.failure is not None:
            raise self.failure
        return self._engine.embed(texts)

    def close(self) -> None:
        """The other one is used again."""


@asynccontextmanager
async def running(
    model: LoadedEmbedder, *, waits: bool = False, **limits: Any
) -> AsyncIterator[tuple[EmbeddingReplica, Waiting, grpc.aio.Channel]]:
    engine = Waiting(model.engines[0])
    if not waits:
        engine.may_go.set()
    config = configured(Path("/nowhere"), **limits)
    metrics = Metrics("inference")
    replica = EmbeddingReplica(config, replace(model, engines=(engine,)), metrics)
    await replica.start()
    try:
        async with make_channel(f"127.0.0.1:{replica.port}") as channel:
            yield replica, engine, channel
    finally:
        engine.may_go.set()
        await replica.stop()
        metrics.close()


Answers = dict[int, "Vectors | OutriderError"]


async def embedded(
    channel: grpc.aio.Channel, inputs: Iterable[str | list[int]], **opened: Any
) -> tuple[Answers, embedding_pb2.EmbedDone]:
    """What becomes of each input, by its place."""
    stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
    stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    call = stub.Embed(iter(requests(inputs, **opened)))
    return await answers_of(call)


def requests(
    inputs: Iterable[str | list[int]], **opened: Any
) -> Iterable[embedding_pb2.EmbedRequest]:
    yield embedding_pb2.EmbedRequest(open=embedding_pb2.OpenEmbed(**opened))
    for number, given in enumerate(inputs):
        one = embedding_pb2.EmbedInput(id=number)
        if isinstance(given, str):
            one.text = given
        else:
            one.ids = np.array(given, "<u4").tobytes()
        yield embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=[one]))


async def at_once(
    channel: grpc.aio.Channel, inputs: Iterable[str | list[int]], **opened: Any
) -> tuple[Answers, embedding_pb2.EmbedDone]:
    """As `embedded`, in one message each way."""
    stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
    stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    first, *others = requests(inputs, **opened)
    asked = embedding_pb2.EmbedAtOnceRequest(open=first.open)
    for other in others:
        asked.inputs.extend(other.inputs.inputs)
    answer = await stub.EmbedAtOnce(asked)
    return await answers_of(Frames(answer.answers))


class Frames:
    """Answers that are there already, as a call."""

    def __init__(self, answers: Iterable[embedding_pb2.EmbedResponse]) -> None:
        self._answers = iter(answers)

    def __aiter__(self) -> Frames:
        return self

    async def __anext__(self) -> embedding_pb2.EmbedResponse:
        for answer in self._answers:
            return answer
        raise StopAsyncIteration

    def cancel(self) -> None:
        """There is nothing to cancel."""


async def answers_of(call: Any) -> tuple[Answers, embedding_pb2.EmbedDone]:
    found: Answers = {}
    async for answer in call:
        kind = answer.WhichOneof("kind")
        if kind == "done":
            return found, answer.done
        if kind == "error":
            call.cancel()
            raise error_from_proto(answer.error)
        if kind == "failed":
            assert answer.failed.id not in found
            found[answer.failed.id] = error_from_proto(answer.failed.error)
            continue
        told = answer.vectors
        rows = unpacked(told.data, told.scales, told.dimensions, VectorFormat(told.format))
        for number, row in zip(told.ids, rows, strict=True):
            assert number not in found
            found[number] = row
    raise AssertionError("the replica ended the request without a last frame")


async def test_vectors_are_those_of_the_engine(model: LoadedEmbedder) -> None:
    async with running(model) as (_, _, channel):
        found, done = await embedded(channel, TEXTS, model="tiny")
        small, _ = await embedded(
            channel, TEXTS, dimensions=8, format=embedding_pb2.VECTOR_FORMAT_I8
        )
    assert done.model_identity == model.contract.model_identity
    num_tokens = 0
    for number, text in enumerate(TEXTS):
        ids = model.tokenizer.encode(text)
        num_tokens += len(ids)
        vector, short = found[number], small[number]
        assert isinstance(vector, np.ndarray) and isinstance(short, np.ndarray)
        assert vector.tobytes() == model.engines[0].embed([ids])[0].tobytes()
        assert len(vector) == WIDTH and len(short) == 8
        assert short @ vector[:8] / np.linalg.norm(vector[:8]) > 0.99
    assert done.usage.prompt_tokens == num_tokens


async def test_few_inputs_in_one_message_have_the_same_answers(model: LoadedEmbedder) -> None:
    inputs: list[str | list[int]] = [*TEXTS, "a " * 40, [2, 5, 3], [999_999]]
    async with running(model, max_input_bytes=100) as (replica, _, channel):
        for opened in ({}, {"dimensions": 8, "format": embedding_pb2.VECTOR_FORMAT_I8}):
            streamed, at_end = await embedded(channel, inputs, **opened)
            found, done = await at_once(channel, inputs, **opened)
            assert done == at_end and found.keys() == streamed.keys()
            for number, vector in found.items():
                expected = streamed[number]
                if isinstance(vector, OutriderError):
                    assert isinstance(expected, OutriderError)
                    assert vector.reason == expected.reason
                else:
                    assert isinstance(expected, np.ndarray)
                    assert vector.tobytes() == expected.tobytes()
        with pytest.raises(MalformedFrameError, match="at most 32"):
            await at_once(channel, ["a"] * 33)
        with pytest.raises(MalformedFrameError, match="number 0"):
            stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
            stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
            twice = [embedding_pb2.EmbedInput(id=0, text="a")] * 2
            answer = await stub.EmbedAtOnce(embedding_pb2.EmbedAtOnceRequest(inputs=twice))
            await answers_of(Frames(answer.answers))
        assert replica.service.num_requests == 0
        await eventually(lambda: replica.pipeline.load.num_inputs == 0)


async def test_what_is_counted(model: LoadedEmbedder) -> None:
    async with running(model) as (replica, _, channel):
        await embedded(channel, ["the cat", "a " * 40])
        replica.record()
        sample = replica.metrics.registry.get_sample_value
        tokens, inputs = "outrider_embedding_tokens_total", "outrider_embedding_inputs_total"
        assert sample(tokens, {"kind": "text"}) == sample(tokens, {"kind": "padding"}) == 4
        assert sample(inputs, {"outcome": "vector"}) == sample(inputs, {"outcome": "error"}) == 1
        assert sample("outrider_embedding_waiting_inputs") == 0
        assert (sample("outrider_engine_time_seconds_total", {"state": "busy"}) or 0) > 0


async def test_one_bad_input_fails_alone(model: LoadedEmbedder) -> None:
    inputs: list[str | list[int]] = ["the cat", "a " * 40, [2, 5, 3], [999_999], [], "a dog"]
    async with running(model, max_input_bytes=100) as (_, _, channel):
        found, _ = await embedded(channel, inputs)
        cut, _ = await embedded(channel, ["a " * 40], truncate=True)
    errors = {n: it.reason for n, it in found.items() if isinstance(it, OutriderError)}
    assert errors == {1: "PROMPT_TOO_LONG", 3: "INVALID_REQUEST", 4: "INVALID_REQUEST"}
    assert isinstance(cut[0], np.ndarray)


async def test_what_replicas_tell_routers(model: LoadedEmbedder) -> None:
    async with running(model) as (replica, _, channel):
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        told = await stub.GetModel(inference_pb2.GetModelRequest())
        assert (told.model, told.embedding_dimensions) == ("tiny", WIDTH)
        assert told.max_context_tokens == 16
        load = await anext(aiter(stub.WatchLoad(inference_pb2.WatchLoadRequest())))
        assert load.row_ms > 0
        session = inference_pb2.SessionUp(session=1, open=inference_pb2.OpenSession())
        refused = stub.Generate(iter([inference_pb2.GenerateRequest(frames=[session])]))
        (frame,) = (await anext(aiter(refused))).frames
        assert "/v1/embeddings" in frame.error.message
        assert replica.readiness()[0]


@pytest.mark.parametrize(
    ("opened", "error"),
    [
        ({"model": "other"}, UnknownModelError),
        ({"dimensions": 1000}, InvalidRequestError),
        ({"format": 9}, InvalidRequestError),
        ({"model_identity": b"another"}, VocabularyMismatchError),
    ],
)
async def test_requests_that_cannot_be_served(
    model: LoadedEmbedder, opened: dict[str, Any], error: type[OutriderError]
) -> None:
    async with running(model) as (replica, _, channel):
        with pytest.raises(error):
            await embedded(channel, ["a"], **opened)
        assert replica.service.num_requests == 0


async def test_a_deadline_passes_for_the_inputs_that_wait(model: LoadedEmbedder) -> None:
    async with running(model, waits=True, max_batch_texts=1) as (replica, engine, channel):
        asking = asyncio.create_task(embedded(channel, ["the cat", "a"]))
        await eventually(lambda: engine.num_calls == 1)
        late, _ = await embedded(channel, ["the dog"], deadline_ms=1)
        assert isinstance(late[0], OutriderError) and late[0].reason == "DEADLINE"
        engine.may_go.set()
        found, _ = await asking
        assert isinstance(found[0], np.ndarray) and isinstance(found[1], np.ndarray)
        assert replica.pipeline.load.num_inputs == 0


async def test_a_peer_that_leaves_leaves_nothing_behind(model: LoadedEmbedder) -> None:
    async with running(model, waits=True, max_batch_texts=1) as (replica, _, channel):
        stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        call = stub.Embed(iter(requests(["the cat"] * 20)))
        await eventually(lambda: replica.pipeline.load.num_inputs == 20)
        call.cancel()
        await eventually(lambda: replica.pipeline.load.num_inputs == 0)
        asking = asyncio.create_task(at_once(channel, ["the cat"] * 20))
        await eventually(lambda: replica.pipeline.load.num_inputs == 20)
        asking.cancel()
        await eventually(lambda: replica.pipeline.load.num_inputs == 0)
        assert replica.service.num_requests == 0


async def test_more_than_it_holds_is_refused_input_by_input(model: LoadedEmbedder) -> None:
    async with running(model, waits=True, max_inputs=4) as (replica, engine, channel):
        asking = asyncio.create_task(embedded(channel, ["the cat"] * 4))
        await eventually(lambda: replica.pipeline.load.num_inputs == 4)
        refused, _ = await embedded(channel, ["the cat"] * 2)
        assert [it.reason for it in refused.values() if isinstance(it, OutriderError)] == [
            *("OVERLOADED", "OVERLOADED")
        ]
        engine.may_go.set()
        found, _ = await asking
        assert sum(isinstance(it, np.ndarray) for it in found.values()) == 4


async def test_a_frame_beyond_what_may_be_unread_is_taken_in_parts(
    model: LoadedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more inputs are at work than the peer may leave unread, and a peer that reads has all."""
    monkeypatch.setattr(service, "MAX_UNREAD_BYTES", 8 * WIDTH * 4)
    opened = embedding_pb2.EmbedRequest(open=embedding_pb2.OpenEmbed())
    given = [embedding_pb2.EmbedInput(id=number, text="the cat") for number in range(100)]
    frame = embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=given))
    async with running(model, waits=True) as (replica, engine, channel):
        stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        call = stub.Embed(iter([opened, frame]))
        await eventually(lambda: replica.pipeline.load.num_inputs == 8)
        engine.may_go.set()
        found, _ = await answers_of(call)
        assert sum(isinstance(it, np.ndarray) for it in found.values()) == 100


async def test_a_peer_that_does_not_read_has_no_more_vectors_made(
    model: LoadedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_UNREAD_BYTES", 8 * WIDTH * 4)
    given = [embedding_pb2.EmbedInput(id=number, text="the cat") for number in range(20)]
    given.append(embedding_pb2.EmbedInput(id=20, ids=np.array([999_999], "<u4").tobytes()))
    frame = embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=given))
    async with running(model) as (replica, _, _):
        request = service._Request(model.contract, replica.pipeline, embedding_pb2.OpenEmbed())
        taking = asyncio.create_task(request.take(frame))
        read: list[int] = []

        def has_made(count: int) -> bool:
            return replica.pipeline.counts.vectors >= count

        for most in range(8, 22):
            await eventually(partial(has_made, min(most, 20)))
            while len(read) < most - 7:
                answer = await request.next()
                assert answer is not None
                read += [*answer.vectors.ids] or [answer.failed.id]
            assert replica.pipeline.counts.vectors <= len(read) + 8
        await taking
        request.no_more_inputs()
        while (answer := await request.next()) is not None:
            read += [*answer.vectors.ids] or [answer.failed.id]
        assert sorted(read) == list(range(21))


async def test_all_vectors_of_a_call_come_before_the_end_of_the_request(
    model: LoadedEmbedder,
) -> None:
    """Whatever else the call answers."""

    keys = iter((1, 2))
    pipeline: Any = SimpleNamespace(submit=lambda given: next(keys))
    request = service._Request(model.contract, pipeline, embedding_pb2.OpenEmbed())
    for number in (0, 1):
        request.add(embedding_pb2.EmbedInput(id=number, text="the cat"))
    request.no_more_inputs()
    vector = model.engines[0].embed([model.tokenizer.encode("the cat")])[0]
    request._answered([(2, (vector, 2)), (1, EngineError("it failed"))])
    kinds = []
    while (answer := await request.next()) is not None:
        kinds.append(answer.WhichOneof("kind"))
    assert kinds == ["vectors", "failed"]


async def test_an_engine_that_fails_again_and_again_ends_the_replica(
    model: LoadedEmbedder,
) -> None:
    async with running(model) as (replica, engine, channel):
        engine.failure = EngineError("it is broken")
        for _ in range(3):
            found, _ = await embedded(channel, ["the cat"])
            assert isinstance(found[0], EngineError)
        await eventually(replica.broken.is_set)
        assert replica.problem == "it is broken"


class PanicException(BaseException):
    """What a Rust package raises that panics."""


class Panicking:
    """A tokenizer that fails with one text in the way that the text says."""

    def __init__(self, model: LoadedEmbedder) -> None:
        self._tokenizer = model.tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *, truncate: bool = False) -> Ids:
        if text == "panic":
            raise PanicException("index out of range")
        if text == "exit":
            raise SystemExit
        return self._tokenizer.encode(text, truncate=truncate)


async def test_a_tokenizer_that_panics_costs_its_text(model: LoadedEmbedder) -> None:
    panicking: Any = Panicking(model)
    panicked = replace(model, tokenizer=panicking)
    async with running(panicked, tokenizer_threads=1) as (replica, engine, channel):
        asking = asyncio.create_task(embedded(channel, ["panic", "the cat", "panic", "a dog"]))
        await eventually(asking.done)
        found, _ = await asking
        assert isinstance(found[0], EngineError) and isinstance(found[2], EngineError)
        assert isinstance(found[1], np.ndarray) and isinstance(found[3], np.ndarray)
        failure: Any = PanicException("attempt to subtract with overflow")
        engine.failure = failure
        found, _ = await embedded(channel, ["the cat"])
        assert isinstance(found[0], EngineError)
        engine.failure = None
        assert not replica.broken.is_set()
        waiting = asyncio.create_task(embedded(channel, ["exit"]))
        await eventually(replica.broken.is_set)
        assert replica.problem == "the thread tokenizer-0 ended: SystemExit"
        waiting.cancel()


async def test_a_text_alone_has_all_threads_and_others_an_engine_each(
    model: LoadedEmbedder,
) -> None:
    narrow, wide = [Waiting(model.engines[0]) for _ in range(2)], Waiting(model.engines[0])
    loaded = replace(model, engines=tuple(narrow), wide=wide)
    replica = EmbeddingReplica(configured(Path("/nowhere")), loaded, Metrics("inference"))
    await replica.start()
    try:
        async with make_channel(f"127.0.0.1:{replica.port}") as channel:
            first = asyncio.create_task(embedded(channel, ["the cat"]))
            await eventually(lambda: wide.num_calls == 1)
            # Its client is gone; the engine is not free for that.
            first.cancel()
            await eventually(lambda: replica.pipeline.load.num_inputs == 0)
            others = [asyncio.create_task(embedded(channel, ["the cat"]))]
            await eventually(lambda: sum(engine.num_calls for engine in narrow) == 1)
            others.append(asyncio.create_task(embedded(channel, ["the cat"])))
            wide.may_go.set()
            await eventually(lambda: all(engine.num_calls == 1 for engine in narrow))
            assert wide.num_calls == 1
            for engine in narrow:
                engine.may_go.set()
            for found, _ in await asyncio.gather(*others):
                assert isinstance(found[0], np.ndarray)
    finally:
        for engine in (*narrow, wide):
            engine.may_go.set()
        await replica.stop()
        replica.metrics.close()


async def test_a_drained_replica_takes_nothing_new(model: LoadedEmbedder) -> None:
    async with running(model) as (_, _, channel):
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await stub.Drain(inference_pb2.DrainRequest())
        with pytest.raises(DrainingError):
            await embedded(channel, ["a"])
        with pytest.raises(DrainingError):
            await at_once(channel, ["a"])
        await stub.Drain(inference_pb2.DrainRequest(undo=True))
        assert len((await embedded(channel, ["a"]))[0]) == 1


def test_the_fake_engine_makes_no_vectors(tmp_path: Path) -> None:
    config = replace(configured(tmp_path), engine="fake")
    with pytest.raises(ConfigError, match="no vectors"):
        load_embedder(config, ModelSpec("tiny", "dir:/nowhere", embeds=True))
