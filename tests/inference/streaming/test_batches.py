"""Frames of many sessions in one message, both ways."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from outrider import errors
from outrider.rpc import from_rpc_error
from outrider.rpc.frames import MAX_FRAMES
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.inference.model_thread import ModelTick
from services.inference.scheduler.types import SessionCommit
from tests.inference.harness import GatedEngine, opening, reference, running

LONG = SamplingParams(max_tokens=30, ignore_eos=True)
NUMBERS = range(1, 5)


def opens() -> list[inference_pb2.SessionUp]:
    return [
        inference_pb2.SessionUp(session=number, open=opening([number + 4], LONG))
        for number in NUMBERS
    ]


async def test_what_one_engine_call_commits_is_one_message() -> None:
    async with running(GatedEngine()) as it:
        engine = it.engine
        assert isinstance(engine, GatedEngine)
        call: Any = it.stub.Generate()
        await call.write(inference_pb2.GenerateRequest(frames=opens()))
        await eventually(lambda: engine.waiting.is_set() and len(it.replica.table) == 4)
        num_calls = 0
        take = it.replica.runner._on_tick

        def counted(tick: ModelTick) -> None:
            nonlocal num_calls
            num_calls += any(isinstance(event, SessionCommit) for event in tick.events)
            take(tick)

        it.replica.runner._on_tick = counted
        engine.gate.set()
        num_messages = num_commits = num_done = 0
        while num_done < len(NUMBERS):
            kinds = [frame.WhichOneof("kind") for frame in (await call.read()).frames]
            num_messages += "commit" in kinds
            num_commits += kinds.count("commit")
            num_done += kinds.count("done")
        assert num_messages <= num_calls < num_commits


async def test_a_bad_frame_ends_its_session_alone() -> None:
    async with running() as it:
        peer = it.peer()
        first, second, third, _ = opens()
        second.open.vocabulary_digest = b"another"
        bad = inference_pb2.SessionUp(session=9)
        request = inference_pb2.GenerateRequest(frames=[first, second, bad, third])
        await peer.call.write(request)
        for number in (1, 3):
            assert tuple((await peer.finish(number)).ids) == reference([number + 4], LONG).ids
        assert type((await peer.finish(2)).error) is errors.VocabularyMismatchError
        assert type((await peer.finish(9)).error) is errors.MalformedFrameError


@pytest.mark.parametrize("count", [0, MAX_FRAMES + 1])
async def test_a_message_out_of_bounds_ends_its_stream(count: int) -> None:
    async with running() as it:
        call: Any = it.stub.Generate()
        cancel = inference_pb2.SessionUp(session=1, cancel=inference_pb2.CancelSession())
        await call.write(inference_pb2.GenerateRequest(frames=[cancel] * count))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert type(from_rpc_error(caught.value)) is errors.MalformedFrameError
