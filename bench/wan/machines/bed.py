"""The processes of a run: a region, edges, the waiting verifier, and the relay between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contenders.processes import child, read_json
from bench.wan.machines.cpu import split_cores
from bench.wan.machines.drafters import settled
from bench.wan.relay.control import RelayControl, relay
from outrider.cli.local.mesh import ProcessSpec, to_toml
from outrider.process import Ports, read_ports
from services.edge.drafter.metrics import DrafterState

HOST = "127.0.0.1"
_START_LIMIT_S = 240.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RegionEngine:
    """What replica and waiting verifier run, each for itself."""

    name: str = "openvino"
    threads: int = 1
    max_fixed_rows: int = 64


@dataclass(frozen=True, slots=True)
class Service:
    """A started service."""

    pid: int
    ports: Ports


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as clients reach it: through the relay."""

    pid: int
    port: int
    ca: Path
    drafter: DrafterState
    """Whether a model drafts there beside the suffix automaton."""


@dataclass(frozen=True, slots=True)
class Bed:
    """Everything that runs besides the bench itself."""

    relay: RelayControl
    replica: Service
    router: Service
    near: Edge
    """Beside the clients, far from the region."""
    far: Edge
    """At the region, far from the clients."""
    quiet: Edge
    """As the near one, but its drafts are for its clients alone."""
    others: Mapping[str, Edge]
    """Further ones beside the clients, by name."""
    verifier: asyncio.subprocess.Process
    waiting_address: str
    """Of the waiting verifier, through the relay."""
    region_cores: frozenset[int]
    edge_cores: frozenset[int]


@contextlib.asynccontextmanager
async def running_bed(
    engine: RegionEngine,
    settings: Mapping[str, Sequence[str]],
    others: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[Bed]:
    """Start everything, pinned; `settings` are KEY=VALUE by role, `others` what further edges are
    set up with. This process moves to the edge's cores. Raises RuntimeError if a process does not
    come up."""
    region, edge = split_cores()
    os.sched_setaffinity(0, edge)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-wan-")))
        start = _Starter(stack, folder, settings)
        link = await stack.enter_async_context(relay(edge))
        # One after the other: both compile models on the same cores.
        replica = await start.service("replica", "inference", _replica(engine), region)
        verifier, port = await start.verifier(engine, region)
        router = await start.service("router", "router", _router(replica.ports.main), region)
        direct = (HOST, router.ports.main)
        near = await start.edge("near", link, direct, edge)
        # Where it drafts it is not the lesser process of its core.
        far = await start.edge("far", link, direct, edge, {"draft_niceness": 0})
        quiet = await start.edge("quiet", link, direct, edge, {"uploads": "never"})
        more = {
            name: await start.edge(name, link, direct, edge, values)
            for name, values in (others or {}).items()
        }
        waiting = await link.add("waiting region", "tcp", (HOST, port), seed=11)
        waiting_address = f"{HOST}:{waiting}"
        edges = (near, far, quiet, more)
        yield Bed(link, replica, router, *edges, verifier, waiting_address, region, edge)


class _Starter:
    """Starts processes that end with the stack."""

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        folder: Path,
        settings: Mapping[str, Sequence[str]],
    ) -> None:
        self._stack, self._folder, self._settings = stack, folder, settings

    async def service(
        self, name: str, role: str, values: Mapping[str, object], cores: Collection[int]
    ) -> Service:
        """One service, once it is ready."""
        config, ready = (self._folder / f"{name}.{kind}" for kind in ("toml", "json"))
        given = {"host": HOST, "port": 0, "admin_port": 0, "log_level": "error", "drain_s": 0.0}
        spec = ProcessSpec(name, role, {**given, **values})
        config.write_text(to_toml(spec), encoding="utf-8")
        command = child(
            *(sys.executable, "-m", "outrider.cli.main", "serve", role),
            *("--config", str(config), "--ready-file", str(ready)),
            *(f"--set={setting}" for setting in self._settings.get(role, ())),
            cores=cores,
        )
        process = await self._stack.enter_async_context(command)
        return Service(process.pid, await _until_ready(name, process, ready))

    async def edge(
        self,
        name: str,
        link: RelayControl,
        router: tuple[str, int],
        cores: Collection[int],
        more: Mapping[str, object] | None = None,
    ) -> Edge:
        """An edge between a relayed link to the router and one to its clients."""
        upstream = await link.add(f"{name} region", "tcp", router, seed=21)
        state_dir = self._folder / name
        values = {
            "name": name,
            "routers": (f"{HOST}:{upstream}",),
            "state_dir": str(state_dir),
            "isolate_chats": True,
            **(more or {}),
        }
        service = await self.service(name, "edge", values, cores)
        port = await link.add(f"{name} client", "udp", (HOST, service.ports.main), seed=31)
        drafter = await settled(HOST, service.ports.admin)
        return Edge(service.pid, port, state_dir / "tls" / "cert.pem", drafter)

    async def verifier(
        self, engine: RegionEngine, cores: Collection[int]
    ) -> tuple[asyncio.subprocess.Process, int]:
        """The waiting verifier and its port."""
        command = (sys.executable, "-m", "bench.wan.waiting")
        flags = (
            *("--engine", engine.name, "--threads", str(engine.threads)),
            *("--max-fixed-rows", str(engine.max_fixed_rows)),
        )
        process = await self._stack.enter_async_context(child(*command, *flags, cores=cores))
        return process, (await read_json(process))["port"]


def _replica(engine: RegionEngine) -> dict[str, object]:
    return {
        "replica": "replica",
        "region": "region",
        "engine": engine.name,
        "threads": engine.threads,
        "max_sessions": 32,
        "kv_bytes": 1 << 30,
        # Nothing compiles beside what is measured.
        "max_fixed_rows": engine.max_fixed_rows,
        "prepare_first": True,
    }


def _router(replica_port: int) -> dict[str, object]:
    address = f"{HOST}:{replica_port}"
    replica = {"name": "replica", "region": "region", "address": address}
    return {"region": "region", "replicas": (replica,)}


async def _until_ready(name: str, process: asyncio.subprocess.Process, ready: Path) -> Ports:
    async with asyncio.timeout(_START_LIMIT_S):
        while process.returncode is None:
            if (ports := read_ports(ready)) is not None:
                return ports
            await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"{name} ended with exit status {process.returncode}")
