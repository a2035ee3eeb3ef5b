"""The real model, and an edge whose draft stream fails in all ways, over real gRPC.

The engine takes a step when the test lets it, so that drafts arrive while a call is under way, as
they do in life, and not sooner or later by chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.harness.region_client import RegionClient, opening_frame
from outrider.engines.base import (
    EngineInfo,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    SizingRule,
    no_work,
)
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.session.region_wire import ids_of, put_ids
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check
from outrider.v1 import inference_pb2
from services.inference.app import Replica
from services.inference.config import InferenceConfig
from services.inference.reference import generate
from services.inference.runner import ModelRunner
from tests.inference.integration.real_engine import Borrowed, coder_of, loaded, texts_of

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

pytestmark = pytest.mark.model

PASSAGE = (
    "The harbour lay quiet under a pale moon. Seven boats rocked at the pier, and an old man "
    "counted the lanterns on the far shore. Somewhere behind the warehouses a dog barked twice."
)
ASK = f"Repeat the following text word for word:\n\n{PASSAGE}"
"""The reply copies it: the region's own drafts are right."""
SAMPLING = SamplingParams(max_tokens=64)
LEAD = 8

Frames = Callable[[Sequence[int], int], tuple[int, Sequence[int]] | None]
"""Truth and number of final tokens -> base and ids of the frame that arrives now."""


class SteppedEngine(Borrowed):
    """Takes as many steps as it is allowed, and says that it computes calls of a few rows as calls
    of many: drafts are free, so how many are verified depends on no measured time."""

    def __init__(self, engine: OpenVinoEngine) -> None:
        super().__init__(engine)
        self._allowed = threading.Semaphore(0)
        self._num_allowed = self._num_begun = 0

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, sizing=SizingRule((1 + LEAD,)))

    async def waits(self) -> None:
        """Return when a call is under way that is not allowed yet."""
        await eventually(lambda: self._num_begun > self._num_allowed)

    def allow(self) -> None:
        self._num_allowed += 1
        self._allowed.release()

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        overlapped_work()
        self._num_begun += 1
        if not self._allowed.acquire(timeout=60):
            raise RuntimeError("nobody allowed a step")
        return super().step(slices)


def silent(truth: Sequence[int], final: int) -> None:
    """A black hole: nothing of what the edge sends arrives."""


def garbage(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]]:
    """Wrong from the token on that the call under way does not commit: it stays ahead."""
    return final, [*truth[final : final + 1], *(t + 1 for t in truth[final + 1 : final + LEAD])]


def outdated(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]]:
    """As if from another place of the text."""
    return final, truth[max(0, final - 30) : max(0, final - 20)]


class Edge:
    """One session at a time on a replica around the engine."""

    def __init__(self, replica: Replica, engine: SteppedEngine, vocabulary: Vocabulary) -> None:
        assert isinstance(replica.runner, ModelRunner)
        self._inbox = replica.runner._inbox
        self._address = f"127.0.0.1:{replica.port}"
        self._engine = engine
        self._vocabulary = vocabulary
        self._coder = coder_of(vocabulary)

    async def num_calls(self, prompt: list[int], truth: Sequence[int], frames: Frames) -> int:
        """Calls of a session whose edge drafts like this; its text is the truth."""
        opening = opening_frame(self._coder, prompt, SAMPLING, self._vocabulary.digest)
        # Nobody drafts from what the replica said to the others.
        opening.cache_salt = frames.__name__.encode()
        async with (
            RegionClient(self._coder, self._address, via_router=False) as client,
            client.open(opening) as session,
        ):
            assert (await session.receive()).WhichOneof("kind") == "opened"
            reply, num_calls = list[int](), 0
            while len(reply) < len(truth):
                num_calls += 1
                await self._engine.waits()
                if (frame := frames(truth, len(reply))) is not None and frame[1]:
                    session.draft(self._draft(1 + len(reply), *frame))
                    await eventually(lambda: len(self._inbox._commands) > 0)
                self._engine.allow()
                commit = (await session.receive()).commit
                reply += truth[len(reply) : len(reply) + commit.accepted]
                reply += ids_of(commit, self._coder, max_count=len(truth))
            assert (await session.receive()).WhichOneof("kind") == "done"
        assert reply == list(truth)
        return num_calls

    def _draft(self, epoch: int, base: int, ids: Sequence[int]) -> inference_pb2.Draft:
        draft = inference_pb2.Draft(epoch=epoch, base=base)
        put_ids(draft, self._coder, ids, self._coder.supported[0])
        return draft


async def test_no_failing_stream_costs_the_session_calls(
    openvino_engine: OpenVinoEngine, vocabulary: Vocabulary
) -> None:
    engine, metrics = SteppedEngine(openvino_engine), Metrics("test")
    model = loaded(engine, vocabulary)
    prompt = vocabulary.encode_chat([Message("user", ASK)])
    truth = generate(Borrowed(openvino_engine), prompt, SAMPLING, texts_of(vocabulary)).ids
    replica = Replica(InferenceConfig(port=0, drain_s=0.0), model, metrics)
    edge = Edge(replica, engine, vocabulary)
    async with leak_check():
        await replica.start()
        without, *failing = [
            await edge.num_calls(prompt, truth, frames) for frames in (silent, garbage, outdated)
        ]
        await replica.stop()
    metrics.close()
    assert without < 0.5 * len(truth), "the region's own drafts are right here"
    assert max(failing) <= without + 2, (without, failing)
