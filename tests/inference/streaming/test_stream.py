"""One stream against a peer that says too much, and frames that cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from outrider import errors
from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.inference.scheduler.types import Drafts, OpenRequest
from services.inference.streaming.sessions import Model, SessionTable
from services.inference.streaming.stream import Stream
from tests.inference.harness import GatedEngine, opening, running

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


class Counted:
    """A model whose cancels are counted on their way."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.num_cancels = 0

    def open(self, request: OpenRequest) -> None:
        self._model.open(request)

    def draft(self, session: int, drafts: Drafts) -> bool:
        return self._model.draft(session, drafts)

    def cancel(self, session: int) -> None:
        self.num_cancels += 1
        self._model.cancel(session)


def _stream(table: SessionTable) -> Stream:
    return Stream(table, max_frames=64, max_sessions=8)


async def test_a_peer_that_cancels_again_and_again_fills_no_memory() -> None:
    async with running(GatedEngine()) as it:
        assert isinstance(it.engine, GatedEngine)
        model = Counted(it.replica.runner)
        it.replica.table.attach(model)
        stream = _stream(it.replica.table)
        stream.receive(inference_pb2.SessionUp(session=1, open=opening([5], LONG)))
        await eventually(it.engine.waiting.is_set)
        cancel = inference_pb2.SessionUp(session=1, cancel=inference_pb2.CancelSession())
        for _ in range(1000):
            stream.receive(cancel)
        assert model.num_cancels == 1
        it.engine.gate.set()
        await eventually(lambda: len(it.replica.table) == 0)


class Pausing(GatedEngine):
    """Shuts the gate behind its fourth step."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        rows = super().step(slices, overlapped_work)
        if self.num_steps == 4:
            self.gate.clear()
        return rows


async def test_what_was_generated_for_a_peer_that_left_is_counted() -> None:
    engine = Pausing()
    engine.gate.set()
    async with running(engine) as it:
        stream = _stream(it.replica.table)
        stream.receive(inference_pb2.SessionUp(session=1, open=opening([5], LONG)))
        await eventually(lambda: len(stream.outbox) > 3)
        stream.close()
        assert len(it.replica.table._given_up) == 1
        engine.gate.set()
        await eventually(lambda: not it.replica.table._given_up)
        labels = {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": "outrider",
            "gen_ai_request_model": "letters",
        }
        value = it.metrics.registry.get_sample_value
        used = {
            kind: value("gen_ai_client_token_usage_sum", labels | {"gen_ai_token_type": kind})
            for kind in ("input", "output")
        }
        assert used["input"] == 1
        assert used["output"] is not None and 3 <= used["output"] < 200
        ended = value(
            "gen_ai_server_request_duration_seconds_count", labels | {"error_type": "CANCELLED"}
        )
        assert ended == 1


async def _broken_frames() -> AsyncIterator[inference_pb2.GenerateRequest]:
    frame = inference_pb2.SessionUp(session=1, open=opening([5], LONG))
    yield inference_pb2.GenerateRequest(frame=frame)
    raise ZeroDivisionError("a defect")


async def test_a_reader_that_breaks_ends_its_stream_and_its_sessions() -> None:
    async with running(GatedEngine()) as it:
        stream = _stream(it.replica.table)
        await stream.read(_broken_frames())
        assert len(it.replica.table) == 0
        with pytest.raises(errors.OutriderError, match="ZeroDivisionError"):
            async for _ in stream.outbox:
                pass
