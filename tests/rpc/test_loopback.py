"""Errors, limits, traces, health and cancellation over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider import errors
from outrider.rpc import (
    HealthControl,
    add_health,
    bind,
    from_rpc_error,
    make_channel,
    make_server,
    trace_metadata,
)
from outrider.telemetry import tracing
from outrider.testing import eventually, leak_check
from outrider.v1 import inference_pb2, inference_pb2_grpc
from tests.rpc.echo import Echo

SERVICE = "outrider.v1.InferenceService"
PARENT = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


class Loopback:
    def __init__(self) -> None:
        self.echo = Echo()
        self.server = make_server(max_message_bytes=4096)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.echo, self.server)
        self.health: HealthControl = add_health(self.server, SERVICE)
        self.port = bind(self.server, "127.0.0.1", 0)
        self.channel = make_channel(f"127.0.0.1:{self.port}")
        self.stub: inference_pb2_grpc.InferenceServiceAsyncStub
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.health_stub = health_pb2_grpc.HealthStub(self.channel)

    async def failure(self, request: inference_pb2.GetModelRequest) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.stub.GetModel(request)
        return caught.value


@pytest.fixture
async def loopback() -> AsyncIterator[Loopback]:
    async with leak_check():
        it = Loopback()
        await it.server.start()
        yield it
        await it.channel.close()
        it.health.close()
        await it.server.stop(None)


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    memory = InMemorySpanExporter()
    tracing.configure_tracing("test", SimpleSpanProcessor(memory))
    yield memory
    tracing.shutdown_tracing()


def _frame(session: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(frames=[inference_pb2.SessionUp(session=session)])


async def test_an_error_arrives_with_type_message_and_metadata(loopback: Loopback) -> None:
    loopback.echo.error = errors.VocabularyMismatchError(
        "ours is aa, theirs is bb", metadata={"ours": "aa"}, retry_delay_ms=5
    )
    failure = await loopback.failure(inference_pb2.GetModelRequest())
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION
    back = from_rpc_error(failure)
    assert type(back) is errors.VocabularyMismatchError
    assert (back.message, back.metadata) == ("ours is aa, theirs is bb", {"ours": "aa"})
    assert back.retry_delay_ms == 5


async def test_an_error_ends_a_stream_with_its_status(loopback: Loopback) -> None:
    loopback.echo.error = errors.MalformedFrameError("no session number")
    call = loopback.stub.Generate()
    await call.write(_frame(1))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert type(from_rpc_error(caught.value)) is errors.MalformedFrameError
    assert loopback.echo.live_streams == 0


async def test_a_message_over_the_limit_is_frame_too_large(loopback: Loopback) -> None:
    call = loopback.stub.Generate()
    big = inference_pb2.SessionUp(cancel=inference_pb2.CancelSession(reason="x" * 5000))
    await call.write(inference_pb2.GenerateRequest(frames=[big]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert type(from_rpc_error(caught.value)) is errors.FrameTooLargeError


async def test_bytes_that_do_not_parse_are_a_malformed_frame(loopback: Loopback) -> None:
    raw: Any = loopback.channel.stream_stream(f"/{SERVICE}/Generate")
    call = raw()
    await call.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert type(from_rpc_error(caught.value)) is errors.MalformedFrameError
    assert loopback.echo.live_streams == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
        (grpc.StatusCode.CANCELLED, errors.CancelledError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.OverloadedError),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.OutriderError),
    ],
)
@pytest.mark.parametrize("trailer", [None, b"\xff\xff\xff"])
def test_a_bare_status_becomes_the_nearest_error(
    code: grpc.StatusCode, kind: type[errors.OutriderError], trailer: bytes | None
) -> None:
    trailing = grpc.aio.Metadata()
    if trailer is not None:
        trailing.add("outrider-error-bin", trailer)
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details="why")
    back = from_rpc_error(error)
    assert type(back) is kind
    assert back.message == "why"


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (
            "/outrider.v2.InferenceService/Generate",
            "this server speaks outrider.v1, not outrider.v2: caller and server are versions of "
            "Outrider that cannot work together",
        ),
        (
            "/outrider.v1.InferenceService/Later",
            "this server does not have this method of outrider.v1: check the address, or upgrade "
            "the server to the caller's version of Outrider",
        ),
        (
            "/other.Service/Method",
            "this server does not have this method of outrider.v1: check the address, or upgrade "
            "the server to the caller's version of Outrider",
        ),
    ],
)
async def test_a_caller_of_another_version_is_refused_in_a_sentence_at_both_ends(
    loopback: Loopback, method: str, told: str
) -> None:
    unary: Any = loopback.channel.unary_unary(method)
    stream: Any = loopback.channel.stream_stream(method)
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught_streaming:
            await stream().read()
    for error in (caught.value, caught_streaming.value):
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert from_rpc_error(error).message == told
    (line,) = logs  # one per interval: callers may try often
    assert (line["event"], line["method"], line["why"]) == ("calls_refused", method, told)


async def test_a_server_of_another_version_that_says_nothing_is_told_as_such() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with make_channel(f"127.0.0.1:{port}") as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModel(inference_pb2.GetModelRequest())
    await server.stop(None)
    assert from_rpc_error(caught.value).message == (
        "the server does not speak outrider.v1: check the address, and that its version of "
        "Outrider can work with this one"
    )


async def test_a_taken_port_is_a_config_error(loopback: Loopback) -> None:
    with pytest.raises(errors.ConfigError, match="is the port taken"):
        bind(make_server(), "127.0.0.1", loopback.port)


async def test_the_trace_goes_on_in_unary_calls_and_streams(
    loopback: Loopback, exporter: InMemorySpanExporter
) -> None:
    with tracing.span("caller", parent=PARENT):
        await loopback.stub.GetModel(inference_pb2.GetModelRequest(), metadata=trace_metadata())
        call = loopback.stub.Generate(metadata=trace_metadata())
        await call.write(_frame(1))
        await call.read()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    assert [seen[0].split("-")[1] for seen in loopback.echo.traces] == [
        "0af7651916cd43dd8448eb211c80319c"
    ] * 2
    assert loopback.echo.traces[0][1] == "vendor=1"
    server, caller = exporter.get_finished_spans()
    assert server.name == f"{SERVICE}/GetModel"
    assert server.parent is not None
    assert caller.context is not None
    assert server.parent.span_id == caller.context.span_id


async def test_what_peers_ask_to_see_whether_it_answers_is_not_traced(
    loopback: Loopback, exporter: InMemorySpanExporter
) -> None:
    await loopback.health_stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert exporter.get_finished_spans() == ()
    await loopback.stub.GetModel(inference_pb2.GetModelRequest())
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/GetModel",
    }


async def test_without_a_trace_there_is_no_metadata(loopback: Loopback) -> None:
    assert trace_metadata() == ()
    await loopback.stub.GetModel(
        inference_pb2.GetModelRequest(), metadata=(("traceparent", "garbage"),)
    )
    assert loopback.echo.traces == [("", "")]


async def test_a_cancelled_stream_ends_the_handler(
    loopback: Loopback, exporter: InMemorySpanExporter
) -> None:
    call = loopback.stub.Generate(metadata=(("traceparent", PARENT[0]),))
    await call.write(_frame(3))
    await call.read()
    assert loopback.echo.live_streams == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    await eventually(lambda: loopback.echo.live_streams == 0)


async def test_health_follows_the_switch(loopback: Loopback) -> None:
    async def check(service: str) -> int:
        reply = await loopback.health_stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(reply.status)

    assert await check(SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING
    loopback.health.set_serving(True)
    assert loopback.health.serving
    assert await check(SERVICE) == await check("") == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check("other.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watchers_see_changes_and_the_end(loopback: Loopback) -> None:
    statuses = health_pb2.HealthCheckResponse
    call = loopback.health_stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await call.read()).status == statuses.NOT_SERVING
    loopback.health.set_serving(True)
    assert (await call.read()).status == statuses.SERVING
    loopback.health.close()
    assert (await call.read()).status == statuses.NOT_SERVING
    assert await call.read() is grpc.aio.EOF
    unknown = loopback.health_stub.Watch(health_pb2.HealthCheckRequest(service="no"))
    assert (await unknown.read()).status == statuses.SERVICE_UNKNOWN
