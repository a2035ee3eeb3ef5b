"""Priorities, deadlines and objectives over the wire."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engines.base import SequenceSlice
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2, inference_pb2
from tests.inference.harness import GatedEngine, reference, running

LONG = SamplingParams(max_tokens=1500, temperature=0.8, seed=3, ignore_eos=True)
SHORT = SamplingParams(max_tokens=20, ignore_eos=True)
PROMPT = [3 + number % 50 for number in range(300)]


class HoldsPrompts(GatedEngine):
    """Steps with a large chunk of a prompt wait for the gate."""

    def is_held(self, slices: Sequence[SequenceSlice]) -> bool:
        return any(len(part.tokens) > 100 for part in slices)


async def test_a_high_session_pauses_a_low_one_which_goes_on_exactly() -> None:
    async with running(HoldsPrompts()) as it:
        assert isinstance(it.engine, HoldsPrompts)
        peer = it.peer()
        await peer.open(1, [5, 6], LONG, priority=common_pb2.PRIORITY_LOW)
        while (await peer.next(1)).WhichOneof("kind") != "commit":
            pass
        await peer.open(2, PROMPT, SHORT, priority=common_pb2.PRIORITY_HIGH)
        await peer.next(2)
        watch = it.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=1))
        report = await watch.read()
        assert isinstance(report, inference_pb2.WatchLoadResponse)
        assert (report.paused_sessions, report.running_sessions) == (1, 1)
        assert (report.low.sessions, report.medium.sessions) == (0, 0)
        assert it.value("outrider_sessions_paused") == 1
        it.gated.gate.set()
        assert (await peer.finish(2)).ids == list(reference(PROMPT, SHORT).ids)
        assert (await peer.finish(1)).ids == list(reference([5, 6], LONG).ids)
