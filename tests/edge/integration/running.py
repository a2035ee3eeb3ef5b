"""A real edge on loopback before a scripted region, and what must be left of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually, leak_check
from outrider.tls import PLAINTEXT, Role, Tls, TlsConfig
from services.edge.http.listener import HttpListener
from services.edge.limits.listener import ListenerLimits
from tests.api_keys import write_keys
from tests.edge.integration.region import Region, serving
from tests.mesh import EdgeUnderTest, edge_config, loading

REPLY = "a reply of some length"
"""What regions say that are told nothing else."""
_POLL_S = 0.05
"""Certificates are looked at so often."""


class Running(EdgeUnderTest):
    """An edge, and the region behind it."""

    def __init__(self, region: Region, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.region = region

    @property
    def http(self) -> HttpListener:
        """The edge's, of one that serves HTTP."""
        assert self.edge.http is not None
        return self.edge.http

    async def settled(self) -> None:
        """Return when no chat and no session is left on any side; fail if that does not happen."""
        await eventually(
            lambda: (
                self.edge.telemetry.num_chats == 0
                and self.num_region_sessions == 0
                and not self.region.live
            )
        )


def settings_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the markers `edge` of a test tell, the nearest last."""
    markers = [*request.node.iter_markers("edge")]
    return {name: it for marker in reversed(markers) for name, it in marker.kwargs.items()}


@asynccontextmanager
async def running(
    vocabulary: Vocabulary, state_dir: Path, reply: str = REPLY, **config: Any
) -> AsyncIterator[Running]:
    """Region and edge; checks that nothing is left over when they stop. `region_tls` among the
    settings is what the region proves itself with; `catalog`, `load` and `application` are as
    in EdgeUnderTest; `keys` are those of tenants."""
    write_keys(state_dir / "keys.json", *config.pop("keys", ()))
    region = Region(vocabulary, reply)
    region_tls = config.pop("region_tls", PLAINTEXT)
    load = config.pop("load", loading(vocabulary))
    options = {name: config.pop(name, None) for name in ("catalog", "application")}
    edge_tls = Tls.open(config.get("tls", TlsConfig()), Role.EDGE)
    async with (
        leak_check(),
        region_tls.watched(_POLL_S),
        edge_tls.watched(_POLL_S),
        serving(region, tls=region_tls) as region_port,
    ):
        names = [it.name for it in fields(ListenerLimits) if it.name in config]
        limits = ListenerLimits(**{name: config.pop(name) for name in names})
        settings = edge_config(state_dir, [f"127.0.0.1:{region_port}"], quic=limits, **config)
        mesh = Running(region, settings, load, tls=edge_tls, **options)
        try:
            await mesh.start()
            await eventually(lambda: bool(region.calls))
            yield mesh
            await mesh.settled()
            await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
        finally:
            await mesh.stop()
            faults = [it for each in (region, *region.others.values()) for it in each.faults]
            if faults:
                raise faults[0]
        assert mesh.edge.telemetry.num_chats == 0
