"""Spans continue across processes, end on cancellation, and never quote messages."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, TraceFlags
from structlog.types import EventDict

from outrider.errors import DeadlineError
from outrider.telemetry import tracing

PARENT = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    memory = InMemorySpanExporter()
    tracing.configure_tracing("test", SimpleSpanProcessor(memory))
    yield memory
    tracing.shutdown_tracing()


def _only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def test_a_span_continues_a_remote_parent(exporter: InMemorySpanExporter) -> None:
    with tracing.span("work", parent=PARENT, **{"outrider.request.id": "r1"}):
        traceparent, tracestate = tracing.current_context()
    span = _only(exporter)
    assert span.context is not None
    assert traceparent.split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
    assert traceparent.split("-")[2] == f"{span.context.span_id:016x}"
    assert tracestate == "vendor=1"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.attributes == {"outrider.request.id": "r1"}


@pytest.mark.parametrize("bad", [("", ""), ("garbage", "x"), ("00-0-0-01", "")])
def test_a_malformed_parent_starts_a_new_trace(
    exporter: InMemorySpanExporter, bad: tuple[str, str]
) -> None:
    with tracing.span("work", parent=bad):
        pass
    assert _only(exporter).parent is None


def test_errors_are_named_but_not_quoted(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(DeadlineError), tracing.span("work"):
        raise DeadlineError("secret words of a user")
    span = _only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes == {"error.type": "DEADLINE"}
    assert "secret" not in span.to_json()


async def test_cancellation_ends_the_span(exporter: InMemorySpanExporter) -> None:
    started = asyncio.Event()

    async def work() -> None:
        with tracing.span("work"):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _only(exporter).attributes == {"error.type": "CancelledError"}


def test_spans_with_given_times(exporter: InMemorySpanExporter) -> None:
    opened = tracing.start_span("queue", parent=PARENT, start_ns=1_000)
    assert opened.context[0].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    opened.set(answer=42)
    opened.end(end_ns=5_000)
    span = _only(exporter)
    assert (span.start_time, span.end_time) == (1_000, 5_000)
    assert span.attributes == {"answer": 42}


def test_without_configuration_contexts_pass_through() -> None:
    assert tracing.current_context() == ("", "")
    with tracing.span("work", parent=PARENT):
        assert tracing.current_context() == PARENT


@pytest.fixture
def untaken() -> Iterator[None]:
    tracing.configure_tracing("test")
    yield
    tracing.shutdown_tracing()


@pytest.mark.usefixtures("untaken")
def test_a_span_that_nobody_takes_hands_its_parent_on() -> None:
    span = tracing.start_span("work", parent=PARENT)
    span.set(answer=42)
    assert span.context == PARENT
    assert span.trace_id == "0af7651916cd43dd8448eb211c80319c"
    with tracing.span("inner", parent=span.context):
        assert tracing.current_context() == PARENT
        assert tracing.start_span("inmost").context == PARENT
    span.end(DeadlineError("late"))
    assert tracing.current_context() == ("", "")


@pytest.mark.usefixtures("untaken")
@pytest.mark.parametrize(
    "bad",
    [
        *(("", ""), ("garbage", "x"), ("00-0-0-01", "")),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", ""),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", ""),
    ],
)
def test_without_a_valid_parent_a_trace_begins_though_nobody_takes_it(bad: tuple[str, str]) -> None:
    span, other = (tracing.start_span("work", parent=bad) for _ in range(2))
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", span.context[0])
    assert span.trace_id != other.trace_id
    assert tracing.start_span("next", parent=span.context).context == span.context
    assert span.exported_trace_id == ""


@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize(("flags", "is_exported"), [("01", True), ("03", True), ("00", False)])
def test_only_a_sampled_trace_can_be_looked_up(flags: str, is_exported: bool) -> None:
    span = tracing.start_span("work", parent=(PARENT[0][:-2] + flags, ""))
    assert span.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert span.exported_trace_id == (span.trace_id if is_exported else "")
    span.end()


def test_an_endpoint_without_the_exporter_is_a_warning_and_the_service_goes_on(
    monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    monkeypatch.setenv(tracing.OTLP_ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None
    )
    tracing.configure_tracing("test")
    (told,) = logs
    assert told["log_level"] == "warning" and "outrider[otlp]" in told["action"]
    span = tracing.start_span("work", parent=PARENT)
    assert not span.is_recorded
    assert span.context == PARENT, "it is handed on"
    tracing.shutdown_tracing()


UNSAMPLED = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "")


def test_of_a_trace_that_is_not_sampled_spans_that_fail_are_exported(
    exporter: InMemorySpanExporter,
) -> None:
    with tracing.span("well", parent=UNSAMPLED) as well:
        assert well.context[0].endswith("-00"), "the next tier decides the same"
    with pytest.raises(DeadlineError), tracing.span("ill", parent=UNSAMPLED, answer=42):
        raise DeadlineError("late")
    span = _only(exporter)
    assert span.name == "ill" and span.attributes == {"answer": 42, "error.type": "DEADLINE"}
    assert span.context is not None and span.context.trace_flags.sampled
    assert f"{span.context.trace_id:032x}" == UNSAMPLED[0][3:35]
    assert span.parent is not None and f"{span.parent.span_id:016x}" == UNSAMPLED[0][36:52]


def test_the_sampler_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    memory = InMemorySpanExporter()
    tracing.configure_tracing("test", SimpleSpanProcessor(memory))
    try:
        with tracing.span("chat", parent=tracing.NO_TRACE) as begun:
            flags = int(begun.context[0][-2:], 16)
            assert not flags & TraceFlags.SAMPLED
        with tracing.span("sampled elsewhere", parent=PARENT):
            pass
        assert [span.name for span in memory.get_finished_spans()] == ["sampled elsewhere"]
    finally:
        tracing.shutdown_tracing()


@pytest.mark.parametrize(
    ("environ", "is_asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, False),
    ],
)
def test_the_environment_says_whether_spans_leave(
    environ: dict[str, str], is_asked: bool, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    """Told here by the warning that the exporter is missing."""
    for name in (
        *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        *("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"),
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None
    )
    tracing.configure_tracing("test")
    tracing.shutdown_tracing()
    assert bool(logs) == is_asked


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OTLP endpoint over HTTP: its address, and the paths and bodies that it was sent."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_the_endpoint_of_traces_alone_exports(
    collector: tuple[str, list[tuple[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, got = collector
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{address}/my/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-edge")
    tracing.configure_tracing("edge")
    with tracing.span("work", parent=PARENT):
        pass
    tracing.shutdown_tracing()
    ((path, body),) = got
    assert path == "/my/traces" and b"my-edge" in body and b"work" in body
