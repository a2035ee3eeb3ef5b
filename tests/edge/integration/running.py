"""A real edge on loopback before a scripted region, and what must be left of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from outrider.client import Client, connect
from outrider.models.definitions import ModelCatalog, ModelSpec
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check
from outrider.tls import PLAINTEXT, Role, Tls, TlsConfig
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from services.edge.app import Edge
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig
from services.edge.models.served import LoadVocabulary, ServedModel
from services.edge.quic.limits import ListenerLimits
from tests.api_keys import write_keys
from tests.edge.integration.region import Region, serving

_POLL_S = 0.05
"""Certificates are looked at so often."""


def catalog_of(*names: str) -> ModelCatalog:
    """Models of these names, which are nowhere; the first is the default."""
    return ModelCatalog((ModelSpec(name, f"file:/nowhere/{name}.gguf") for name in names), names[0])


def loading(vocabulary: Vocabulary) -> LoadVocabulary:
    """Every model has this vocabulary."""

    def load(spec: ModelSpec) -> tuple[Vocabulary, FallbackBackend]:
        return vocabulary, select_backend(vocabulary, REFERENCE)

    return load


class Mute:
    """A socket that sends nothing."""

    def sendto(self, data: bytes, addr: object = None) -> None:
        """Does not."""


@dataclass
class Running:
    """An edge, the region behind it, and where to reach it."""

    edge: Edge
    region: Region
    ports: Ports
    ca: Path
    metrics: Metrics

    @asynccontextmanager
    async def client(self, port: int | None = None, **options: Any) -> AsyncIterator[Client]:
        """A client of the edge, by way of another port of this machine if one is given."""
        where = self.ports.main if port is None else port
        async with connect("127.0.0.1", where, ca=self.ca, **options) as client:
            yield client

    @property
    def model(self) -> ServedModel:
        """What the chats with the default model share."""
        assert self.edge.models.first is not None
        return self.edge.models.first

    async def restart(self, *, in_order: bool = False, model: str = "small") -> None:
        """Another edge in place of this one, which is gone without a word to anybody, or says so
        if it goes `in_order`. It serves `model`."""
        for connection in () if in_order else self.edge.listener.connections:
            connection._transport = Mute()  # type: ignore[assignment]
        await self.edge.stop()
        config = replace(self.edge._config, port=self.ports.main, models=(model,))
        load = loading(self.region.vocabulary)
        self.edge = Edge(config, catalog_of(model), self.metrics, load=load)
        await self.edge.start()
        await eventually(lambda: self.edge.upstream.ready)

    def sample(self, name: str, **labels: str) -> float:
        """A metric of the edge; 0 if there is none yet. See `of_model`."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def of_model(self, name: str, model: str = "small", **labels: str) -> float:
        """As `sample`, of the chats with a model."""
        return self.sample(name, model=model, **labels)

    @property
    def num_region_sessions(self) -> int:
        """Sessions that the edge would still take frames for."""
        return sum(link.num_sessions for link in self.edge.upstream.links)

    async def settled(self) -> None:
        """Return when no chat and no session is left on any side; fail if that does not happen."""
        await eventually(
            lambda: (
                self.edge.telemetry.num_chats == 0
                and self.num_region_sessions == 0
                and not self.region.live
            )
        )


@asynccontextmanager
async def running(
    vocabulary: Vocabulary, state_dir: Path, reply: str = "Hello there, hello there!", **config: Any
) -> AsyncIterator[Running]:
    """Region and edge; checks that nothing is left over when they stop. `region_tls` among the
    settings is what the region proves itself with; `catalog`, `load` and `application` are as
    in Edge; `keys` are those of tenants."""
    write_keys(state_dir / "keys.json", *config.pop("keys", ()))
    region = Region(vocabulary, reply)
    region_tls = config.pop("region_tls", PLAINTEXT)
    catalog = config.pop("catalog", catalog_of(*config.get("models", ("small",))))
    load = config.pop("load", loading(vocabulary))
    application = config.pop("application", None)
    edge_tls = Tls.open(config.get("tls", TlsConfig()), Role.EDGE)
    metrics = Metrics("edge")
    async with (
        leak_check(),
        region_tls.watched(_POLL_S),
        edge_tls.watched(_POLL_S),
        serving(region, tls=region_tls) as region_port,
    ):
        limits = {
            it.name: config.pop(it.name) for it in fields(ListenerLimits) if it.name in config
        }
        settings = EdgeConfig(
            quic=ListenerLimits(**limits),
            port=0,
            routers=(f"127.0.0.1:{region_port}",),
            state_dir=state_dir,
            drain_s=config.pop("drain_s", 0.0),
            drafter=config.pop("drafter", DrafterConfig(model=NO_DRAFT_MODEL)),
            anonymous=config.pop("anonymous", True),
            **config,
        )
        edge = Edge(settings, catalog, metrics, load=load, tls=edge_tls, application=application)
        ports = await edge.start()
        mesh = Running(edge, region, ports, state_dir / "tls" / "cert.pem", metrics)
        try:
            await eventually(lambda: edge.upstream.ready and bool(region.calls))
            yield mesh
            await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
        finally:
            await mesh.edge.stop()
            metrics.close()
            faults = [it for each in (region, *region.others.values()) for it in each.faults]
            if faults:
                raise faults[0]
        assert mesh.edge.telemetry.num_chats == 0
