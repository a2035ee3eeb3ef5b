"""A draft stream that fails, over real gRPC: the replica makes as many calls as without one.

The engine takes a step when the test lets it, so that drafts arrive while a call is under way, as
they do in life, and not sooner or later by chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, SizingRule, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import common_pb2
from services.inference.runner import ModelRunner
from tests.inference.harness import Peer, Running, reference, running

PROMPT = [5, 6, 7]
SAMPLING = SamplingParams(max_tokens=60, ignore_eos=True)
LEAD = 8
REPEATING = FakeOptions(repetition=1.0, sizing=SizingRule((LEAD,)))
"""Drafts cost nothing here, however long the test takes for a step: a call has room for them."""

TOLERANCE = 1.4
"""How likely a draft must be depends on how long calls take, and these take as long as this machine
does. In virtual time tests/inference/scheduler/test_never_waits.py counts exactly."""

Frames = Callable[[Sequence[int], int], tuple[int, Sequence[int]] | None]
"""Truth and number of final tokens -> base and ids of the frame that arrives now."""


class SteppedEngine(FakeEngine):
    """Takes as many steps as it is allowed."""

    def __init__(self) -> None:
        super().__init__(REPEATING)
        self._allowed = threading.Semaphore(0)
        self._num_allowed = self._num_begun = 0

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
        if not self._allowed.acquire(timeout=30):
            raise RuntimeError("nobody allowed a step")
        return super().step(slices)


def nowhere(truth: Sequence[int], final: int) -> None:
    return None


def garbage(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]]:
    """Wrong from the token on that the call under way does not commit: it stays ahead."""
    right = truth[final : final + 1]
    return final, [*right, *(3 + (t + 1) % 60 for t in truth[final + 1 : final + LEAD])]


def late(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]] | None:
    """Right, and twenty tokens old."""
    return (final - 20, truth[final - 20 : final - 20 + LEAD]) if final >= 20 else None


def cut_off(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]] | None:
    """Right, and then there is no more."""
    return (final, truth[final : final + LEAD]) if final < 20 else None


def torn(truth: Sequence[int], final: int) -> tuple[int, Sequence[int]]:
    """Frames whose beginning was lost: they continue nothing."""
    return final + 2, truth[final + 2 : final + 2 + LEAD]


async def num_calls(frames: Frames, speculation: common_pb2.Speculation.ValueType) -> int:
    """Calls of one session whose edge drafts like this; its text is the reference's."""
    engine = SteppedEngine()
    async with running(engine) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING, speculation=speculation)
        reply = await _talk(it, engine, peer, frames)
        assert reply == list(reference(PROMPT, SAMPLING, REPEATING).ids)
        return engine.num_steps


async def _talk(it: Running, engine: SteppedEngine, peer: Peer, frames: Frames) -> list[int]:
    truth = reference(PROMPT, SAMPLING, REPEATING).ids
    runner = it.replica.runner
    assert isinstance(runner, ModelRunner)
    epoch, reply = 0, peer.replies[1]
    assert (await peer.next(1)).WhichOneof("kind") == "opened"
    while len(reply.ids) < len(truth):
        epoch += 1
        await engine.waits()
        frame = frames(truth, len(reply.ids))
        if frame is not None and frame[1]:
            await peer.draft(1, epoch, *frame)
            await eventually(lambda: len(runner._inbox._commands) > 0)
        engine.allow()
        await peer.next(1)
    return (await peer.finish(1)).ids


@pytest.mark.parametrize("frames", [nowhere, garbage, late, torn], ids=lambda f: f.__name__)
async def test_a_failing_stream_costs_no_call(frames: Frames) -> None:
    without = await num_calls(nowhere, common_pb2.SPECULATION_REGION_ONLY)
    assert without < 40, "the region's own drafts are right here"
    assert await num_calls(frames, common_pb2.SPECULATION_ON) <= TOLERANCE * without


async def test_a_stream_that_is_cut_off_was_no_loss() -> None:
    without = await num_calls(nowhere, common_pb2.SPECULATION_REGION_ONLY)
    assert await num_calls(cut_off, common_pb2.SPECULATION_ON) < without
