"""One span per session, between the edge's and the replica's."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.types import EventDict

from outrider.telemetry import names, tracing
from outrider.v1 import common_pb2
from services.router.relay.telemetry import PLACED
from tests.router.relay.mesh import Mesh, cancel, commit, done, opening

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.configure_tracing("router", SimpleSpanProcessor(exporter))
    yield exporter
    tracing.shutdown_tracing()


async def test_the_session_span_continues_the_edges_and_is_the_replicas_parent(
    exporter: InMemorySpanExporter,
) -> None:
    mesh = Mesh()
    edge = mesh.edge()
    trace = common_pb2.TraceContext(traceparent=PARENT)
    mesh.send(edge, opening(1, trace=trace, request_id="r"))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", commit(sent.session))
    mesh.reply("near", done(sent.session))
    (span,) = exporter.get_finished_spans()
    assert span.name == names.SPAN_ROUTE
    assert span.parent is not None and span.context is not None
    assert f"{span.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sent.open.trace.traceparent.split("-")[2] == f"{span.context.span_id:016x}"
    assert span.attributes is not None
    assert span.attributes["outrider.replica"] == "near"
    (why,) = span.events
    assert why.name == PLACED and why.attributes is not None
    assert why.attributes["outrider.wait.rtt_ms"] == 1.0
    considered = str(why.attributes["outrider.considered"])
    assert re.match(r"near [\d.]+ ms", considered)
    (placed,) = mesh.history.find("r", 9)
    assert (placed.decision.replica, placed.prompt_tokens, placed.model) == ("near", 10, "m")
    assert span.attributes[names.REQUEST_ID] == "r"
    mesh.metrics.close()


async def test_a_failed_session_ends_its_span_with_the_reason(
    exporter: InMemorySpanExporter,
) -> None:
    mesh = Mesh()
    mesh.send(mesh.edge(), opening(1, model="x"))
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes[names.ERROR_TYPE] == "UNKNOWN_MODEL"
    sample = mesh.metrics.registry.get_sample_value
    labels = {
        names.OPERATION.replace(".", "_"): "chat",
        names.PROVIDER.replace(".", "_"): "outrider",
        names.MODEL.replace(".", "_"): "",
        names.ERROR_TYPE.replace(".", "_"): "UNKNOWN_MODEL",
    }
    assert sample("gen_ai_server_request_duration_seconds_count", labels) == 1.0
    mesh.metrics.close()


@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [
        (common_pb2.FINISH_REASON_STOP, ""),
        (common_pb2.FINISH_REASON_UNSPECIFIED, ""),
        (common_pb2.FINISH_REASON_CANCELLED, "CANCELLED"),
        (common_pb2.FINISH_REASON_DEADLINE, "DEADLINE"),
    ],
)
async def test_a_session_that_was_cut_short_is_counted_as_such(
    finish_reason: common_pb2.FinishReason.ValueType, reason: str
) -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening(1))
    (sent,) = await mesh.at_replica("near")
    if reason == "CANCELLED":
        mesh.send(edge, cancel(1))
    last = done(sent.session)
    last.done.finish_reason = finish_reason
    mesh.reply("near", last)
    labels = {
        names.OPERATION.replace(".", "_"): "chat",
        names.PROVIDER.replace(".", "_"): "outrider",
        names.MODEL.replace(".", "_"): "m",
        names.ERROR_TYPE.replace(".", "_"): reason,
    }
    sample = mesh.metrics.registry.get_sample_value
    count = sample("gen_ai_server_request_duration_seconds_count", labels)
    without = sample(
        "gen_ai_server_request_duration_seconds_count",
        {name: value for name, value in labels.items() if value},
    )
    assert (count or without) == 1.0
    mesh.metrics.close()


def test_refused_sessions_are_logged_once_per_interval(logs: list[EventDict]) -> None:
    mesh = Mesh()
    edge = mesh.edge()
    for number in range(1, 4):
        mesh.send(edge, opening(number, model="x"))
        mesh.telemetry.flush(0, {})
    mesh.clock.advance(10.0)
    mesh.telemetry.flush(0, {})
    mesh.telemetry.flush(0, {})
    told = [log["num_by_reason"] for log in logs if log["event"] == "refused"]
    assert told == [{"UNKNOWN_MODEL": 1}, {"UNKNOWN_MODEL": 2}]
    mesh.metrics.close()
