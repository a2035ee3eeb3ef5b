"""A real edge on loopback before a scripted region, and what must be left of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.client import Client, connect
from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check
from services.edge.app import Edge
from services.edge.config import EdgeConfig
from tests.edge.live.region import Region, serving


@dataclass
class Running:
    """An edge, the region behind it, and where to reach it."""

    edge: Edge
    region: Region
    ports: Ports
    ca: Path
    metrics: Metrics

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with connect("127.0.0.1", self.ports.main, ca=self.ca) as client:
            yield client

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
    """Region and edge; checks that nothing is left over when they stop."""
    region = Region(vocabulary, reply)
    metrics = Metrics("edge")
    async with leak_check(), serving(region) as region_port:
        settings = EdgeConfig(
            port=0,
            routers=(f"127.0.0.1:{region_port}",),
            state_dir=state_dir,
            drain_s=config.pop("drain_s", 0.0),
            **config,
        )
        edge = Edge(settings, "small", vocabulary, metrics)
        ports = await edge.start()
        try:
            await eventually(lambda: edge.upstream.ready and bool(region.calls))
            yield Running(edge, region, ports, state_dir / "tls" / "cert.pem", metrics)
            await eventually(lambda: edge.telemetry.num_connections == 0)
        finally:
            await edge.stop()
            metrics.close()
        assert edge.telemetry.num_chats == 0
