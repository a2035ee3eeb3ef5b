"""Declared names against recorded ones: none is recorded undeclared, none declared in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.metrics_core import Metric

from outrider.client import Client, Message, SamplingParams
from outrider.errors import NoReplicaError
from outrider.telemetry import names, tracing
from outrider.v1 import common_pb2, inference_pb2
from services.edge.telemetry.edge import PREFILLED_TOKENS
from services.router.admission.pricing import Price
from services.tokenizer.config import SharedCacheConfig
from tests.edge.integration.region import small_vocabulary
from tests.mesh import MODEL, Mesh, running_mesh
from tests.telemetry import declared as table
from tests.typed_text import type_until

WHOLE: Mapping[str, Any] = {
    "tokenizers": 1,
    # Nobody listens there: what is shared is asked for in vain, which is recorded as well.
    "tokenizer": {"shared_cache": SharedCacheConfig("redis://127.0.0.1:1", key="k" * 32)},
    "router": {"prices": (Price(1.0, 10.0, model=MODEL),), "currency": "USD"},
}
"""All roles, and all that a mesh can be told to record."""
SAMPLING = SamplingParams(max_tokens=100, ignore_eos=True)
ASK = [Message("user", "hello, hello, hello")]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    tracing.shutdown_tracing()


def test_every_declared_name_is_recorded_by_a_chat_or_asserted_elsewhere() -> None:
    parts = (table.COUNTED, table.SHOWN, table.SPANS, table.EVENTS, table.VALUES)
    entries = [name for part in (*parts, table.ATTRIBUTES | table.LABELS) for name in part]
    assert len(entries) == len(set(entries))
    assert set(entries) <= table.declared()
    assert not table.untold(table.declared() - set(entries))


async def test_scripted_chats_record_what_is_declared_and_nothing_else(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    async with running_mesh(small_vocabulary(), tmp_path, **WHOLE) as mesh:
        # In place of what each service has set up for a process of its own.
        tracing.configure_tracing("test", SimpleSpanProcessor(spans))
        async with mesh.client() as client:
            await type_ahead(mesh, client)
            await talk(client)
        await talk_to_the_router(mesh)
        found = await scraped_once_moved(mesh, set(table.COUNTED | table.SHOWN))
    check_metrics(found)
    check_spans(spans.get_finished_spans())


async def type_ahead(mesh: Mesh, client: Client) -> None:
    """A prompt that is computed while it is typed."""
    typing = client.typing()
    text = "Which of these trains leaves first, and which of them is the fastest? " * 2
    counted = f"{PREFILLED_TOKENS}_total"
    sample = mesh.edges[0].metrics.registry.get_sample_value
    await type_until(lambda: bool(sample(counted, {"model": MODEL})), typing, text)
    typing.close()


async def talk(client: Client) -> None:
    """Two chats, the second with the first one's prompt in the cache, and one that is refused."""
    for _ in range(2):
        async with client.chat(ASK, sampling=SAMPLING) as chat:
            assert len((await chat.result()).ids) == SAMPLING.max_tokens
    with pytest.raises(NoReplicaError):
        async with client.chat(ASK, residency=("nowhere",)) as refused:
            await refused.result()


async def talk_to_the_router(mesh: Mesh) -> None:
    """A session that brings text, for the tokenizer service."""
    messages = [common_pb2.ChatMessage(role="user", content="hello")]
    opening = inference_pb2.OpenSession(
        request_id="text",
        messages=inference_pb2.PromptMessages(messages=messages),
        sampling=common_pb2.Sampling(max_tokens=5, ignore_eos=True),
        codecs=[common_pb2.TOKEN_CODEC_VARINT],
    )
    edge = mesh.routers[0].edge()
    await edge.send(inference_pb2.SessionUp(session=1, open=opening))
    kinds: list[str | None] = []
    while not kinds or kinds[-1] not in ("done", "error"):
        frame = await edge.next()
        assert frame is not None
        kinds.append(frame.WhichOneof("kind"))
    assert kinds[-1] == "done"


async def scraped_once_moved(mesh: Mesh, wanted: set[str]) -> list[Metric]:
    """Services bring their figures up to date some times a second: what they say once all of
    `wanted` is there, or after a while, for the checks to tell what is missing."""
    found = await mesh.scraped()
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            while wanted - _recorded(found) or table.COUNTED - _moved(found):
                await asyncio.sleep(0.05)
                found = await mesh.scraped()
    return found


def check_metrics(found: Sequence[Metric]) -> None:
    """Every name in the tables, the right way round."""
    assert sorted(table.COUNTED - _moved(found)) == [], "never counted"
    assert sorted(table.SHOWN - _recorded(found)) == [], "never shown"
    assert sorted(_recorded(found) - table.declared()) == [], "recorded, but not declared"
    labels = {label for family in found for sample in family.samples for label in sample.labels}
    assert not {name.replace(".", "_") for name in table.LABELS} - labels, "never a label"


def check_spans(found: Sequence[ReadableSpan]) -> None:
    """Spans, their events and attributes; a unary call's span has the method's name."""
    methods = {
        str(span.attributes[names.RPC_METHOD])
        for span in found
        if span.attributes and names.RPC_METHOD in span.attributes
    }
    assert {span.name for span in found} - methods == table.SPANS
    assert {event.name for span in found for event in span.events} == table.EVENTS
    attributes = {name for span in found for name in span.attributes or ()}
    assert not table.ATTRIBUTES - attributes, "never set"
    other = {name for name in attributes if name.startswith("gen_ai.")} - table.ATTRIBUTES
    assert not other, "set, but not in the tables"


def _recorded(found: Iterable[Metric]) -> set[str]:
    """Left out: what Prometheus's client adds by itself, and when something was first counted."""
    there = {family.name for family in found if family.samples} - {"target_info"}
    return {name for name in there if not name.endswith("_created")}


def _moved(found: Iterable[Metric]) -> set[str]:
    """Of which something is not 0."""
    return {family.name for family in found if any(sample.value for sample in family.samples)}
