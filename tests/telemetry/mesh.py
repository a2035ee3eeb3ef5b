"""A whole mesh in one process, on real sockets: edge, router, tokenizer, and a replica whose
engine is fake. What its services record can be read as operators read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from outrider.client import Client, connect
from outrider.codec.tokens import TokenCoder
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.edge.app import Edge
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig
from services.inference.app import LoadedModel, Replica, replies_in
from services.inference.config import InferenceConfig
from services.router.admission.pricing import Price
from services.router.config import ReplicaConfig
from services.router.relay.replica_monitor import HangPolicy
from services.tokenizer.config import SharedCacheConfig
from services.tokenizer.vocabularies import ServedVocabulary
from tests.edge.integration.running import catalog_of, loading
from tests.router.replica import RouterUnderTest, running_router
from tests.tokenizer.running import TokenizerUnderTest, running_tokenizer

MODEL = "small"

PATIENT_EDGE: Mapping[str, Any] = {
    "probe_timeout_s": 60.0,
    "suspect_s": 60.0,
    "reopen_s": 60.0,
    "request_timeout_s": 60.0,
}
PATIENT_ROUTER: Mapping[str, Any] = {
    "probe_timeout_s": 60.0,
    "suspect_s": 60.0,
    "silence_s": 60.0,
    "hang": HangPolicy(min_silence_s=60.0),
}
"""All share one event loop, and maybe a busy machine: nobody is given up for being slow."""


@dataclass(frozen=True)
class WholeMesh:
    """Where to reach every service."""

    edge: Edge
    edge_ports: Ports
    router: RouterUnderTest
    tokenizer: TokenizerUnderTest
    edge_metrics: Metrics
    replica_metrics: Metrics
    ca: Path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the edge."""
        async with connect("127.0.0.1", self.edge_ports.main, ca=self.ca) as client:
            yield client

    async def scraped(self) -> list[Metric]:
        """What every service has recorded, by family."""
        pages = (await self.pages()).values()
        return [family for page in pages for family in text_string_to_metric_families(page)]

    async def pages(self) -> dict[str, str]:
        """What /metrics says, by role."""
        registry = self.replica_metrics.registry
        replica = AdminServer(AdminConfig(), ready=lambda: (True, ""), registry=registry)
        replica_admin = await replica.start()
        try:
            admins = {
                "edge": self.edge_ports.admin,
                "router": self.router.ports.admin,
                "tokenizer": self.tokenizer.ports.admin,
                "inference": replica_admin,
            }
            return {role: await _page(port) for role, port in admins.items()}
        finally:
            await replica.stop()


async def _page(admin_port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", admin_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, page = (await reader.read()).decode().partition("\r\n\r\n")
    assert "200 OK" in head
    writer.close()
    await writer.wait_closed()
    return page


@asynccontextmanager
async def whole_mesh(words: Vocabulary, state_dir: Path) -> AsyncIterator[WholeMesh]:
    """Started from the back to the front; ready for chats."""
    vocabularies = [ServedVocabulary.of(MODEL, words)]
    # Nobody listens there: what is shared is asked for in vain, which is recorded as well.
    shared = "redis://127.0.0.1:1"
    async with (
        running_tokenizer(
            vocabularies, shared_cache=SharedCacheConfig(shared, "k" * 32)
        ) as tokenizer,
        _replica(words) as (replica, replica_metrics),
        running_router(
            replicas=(ReplicaConfig("a", "us", f"127.0.0.1:{replica.port}"),),
            tokenizers=(tokenizer.address,),
            default_model=MODEL,
            prices=(Price(1.0, 10.0, model=MODEL),),
            currency="USD",
            **PATIENT_ROUTER,
        ) as router,
    ):
        routers = (f"127.0.0.1:{router.ports.main}",)
        config = EdgeConfig(
            port=0,
            routers=routers,
            state_dir=state_dir,
            drain_s=0.0,
            anonymous=True,
            drafter=DrafterConfig(model=NO_DRAFT_MODEL),
            **PATIENT_EDGE,
        )
        metrics = Metrics("edge")
        edge = Edge(config, catalog_of(MODEL), metrics, load=loading(words))
        ports = await edge.start()
        try:
            await eventually(lambda: edge.upstream.ready)
            ca = state_dir / "tls" / "cert.pem"
            yield WholeMesh(edge, ports, router, tokenizer, metrics, replica_metrics, ca)
        finally:
            await edge.stop()
            metrics.close()


@asynccontextmanager
async def _replica(words: Vocabulary) -> AsyncIterator[tuple[Replica, Metrics]]:
    options = FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=1.0)
    coder = TokenCoder(words.digest, words.size)
    engine = FakeEngine(options)
    model = LoadedModel(MODEL, engine, coder, words.digest, replies_in(words), b"m" * 32)
    config = InferenceConfig(engine="fake", port=0, replica="a", region="us", drain_s=0.0)
    metrics = Metrics("inference")
    replica = Replica(config, model, metrics)
    await replica.start()
    try:
        yield replica, metrics
    finally:
        await replica.stop()
        metrics.close()
