"""What an edge measures: metrics on the admin port, spans that continue the client's trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.types import EventDict

from outrider import errors
from outrider.client import Client, Committed, Message, Provisional
from outrider.codec.frames import encode_frame
from outrider.models.vocabulary import Vocabulary
from outrider.telemetry import names, tracing
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, RawStream, raw, said


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.configure_tracing("test", SimpleSpanProcessor(exporter))
    yield exporter
    tracing.shutdown_tracing()


async def get(mesh: Running, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", mesh.ports.admin)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_metrics_of_good_and_bad_chats(mesh: Running, client: Client) -> None:
    async with client.chat(ASK) as chat:
        result = await chat.result()
    stats = result.speculation_stats
    with pytest.raises(errors.EmptyPromptError):
        await said(client.chat([]))
    mesh.region.error = errors.NoReplicaError("none")
    with pytest.raises(errors.NoReplicaError):
        await said(client.chat(ASK))
    await mesh.settled()
    page = await get(mesh, "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("o"))
    assert float(lines['outrider_edge_chats_total{model="small",outcome="OK"}']) == 1
    assert float(lines['outrider_edge_chats_total{model="small",outcome="NO_REPLICA"}']) == 1
    assert float(lines['outrider_edge_tokens_total{model="small"}']) == len(result.ids)
    assert float(lines['outrider_edge_committed_chats_total{model="small"}']) == 1
    assert float(lines["outrider_edge_open_chats"]) == 0
    assert float(lines['outrider_edge_mode_chats_total{mode="edge_drafts",model="small"}']) == 2
    assert (
        float(lines['outrider_edge_drafts_total{fate="drafted",model="small"}'])
        >= stats.sent_tokens
    )
    assert float(lines['outrider_edge_commits_total{model="small",uploads="on"}']) >= 1
    assert float(lines['outrider_edge_shown_tokens_total{model="small"}']) == stats.shown_tokens
    assert float(lines['outrider_edge_erased_tokens_total{model="small"}']) == stats.erased_tokens
    assert float(lines['outrider_edge_erased_chars_total{model="small"}']) == result.erased_chars
    assert float(lines['outrider_edge_shown_chars_total{model="small"}']) >= result.erased_chars
    rtt_ms = float(lines['outrider_edge_region_rtt_seconds{model="small"}']) * 1e3
    assert rtt_ms == pytest.approx(stats.rtt_ms, rel=1e-3)
    assert rtt_ms > 0
    assert "outrider_ttft_seconds_count" in page


@pytest.mark.parametrize("how", ["CANCELLED by word", "CANCELLED by leaving", "DEADLINE"])
async def test_a_chat_that_was_cut_short_is_not_ok(
    how: str, words: Vocabulary, tmp_path: Path, logs: list[EventDict]
) -> None:
    def cut_off(frame: inference_pb2.SessionDown) -> None:
        if frame.HasField("done"):
            frame.done.finish_reason = common_pb2.FINISH_REASON_DEADLINE

    outcome = how.split()[0]
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        if outcome == "DEADLINE":
            mesh.region.mangle = cut_off
        else:
            mesh.region.stop_after = 4
        async with client.chat(ASK) as chat:
            if outcome == "CANCELLED":
                async for event in chat:
                    if isinstance(event, Committed):
                        break
            if how == "CANCELLED by word":
                chat.cancel()
            if how != "CANCELLED by leaving":
                assert (await chat.result()).finish_reason == outcome.lower()
        await mesh.settled()
        await eventually(lambda: mesh.of_model("outrider_edge_chats_total", outcome=outcome) == 1)
        assert mesh.of_model("outrider_edge_chats_total", outcome="OK") == 0
    (told,) = [line for line in logs if line["event"] == "chat_ended"]
    assert told["outcome"] == outcome


async def test_a_refusal_at_the_border_counts(
    words: Vocabulary, tmp_path: Path, logs: list[EventDict]
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        async with client.chat(ASK, model="no such model") as chat:
            with pytest.raises(errors.UnknownModelError):
                await chat.result()
        async with raw(mesh) as connection:
            stream = RawStream(connection, encode_frame(b"\xff"))
            reason = (await stream.error()).reason
        await mesh.settled()
        assert mesh.sample("outrider_edge_refused_total", reason="UNKNOWN_MODEL") == 1
        assert mesh.sample("outrider_edge_refused_total", reason=reason) == 1
    told = [line["num_by_reason"] for line in logs if line["event"] == "refused"]
    assert told[0] == {"UNKNOWN_MODEL": 1}


async def test_text_shown_before_it_is_final_is_timed(mesh: Running, client: Client) -> None:
    # What was said before is drafted, and shown while the region is held.
    asked = time.monotonic()
    mesh.region.gate.clear()
    async with client.chat([ASK[0], Message("assistant", REPLY), ASK[0]]) as chat:
        async for event in chat:
            if isinstance(event, Provisional):
                mesh.region.gate.set()
        assert (await chat.result()).text == REPLY
    await mesh.settled()
    assert mesh.region.gate.is_set(), "something was shown early"
    took_ms = (time.monotonic() - asked) * 1e3
    early_ms = mesh.of_model("outrider_edge_provisional_ttft_seconds_total") * 1e3
    final_ms = mesh.of_model("outrider_edge_committed_ttft_seconds_total") * 1e3
    assert 0 < early_ms < final_ms < took_ms
    assert mesh.of_model("outrider_edge_provisional_chats_total") == 1
    assert mesh.of_model("outrider_edge_committed_chats_total") == 1


async def test_ready_says_why_not(mesh: Running) -> None:
    assert "200 OK" in await get(mesh, "/ready")
    mesh.region.break_streams()
    await eventually(lambda: not mesh.edge.upstream.ready)
    assert "no router can be reached" in await get(mesh, "/ready")


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_one_trace_from_client_to_region_where_the_client_is_trusted_with_it(
    is_trusted: bool, words: Vocabulary, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    secret, settings = "a secret that no trace may hold", {"trust_trace": is_trusted}
    async with running(words, tmp_path, REPLY, **settings) as mesh, mesh.client() as client:
        await said(client.chat([Message("user", secret)]))
        await mesh.settled()
        traceparent = mesh.region.opened[0].trace.traceparent
    found = {span.name: span for span in spans.get_finished_spans()}
    chat_span, edge_span = found[names.SPAN_CLIENT_CHAT], found[names.SPAN_EDGE_CHAT]
    tokenize = found[names.SPAN_TOKENIZE]
    assert tokenize.parent is not None
    if is_trusted:
        assert edge_span.parent is not None and not edge_span.links
        assert edge_span.parent.span_id == chat_span.context.span_id
    else:
        assert edge_span.parent is None
        assert edge_span.context.trace_id != chat_span.context.trace_id
        assert [link.context.span_id for link in edge_span.links] == [chat_span.context.span_id]
    assert tokenize.parent.span_id == edge_span.context.span_id
    assert traceparent.split("-")[2] == format(edge_span.context.span_id, "016x")
    assert all(secret not in span.to_json() for span in found.values())
