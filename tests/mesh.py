"""Meshes in one process, wired by the constructors of `services/*/app.py`, on loopback sockets.

    async with running_mesh(words, tmp_path, replicas=2, router={"seed": 3}) as mesh:
        async with mesh.client() as client, client.chat(ASK) as chat:
            result = await chat.result()

`running_mesh` starts tokenizers, replicas, routers and edges, all real but for the engine, and is
what a test of several services should use. A test of one service starts that one alone:
`running_edge`, `running_replica`, `tests.router.replica.running_router` or
`tests.tokenizer.running.running_tokenizer`. Whatever a test needs is a setting of the service's own
configuration, passed by its name.

All share the test's event loop, on a machine that may be busy. So in a mesh nobody is given up for
being slow (`PATIENT_EDGE`, `PATIENT_ROUTER`); a test of timeouts overrides what it tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from outrider.client import Client, connect
from outrider.codec.tokens import TokenCoder
from outrider.engines.base import Engine
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.definitions import ModelCatalog, ModelSpec
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.tls import PLAINTEXT, Tls
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from services.edge.app import Edge
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig
from services.edge.http3.application import Application
from services.edge.models.served import LoadVocabulary, ServedModel
from services.inference.app import Replica
from services.inference.config import InferenceConfig
from services.inference.grammars.token_table import TokenTable
from services.inference.model import LoadedModel, replies_in
from services.router.fleet.entries import ReplicaConfig
from services.router.relay.policy import HangPolicy
from services.tokenizer.vocabularies import ServedVocabulary
from tests.router.replica import RouterUnderTest, running_router
from tests.tokenizer.running import TokenizerUnderTest, running_tokenizer

MODEL = "small"
"""What a mesh serves."""
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


def catalog_of(*names: str) -> ModelCatalog:
    """Models of these names, which are nowhere; the first is the default."""
    return ModelCatalog((ModelSpec(name, f"file:/nowhere/{name}.gguf") for name in names), names[0])


def loading(vocabulary: Vocabulary) -> LoadVocabulary:
    """What makes an edge use this vocabulary for every model."""

    def load(spec: ModelSpec) -> tuple[Vocabulary, FallbackBackend]:
        return vocabulary, select_backend(vocabulary, REFERENCE)

    return load


class _Mute:
    """A socket that sends nothing."""

    def sendto(self, data: bytes, addr: object = None) -> None:
        """Does not."""


class EdgeUnderTest:
    """An edge, and where to reach it."""

    def __init__(
        self,
        config: EdgeConfig,
        load: LoadVocabulary,
        *,
        catalog: ModelCatalog | None = None,
        tls: Tls = PLAINTEXT,
        application: Application | None = None,
    ) -> None:
        """`load`, `tls` and `application` are as in Edge; `catalog`, if None, has the models that
        `config` serves, or MODEL."""
        self.config = config
        self.load = load
        self.metrics = Metrics("edge")
        self.ports = Ports(0, 0)
        catalog = catalog or catalog_of(*(config.models or (MODEL,)))
        self.edge = Edge(config, catalog, self.metrics, load=load, tls=tls, application=application)

    async def start(self) -> None:
        """Listen, and return when a router has answered. Raises what Edge.start raises; stop() has
        to follow either way."""
        self.ports = await self.edge.start()
        await eventually(lambda: self.edge.upstream.ready)

    async def stop(self) -> None:
        """Drain and end."""
        await self.edge.stop()
        self.metrics.close()

    @property
    def ca(self) -> Path:
        """Whom its clients trust."""
        return self.config.state_dir / "tls" / "cert.pem"

    @asynccontextmanager
    async def client(self, port: int | None = None, **options: Any) -> AsyncIterator[Client]:
        """A client of the edge, by way of another port of this machine if one is given; `options`
        are those of `outrider.client.connect`."""
        where = self.ports.main if port is None else port
        async with connect("127.0.0.1", where, ca=self.ca, **options) as client:
            yield client

    @property
    def model(self) -> ServedModel:
        """What the chats with the default model share."""
        assert self.edge.models.first is not None
        return self.edge.models.first

    def sample(self, name: str, **labels: str) -> float:
        """A metric of the edge; 0 if there is none yet. See `of_model`."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def of_model(self, name: str, model: str = MODEL, **labels: str) -> float:
        """As `sample`, of the chats with a model."""
        return self.sample(name, model=model, **labels)

    @property
    def num_region_sessions(self) -> int:
        """Sessions that the edge would still take frames for."""
        return sum(link.num_sessions for link in self.edge.upstream.links)

    def fall_silent(self) -> None:
        """As a process that died: nothing that it would still send leaves the machine."""
        for connection in self.edge.listener.connections:
            connection._transport = _Mute()  # type: ignore[assignment]

    async def restart(self, *, in_order: bool = False, model: str = MODEL) -> None:
        """Another edge on the same port in place of this one, which is gone without a word to
        anybody, or says so if it goes `in_order`. It serves `model`."""
        if not in_order:
            self.fall_silent()
        await self.edge.stop()
        self.config = replace(self.config, port=self.ports.main, models=(model,))
        self.edge = Edge(self.config, catalog_of(model), self.metrics, load=self.load)
        await self.start()


def edge_config(state_dir: Path, routers: Sequence[str], **settings: Any) -> EdgeConfig:
    """Settings of an edge on a free port that asks nobody for a key, drafts with no model and ends
    at once, but for what `settings` say."""
    defaults: dict[str, Any] = {
        "port": 0,
        "drain_s": 0.0,
        "anonymous": True,
        "drafter": DrafterConfig(model=NO_DRAFT_MODEL),
    }
    return EdgeConfig(state_dir=state_dir, routers=tuple(routers), **(defaults | settings))


@asynccontextmanager
async def running_edge(
    config: EdgeConfig, load: LoadVocabulary, **options: Any
) -> AsyncIterator[EdgeUnderTest]:
    """An edge that has reached a router; `options` are as in EdgeUnderTest. Raises what Edge.start
    raises."""
    it = EdgeUnderTest(config, load, **options)
    try:
        await it.start()
        yield it
    finally:
        await it.stop()


@dataclass(frozen=True)
class ReplicaUnderTest:
    """A running replica, and what it counts."""

    replica: Replica
    metrics: Metrics

    @property
    def address(self) -> str:
        """Where routers reach it."""
        return f"127.0.0.1:{self.replica.port}"


def model_of(vocabulary: Vocabulary, engine: Engine, name: str = MODEL) -> LoadedModel:
    """A model as replicas serve it, whatever the engine: all those made here compute the same."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size)
    texts = replies_in(vocabulary)
    table = None if engine.info.num_candidates else _table_of(vocabulary)
    return LoadedModel(name, engine, coder, vocabulary.digest, texts, b"m" * 32, token_table=table)


@lru_cache(maxsize=4)
def _table_of(vocabulary: Vocabulary) -> TokenTable:
    return TokenTable(vocabulary)


@asynccontextmanager
async def running_replica(
    model: LoadedModel, *, is_started: bool = True, **settings: Any
) -> AsyncIterator[ReplicaUnderTest]:
    """A replica of this model on a free port, which ends at once; `settings` are InferenceConfig's.
    Unless it `is_started`, the test starts it. Raises what Replica and its start raise."""
    metrics = Metrics("inference")
    defaults: dict[str, Any] = {"engine": "fake", "port": 0, "drain_s": 0.0}
    try:
        replica = Replica(InferenceConfig(**(defaults | settings)), model, metrics)
        try:
            if is_started:
                await replica.start()
            yield ReplicaUnderTest(replica, metrics)
        finally:
            await replica.stop()
    finally:
        metrics.close()


@dataclass(frozen=True)
class Mesh:
    """Running services, each kind in the order of its numbers. Every edge knows every router, every
    router every replica and tokenizer."""

    edges: tuple[EdgeUnderTest, ...]
    routers: tuple[RouterUnderTest, ...]
    replicas: tuple[ReplicaUnderTest, ...]
    tokenizers: tuple[TokenizerUnderTest, ...]

    @asynccontextmanager
    async def client(self, edge: int = 0, **options: Any) -> AsyncIterator[Client]:
        """A client of one of the edges; `options` are those of `outrider.client.connect`."""
        async with self.edges[edge].client(**options) as client:
            yield client

    async def pages(self) -> dict[str, str]:
        """What the first service of each role says at /metrics, by role."""
        registry = self.replicas[0].metrics.registry
        admin = AdminServer(AdminConfig(), ready=lambda: (True, ""), registry=registry)
        ports = {
            "edge": self.edges[0].ports.admin,
            "router": self.routers[0].ports.admin,
            "inference": await admin.start(),
        }
        if self.tokenizers:
            ports["tokenizer"] = self.tokenizers[0].ports.admin
        try:
            return {role: await _page(port) for role, port in ports.items()}
        finally:
            await admin.stop()

    async def scraped(self) -> list[Metric]:
        """What `pages` say, by family."""
        pages = (await self.pages()).values()
        return [family for page in pages for family in text_string_to_metric_families(page)]


async def _page(admin_port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", admin_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, page = (await reader.read()).decode().partition("\r\n\r\n")
    assert "200 OK" in head
    writer.close()
    await writer.wait_closed()
    return page


@asynccontextmanager
async def running_mesh(
    vocabulary: Vocabulary,
    state_dir: Path,
    *,
    tokenizers: int = 0,
    replicas: int = 1,
    routers: int = 1,
    edges: int = 1,
    engine: Callable[[], Engine] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    replica: Mapping[str, Any] | None = None,
    router: Mapping[str, Any] | None = None,
    edge: Mapping[str, Any] | None = None,
) -> AsyncIterator[Mesh]:
    """A mesh that serves MODEL in this vocabulary, started from the back to the front and ready for
    chats. The numbers say how many services of a role there are. `engine` makes each replica's
    engine, None: a FakeEngine that repeats itself. The mappings are settings of all services of a
    role, over the defaults. Replicas are called "a", "b" and so on, and are in region "us"; the
    edges keep their files below `state_dir`, the first one in it."""
    options = FakeOptions(vocabulary_size=vocabulary.size, min_rows=2, repetition=1.0)
    made = engine or (lambda: FakeEngine(options))
    names = "abcdefgh"[:replicas]
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        served = [ServedVocabulary.of(MODEL, vocabulary)]
        tokenizing = [
            await enter(running_tokenizer(served, **(tokenizer or {}))) for _ in range(tokenizers)
        ]
        computing = [
            await enter(
                running_replica(
                    model_of(vocabulary, made()),
                    **({"replica": name, "region": "us"} | dict(replica or {})),
                )
            )
            for name in names
        ]
        known: dict[str, Any] = {
            "replicas": tuple(
                ReplicaConfig(name, "us", it.address)
                for name, it in zip(names, computing, strict=True)
            ),
            "tokenizers": tuple(it.address for it in tokenizing),
            "default_model": MODEL,
        }
        routing = [
            await enter(running_router(**(known | dict(PATIENT_ROUTER) | dict(router or {}))))
            for _ in range(routers)
        ]
        addresses = [f"127.0.0.1:{it.ports.main}" for it in routing]
        serving = []
        for number in range(edges):
            folder = state_dir / f"edge-{number}" if number else state_dir
            config = edge_config(folder, addresses, **(dict(PATIENT_EDGE) | dict(edge or {})))
            serving.append(await enter(running_edge(config, loading(vocabulary))))
        yield Mesh(tuple(serving), tuple(routing), tuple(computing), tuple(tokenizing))
