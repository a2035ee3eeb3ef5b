"""The processes of a run: regions, edges, the waiting verifier, and the relay between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.harness.processes import child, read_json
from bench.harness.run_folder import run_folder
from bench.relay.control import RelayControl, relay
from bench.wan.plan import Scheme
from outrider.children import PipedProcess
from outrider.cli.local.mesh import ProcessSpec, to_toml
from outrider.process import Ports, read_ports
from services.edge.drafter.metrics import STATE, DrafterState

HOST = "127.0.0.1"
_START_LIMIT_S = 300.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RegionEngine:
    """What replicas and waiting verifier run, each for itself."""

    name: str = "openvino"
    threads: int = 1
    """Of each; the wide region's has one for every core."""
    max_fixed_rows: int = 64
    model: str = ""
    """The target's name; "": the default model."""
    definitions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What names of models stand for besides the shipped ones, as tables of a service's file."""


@dataclass(frozen=True, slots=True)
class Service:
    """A started service."""

    pid: int
    ports: Ports


@dataclass(frozen=True, slots=True)
class Region:
    """A replica behind a router of its own."""

    replica: Service
    router: Service
    threads: int
    cores: frozenset[int]


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as clients reach it: through the relay."""

    pid: int
    port: int
    ca: Path
    drafter: DrafterState
    """Whether a model drafts there beside the suffix automaton."""
    region: Region


@dataclass(frozen=True, slots=True)
class Verifier:
    """The region of the schemes that wait."""

    process: PipedProcess
    address: str
    """Through the relay."""


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
    verifier: Verifier | None
    placements: tuple[Placement, ...]


@contextlib.asynccontextmanager
async def running_testbed(
    engine: RegionEngine,
    settings: Mapping[str, Sequence[str]],
    schemes: Collection[Scheme],
    others: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[Testbed]:
    """Start what these schemes need, pinned; `settings` are KEY=VALUE by role, `others` what
    further edges beside the clients are set up with.

    Region and edge have a core each (half of the cores each, where there are more) in every scheme.
    On the region's run replica, router and waiting verifier; on the edge's the edges and their
    drafters, also the drafter of a gateway at the region, and, to the same extent for all schemes,
    relay and clients: this process moves there. The wide region alone has all cores.
    Raises RuntimeError if a process does not come up."""
    region_cores, edge_cores = split_cores()
    os.sched_setaffinity(0, edge_cores)
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(run_folder("wan")).path
        link = await stack.enter_async_context(relay(edge_cores))
        start = _Starter(stack, folder, settings, link, engine)
        start.placed("clients and relay", edge_cores)
        # One after the other: all compile models on the same cores.
        region = await start.region("region", engine, region_cores)
        verifier = None
        if any(scheme.policy is not None for scheme in schemes):
            verifier = await start.verifier(engine, region_cores)
        asked = {scheme.gateway for scheme in schemes}
        edges = {
            name: await start.edge(name, region, edge_cores, values)
            for name, values in {**_GATEWAYS, **(others or {})}.items()
            if name in asked or name not in _GATEWAYS
        }
        if "wide" in asked:
            all_cores = region_cores | edge_cores
            wider = replace(engine, threads=len(all_cores))
            wide = await start.region("wide region", wider, all_cores)
            edges["wide"] = await start.edge("wide", wide, edge_cores, {"drafter.model": "none"})
        yield Testbed(link, edges, verifier, tuple(start.placements))


_GATEWAYS: Mapping[str, Mapping[str, object]] = {
    "near": {},
    "far": {},
    "quiet": {"uploads": "never"},
    "copies": {"drafter.model": "none"},
    "always": {"uploads": "always"},
}


def split_cores() -> tuple[frozenset[int], frozenset[int]]:
    """The region's cores and the edge's: half of this process's each; one core is both's."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return (frozenset(cores[:half]), frozenset(cores[half:])) if half else (frozenset(cores),) * 2


class _Starter:
    """Starts processes that end with the stack."""

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        folder: Path,
        settings: Mapping[str, Sequence[str]],
        link: RelayControl,
        engine: RegionEngine,
    ) -> None:
        self._model = engine.model
        self._definitions = engine.definitions
        self._stack = stack
        self._folder = folder
        self._settings = settings
        self._link = link
        self.placements: list[Placement] = []

    def placed(self, process: str, cores: Collection[int], threads: int = 0) -> None:
        """Remember where it runs."""
        self.placements.append(Placement(process, tuple(sorted(cores)), threads))

    async def service(
        self, name: str, role: str, values: Mapping[str, object], cores: Collection[int]
    ) -> Service:
        """One service, once it is ready."""
        stem = name.replace(" ", "-")
        config, ready = (self._folder / f"{stem}.{kind}" for kind in ("toml", "json"))
        given = {"host": HOST, "port": 0, "log_level": "error", "drain_s": 0.0}
        spec = ProcessSpec(name, role, {**given, **values})
        config.write_text(to_toml(spec, self._definitions), encoding="utf-8")
        command = child(
            *(sys.executable, "-m", "outrider.cli.main", "serve", role),
            *("--config", str(config), "--ready-file", str(ready)),
            *(f"--set={setting}" for setting in self._settings.get(role, ())),
            cores=cores,
        )
        process = await self._stack.enter_async_context(command)
        return Service(process.pid, await _until_ready(name, process, ready))

    async def region(self, name: str, engine: RegionEngine, cores: frozenset[int]) -> Region:
        """A replica and its router, on the same cores."""
        values = {**_replica(engine), **({"model": self._model} if self._model else {})}
        replica = await self.service(f"{name} replica", "inference", values, cores)
        router = await self.service(f"{name} router", "router", _router(replica.ports.main), cores)
        self.placed(f"{name}: replica", cores, engine.threads)
        self.placed(f"{name}: router", cores)
        return Region(replica, router, engine.threads, cores)

    async def edge(
        self, name: str, region: Region, cores: Collection[int], more: Mapping[str, object]
    ) -> Edge:
        """An edge between a relayed link to the router and one to its clients."""
        router = (HOST, region.router.ports.main)
        upstream = await self._link.add(f"{name} region", "tcp", router, seed=21)
        state_dir = self._folder / name.replace(" ", "-")
        values = {
            "name": name,
            "routers": (f"{HOST}:{upstream}",),
            "state_dir": str(state_dir),
            "anonymous": True,
            "trust": "chat",
            "models": (self._model,) if self._model else (),
            **more,
        }
        service = await self.service(name, "edge", values, cores)
        port = await self._link.add(f"{name} client", "udp", (HOST, service.ports.main), seed=31)
        drafter = await settled(HOST, service.ports.admin)
        self.placed(f"{name} edge and its drafter", cores, int(drafter is DrafterState.READY))
        return Edge(service.pid, port, state_dir / "tls" / "cert.pem", drafter, region)

    async def verifier(self, engine: RegionEngine, cores: Collection[int]) -> Verifier:
        """The waiting verifier, behind a relayed link."""
        command = (sys.executable, "-m", "bench.wan.waiting_server")
        flags = (
            *("--engine", engine.name, "--threads", str(engine.threads)),
            *("--max-fixed-rows", str(engine.max_fixed_rows)),
        )
        process = await self._stack.enter_async_context(child(*command, *flags, cores=cores))
        direct = (HOST, (await read_json(process))["port"])
        port = await self._link.add("waiting region", "tcp", direct, seed=11)
        self.placed("waiting verifier", cores, engine.threads)
        self.placed("drafter of the edges that wait", os.sched_getaffinity(0), 1)
        return Verifier(process, f"{HOST}:{port}")


def _replica(engine: RegionEngine) -> dict[str, object]:
    return {
        "replica": "replica",
        "region": "region",
        "engine": engine.name,
        "threads": engine.threads,
        "scheduler": {"max_sessions": 32},
        "kv_bytes": 1 << 30,
        # Nothing compiles beside what is measured.
        "max_fixed_rows": engine.max_fixed_rows,
        "prepare_first": True,
    }


def _router(replica_port: int) -> dict[str, object]:
    address = f"{HOST}:{replica_port}"
    replica = {"name": "replica", "region": "region", "address": address}
    return {"region": "region", "replicas": (replica,)}


async def _until_ready(name: str, process: PipedProcess, ready: Path) -> Ports:
    async with asyncio.timeout(_START_LIMIT_S):
        while process.returncode is None:
            if (ports := read_ports(ready)) is not None:
                return ports
            await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"{name} ended with exit status {process.returncode}")


_POLL_S = 0.2
_LOAD_LIMIT_S = 300.0


async def settled(host: str, admin_port: int) -> DrafterState:
    """Of the edge's drafter, once it is no longer loading its model. Raises TimeoutError."""
    async with asyncio.timeout(_LOAD_LIMIT_S):
        while True:
            state = await asyncio.to_thread(_state, f"http://{host}:{admin_port}/metrics")
            if state not in (DrafterState.STARTING, DrafterState.RESTARTING):
                return state
            await asyncio.sleep(_POLL_S)


def _state(url: str) -> DrafterState:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    states = [
        sample.labels["state"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == STATE and sample.value
    ]
    return DrafterState[states[0].upper()] if states else DrafterState.OFF
