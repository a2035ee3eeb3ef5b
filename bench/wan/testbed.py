"""The processes of a run: regions, edges, and the relay between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.harness.mesh import Mesh, Service, mesh, replica_rows
from bench.relay.control import RelayControl
from bench.relay.lane import Conditions
from bench.wan.plan import Scheme
from services.edge.drafter.metrics import STATE, DrafterState

STEADY = Conditions()
"""A link that loses nothing and always takes the same time."""
_POLL_S = 0.2
_LOAD_LIMIT_S = 300.0
_GATEWAYS: Mapping[str, Mapping[str, object]] = {
    "near": {},
    "far": {},
    "quiet": {"uploads": "never"},
    "copies": {"drafter.model": "none"},
    "always": {"uploads": "always"},
    "wide": {"drafter.model": "none"},
}


@dataclass(frozen=True, slots=True)
class RegionEngine:
    """What replicas run."""

    name: str = "openvino"
    threads: int = 1
    """The wide region's has one for every core."""
    max_fixed_rows: int = 64
    model: str = ""
    """The target's name; "": the default model."""
    definitions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What names of models stand for besides the shipped ones, as tables of a service's file."""
    program: Sequence[str] = ()
    """What is run in place of `outrider serve inference` (bench.harness.mesh.Service)."""


@dataclass(frozen=True, slots=True)
class Region:
    """A replica behind a router of its own."""

    replica: Service
    router: Service


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as clients reach it: through the relay."""

    pid: int
    port: int
    ca: Path
    drafter: DrafterState
    """Whether a model drafts there beside the suffix automaton."""
    region: Region
    service: Service
    """Its process, for its metrics."""


@dataclass(frozen=True, slots=True)
class Placement:
    """On which cores a process runs; listed beside the figures."""

    process: str
    cores: tuple[int, ...]
    threads: int
    """Threads that compute a model; 0: it has none."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """Everything that runs besides the bench itself."""

    relay: RelayControl
    edges: Mapping[str, Edge]
    """By name: near (beside the clients, far from the region), far (at the region, far from the
    clients), quiet (as near, but its drafts are for its clients alone), copies (as near, without a
    draft model), always (as near, but its drafts are sent whether they pay or not), wide (as far,
    at a region that has all cores), and whatever further ones were asked for."""
    placements: tuple[Placement, ...]

    async def set_distance(
        self, schemes: Collection[Scheme], rtt_ms: float, long_way: Conditions = STEADY
    ) -> None:
        """How far the region is from the clients of these schemes, and how the long way behaves
        apart from its delay; last miles are steady."""
        for scheme in schemes:
            for link, link_rtt_ms in scheme.rtts_ms(rtt_ms).items():
                how = long_way if link == scheme.long_link else STEADY
                await self.relay.set(link, replace(how, delay_ms=link_rtt_ms / 2))


@contextlib.asynccontextmanager
async def running_testbed(
    engine: RegionEngine,
    schemes: Collection[Scheme],
    others: Mapping[str, Mapping[str, object]] | None = None,
    edge_settings: Sequence[str] = (),
) -> AsyncIterator[Testbed]:
    """Start what these schemes need, pinned; `others` are what further edges beside the clients are
    set up with, `edge_settings` KEY=VALUE of all edges.

    Region and edge have a core each (half of the cores each, where there are more) in every scheme.
    On the region's run replica and router; on the edge's the edges and their drafters, also the
    drafter of a gateway at the region, and, to the same extent for all schemes, relay and clients:
    this process moves there. The wide region alone has all cores. Raises RuntimeError if a process
    does not come up."""
    region_cores, edge_cores = split_cores()
    os.sched_setaffinity(0, edge_cores)
    async with mesh("wan", relay_cores=edge_cores) as made:
        start = _Starter(made, engine, edge_settings)
        start.placed("clients and relay", edge_cores)
        # One after the other: all compile models on the same cores.
        region = await start.region("region", engine, region_cores)
        wide = region
        asked = {scheme.gateway for scheme in schemes}
        if "wide" in asked:
            all_cores = region_cores | edge_cores
            wider = replace(engine, threads=len(all_cores))
            wide = await start.region("wide-region", wider, all_cores)
        wanted = {name: values for name, values in _GATEWAYS.items() if name in asked}
        edges: dict[str, Edge] = {}
        for name, values in {**wanted, **(others or {})}.items():
            where = wide if name == "wide" else region
            edges[name] = await start.edge(name, where, edge_cores, values)
        yield Testbed(await made.relay(), edges, tuple(start.placements))


def split_cores() -> tuple[frozenset[int], frozenset[int]]:
    """The region's cores and the edge's: half of this process's each; one core is both's."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return (frozenset(cores[:half]), frozenset(cores[half:])) if half else (frozenset(cores),) * 2


class _Starter:
    def __init__(self, made: Mesh, engine: RegionEngine, edge_settings: Sequence[str]) -> None:
        self._mesh = made
        self._engine = engine
        self._edge_settings = edge_settings
        self.placements: list[Placement] = []

    def placed(self, process: str, cores: Collection[int], threads: int = 0) -> None:
        """Remember where it runs."""
        self.placements.append(Placement(process, tuple(sorted(cores)), threads))

    async def region(self, name: str, engine: RegionEngine, cores: frozenset[int]) -> Region:
        """A replica and its router, on the same cores."""
        values = {
            "replica": "replica",
            "engine": engine.name,
            "threads": engine.threads,
            "scheduler": {"max_sessions": 32},
            "kv_bytes": 1 << 30,
            # Nothing compiles beside what is measured.
            "max_fixed_rows": engine.max_fixed_rows,
            "prepare_first": True,
            **({"model": engine.model} if engine.model else {}),
        }
        replica = self._mesh.service(
            *(f"{name}-replica", "inference", values),
            region="region",
            cores=cores,
            models=engine.definitions,
            program=engine.program,
        )
        rows = {"replicas": replica_rows([replica])}
        router = self._mesh.service(
            *(f"{name}-router", "router", rows),
            region="region",
            cores=cores,
            models=engine.definitions,
        )
        for service in (replica, router):
            await self._mesh.start(service)
        self.placed(f"{name}: replica", cores, engine.threads)
        self.placed(f"{name}: router", cores)
        return Region(replica, router)

    async def edge(
        self, name: str, region: Region, cores: Collection[int], more: Mapping[str, object]
    ) -> Edge:
        """An edge between a relayed link to the router and one to its clients."""
        upstream = await self._mesh.relayed(f"{name} region", region.router)
        stem = name.replace(" ", "-").replace(",", "")
        state_dir = self._mesh.folder / stem
        values = {
            "name": stem,
            "routers": (f"127.0.0.1:{upstream}",),
            "state_dir": str(state_dir),
            "anonymous": True,
            "trust": "chat",
            "models": (self._engine.model,) if self._engine.model else (),
            **more,
        }
        service = self._mesh.service(
            *(f"edge-{stem}", "edge", values),
            cores=cores,
            models=self._engine.definitions,
            settings=self._edge_settings,
        )
        await self._mesh.start(service)
        port = await self._mesh.relayed(f"{name} client", service)
        drafter = await _settled(service)
        self.placed(f"{name} edge and its drafter", cores, int(drafter is DrafterState.READY))
        ca = state_dir / "tls" / "cert.pem"
        return Edge(service.pid, port, ca, drafter, region, service)


async def _settled(edge: Service) -> DrafterState:
    """Of the edge's drafter, once it is no longer loading its model. Raises TimeoutError."""
    async with asyncio.timeout(_LOAD_LIMIT_S):
        while True:
            states = [
                sample.labels["state"]
                for sample in await edge.samples()
                if sample.name == STATE and sample.value
            ]
            state = DrafterState[states[0].upper()] if states else DrafterState.OFF
            if state not in (DrafterState.STARTING, DrafterState.RESTARTING):
                return state
            await asyncio.sleep(_POLL_S)
