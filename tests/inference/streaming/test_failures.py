"""Peers that leave, stall or run out of time; engines that fail; replicas that stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider import errors
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.process import Ports
from outrider.rpc import from_rpc_error, make_channel
from outrider.sampling.params import SamplingParams
from outrider.telemetry import tracing
from outrider.testing import eventually, leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from services.inference import app
from services.inference.config import InferenceConfig
from services.inference.runner import MAX_FAILURES
from services.inference.service import SERVICE
from tests.engines.hooked import HookedEngine
from tests.inference.harness import GatedEngine, Peer, loaded, reference, running

LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(max_tokens=30, ignore_eos=True)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Breaking(HookedEngine):
    """Raises `error` from step() while it is set."""

    error: Exception | None = None

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        if self.error is not None:
            raise self.error


async def test_a_peer_that_leaves_frees_everything_at_once() -> None:
    async with running() as it:
        gone, stays = it.peer(), it.peer()
        await stays.open(1, [6], LONG)
        for number in range(1, 5):
            await gone.open(number, [4 + number], LONG)
            await gone.next(number)
        gone.call.cancel()
        await eventually(lambda: it.replica.service.num_streams == 1)
        await eventually(lambda: len(it.replica.table) == 1)
        assert tuple((await stays.finish(1)).ids) == reference([6], LONG).ids
        await stays.call.done_writing()
        await eventually(it.is_clean)


async def test_a_peer_that_dies_frees_everything_while_the_engine_runs() -> None:
    async with running(GatedEngine()) as it:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{it.replica.port}")
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        peer = Peer(stub)
        await peer.open(1, [5], LONG)
        await eventually(it.gated.waiting.is_set)
        await channel.close()
        await eventually(lambda: it.replica.service.num_streams == 0)
        assert len(it.replica.table) == 0
        it.gated.gate.set()
        await eventually(it.is_clean)


async def test_cancel_ends_one_session_with_its_usage() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [5], LONG)
        await peer.open(2, [6], LONG)
        while not peer.replies[1].commits:
            await peer.next(1)
        await peer.cancel(1)
        await peer.cancel(1)
        reply = await peer.finish(1)
        assert reply.done is not None
        assert reply.done.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        assert reply.done.usage.completion_tokens == len(reply.ids) < 1500
        assert tuple(reply.ids) == reference([5], LONG).ids[: len(reply.ids)]
        assert tuple((await peer.finish(2)).ids) == reference([6], LONG).ids


async def test_a_deadline_ends_the_session() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG, deadline_ms=20)
        await peer.open(2, [6], SHORT, deadline_ms=600_000)
        await eventually(it.gated.waiting.is_set)
        await asyncio.sleep(0.03)  # the deadline itself, on the real clock
        it.gated.gate.set()
        reply = await peer.finish(1)
        assert reply.done is not None
        assert reply.done.finish_reason == common_pb2.FINISH_REASON_DEADLINE
        assert tuple((await peer.finish(2)).ids) == reference([6], SHORT).ids


async def test_a_peer_that_does_not_read_loses_its_sessions_not_our_memory() -> None:
    async with running(max_outbox_frames=512) as it:
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64))
        address = f"127.0.0.1:{it.replica.port}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            stalled = Peer(stub)
            for number in range(1, 9):
                off = common_pb2.SPECULATION_OFF
                await stalled.open(number, [4 + number], LONG, speculation=off)
            await stalled.next(8)
            await eventually(lambda: len(it.replica.table) == 0, timeout_s=20)
            assert it.replica.service.num_streams == 1
            healthy = it.peer()
            await healthy.open(1, [6], SHORT)
            assert tuple((await healthy.finish(1)).ids) == reference([6], SHORT).ids
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await stalled.call.read()
            assert type(from_rpc_error(caught.value)) is errors.OverloadedError


async def test_a_failed_engine_call_fails_its_sessions_alone() -> None:
    async with running(FakeEngine(FakeOptions(fail_on_step=4))) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG)
        reply = await peer.finish(1)
        assert type(reply.error) is errors.EngineError
        assert it.replica.readiness()[0]
        await peer.open(2, [5], SHORT)
        assert tuple((await peer.finish(2)).ids) == reference([5], SHORT).ids


async def test_an_engine_that_keeps_failing_makes_the_replica_not_ready() -> None:
    async with running(Breaking()) as it:
        assert isinstance(it.engine, Breaking)
        it.engine.error = errors.EngineError("out of order")
        peer = it.peer()
        for number in range(1, MAX_FAILURES + 1):
            await peer.open(number, [5], SHORT)
            assert type((await peer.finish(number)).error) is errors.EngineError
        ready, why = it.replica.readiness()
        assert not ready
        assert "restart the replica" in why
        assert it.replica.broken.is_set()
        await peer.open(9, [5])
        assert type((await peer.finish(9)).error) is errors.UnavailableError
        health = health_pb2_grpc.HealthStub(it.channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_crash_of_the_model_thread_ends_every_session() -> None:
    async with running(Breaking()) as it:
        assert isinstance(it.engine, Breaking)
        peers = it.peer(), it.peer()
        for peer in peers:
            await peer.open(1, [5], LONG)
            await peer.next(1)
        it.engine.error = ZeroDivisionError("a defect")
        for peer in peers:
            reply = await peer.finish(1)
            assert type(reply.error) is errors.EngineError
            assert "ZeroDivisionError" in reply.error.message
        assert not it.replica.readiness()[0]
        assert it.replica.broken.is_set()
        await peers[0].open(2, [5])
        assert type((await peers[0].finish(2)).error) is errors.UnavailableError
        assert len(it.replica.table) == 0
        it.crashed = True


async def test_a_replica_whose_model_broke_down_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Breaking()
    engine.error = ZeroDivisionError("a defect")
    monkeypatch.setattr(app, "load_model", lambda *_: loaded(engine))
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    async with leak_check():
        serving = asyncio.create_task(app.serve(InferenceConfig(port=0), ready=ports.set_result))
        channel = make_channel(f"127.0.0.1:{(await ports).main}")
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        watch = stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=50))
        assert not (await _report(watch)).restarting
        peer = Peer(stub)
        await peer.open(1, [5])
        with pytest.raises(errors.EngineError, match="ZeroDivisionError"):
            await serving
        last = await _last_report(watch)
        assert last.draining and last.restarting, "however soon it ended"
        await channel.close()


async def test_stopping_lets_sessions_finish() -> None:
    async with running(GatedEngine(), drain_s=20.0) as it:
        peer = it.peer()
        watch = it.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=1))
        await peer.open(1, [5], SHORT)
        await eventually(it.gated.waiting.is_set)
        stopping = asyncio.create_task(it.replica.stop())
        await eventually(lambda: it.replica.table.draining)
        await peer.open(2, [6])
        refused = (await peer.finish(2)).error
        assert type(refused) is errors.OverloadedError
        assert refused.metadata == {"draining": "true"}
        while not (await _report(watch)).draining:
            await asyncio.sleep(0.02)
        assert it.replica.readiness() == (False, "shutting down")
        it.gated.gate.set()
        assert tuple((await peer.finish(1)).ids) == reference([5], SHORT).ids
        assert await peer.call.read() is grpc.aio.EOF
        last = await _last_report(watch)
        assert last.draining and not last.restarting
        await stopping


async def test_a_drained_replica_keeps_its_sessions_and_takes_no_others_until_told() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        watch = it.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=1))
        await peer.open(1, [5], SHORT)
        await eventually(it.gated.waiting.is_set)
        await it.stub.Drain(inference_pb2.DrainRequest())
        await peer.open(2, [6])
        refused = (await peer.finish(2)).error
        assert type(refused) is errors.OverloadedError
        assert "takes no new sessions" in refused.message
        while not (await _report(watch)).draining:
            await asyncio.sleep(0.02)
        assert it.replica.readiness()[0], "it is not stopping"
        it.gated.gate.set()
        assert tuple((await peer.finish(1)).ids) == reference([5], SHORT).ids
        await it.stub.Drain(inference_pb2.DrainRequest(undo=True))
        while (await _report(watch)).draining:
            await asyncio.sleep(0.02)
        await peer.open(3, [6], SHORT)
        assert tuple((await peer.finish(3)).ids) == reference([6], SHORT).ids


async def test_stopping_ends_what_does_not_finish_in_time() -> None:
    async with running(GatedEngine(), drain_s=0.05) as it:
        peer = it.peer()
        await peer.open(1, [5], SHORT)
        await eventually(it.gated.waiting.is_set)
        stopping = asyncio.create_task(it.replica.stop())
        failed = await peer.finish(1)
        assert type(failed.error) is errors.UnavailableError
        assert await peer.call.read() is grpc.aio.EOF
        it.gated.gate.set()
        await stopping


async def _last_report(watch: Any) -> inference_pb2.WatchLoadResponse:
    """The one before the stream's end."""
    last = await _report(watch)
    while (report := await watch.read()) is not grpc.aio.EOF:
        last = report
    return last


async def _report(watch: Any) -> inference_pb2.WatchLoadResponse:
    report = await watch.read()
    assert isinstance(report, inference_pb2.WatchLoadResponse)
    return report


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    memory = InMemorySpanExporter()
    tracing.configure_tracing("test", SimpleSpanProcessor(memory))
    yield memory
    tracing.shutdown_tracing()


async def test_every_session_leaves_its_spans(exporter: InMemorySpanExporter) -> None:
    async with running(FakeEngine(FakeOptions(fail_on_step=1))) as it:
        peer = it.peer()
        trace = common_pb2.TraceContext(traceparent=PARENT)
        await peer.open(1, [5], SHORT, trace=trace, request_id="failed one")
        await peer.finish(1)
        await peer.open(2, [5], SHORT, trace=trace, request_id="good one")
        await peer.finish(2)
    failed, queue, prefill, decode, good = exporter.get_finished_spans()
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ENGINE"
    assert good.attributes is not None
    assert good.attributes["outrider.request.id"] == "good one"
    assert good.attributes["gen_ai.usage.output_tokens"] == 30
    for phase, name in ((queue, "queue"), (prefill, "prefill"), (decode, "decode")):
        assert phase.name == f"outrider.inference.{name}"
        assert phase.parent is not None
        assert good.context is not None
        assert phase.parent.span_id == good.context.span_id
    assert queue.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert good.parent is not None
    assert f"{good.parent.trace_id:032x}" == PARENT.split("-")[1]
