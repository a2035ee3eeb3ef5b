"""The mesh whose processes fail."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from bench.contenders.processes import child
from bench.faults.processes import HOST, Service
from bench.wan.relay.control import RelayControl
from outrider.rpc import make_channel
from outrider.v1 import router_pb2, router_pb2_grpc

NEAR, FAR = "near", "far"
_QUARANTINES = re.compile(r"outrider_(router_replica|edge_router)_quarantines\{")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a mesh is made of."""

    engine: str
    num_near: int
    num_far: int
    num_routers: int = 3
    num_edges: int = 3
    num_tokenizers: int = 0
    """For thin clients."""
    max_sessions: int = 0
    """Of each replica at once; 0: the default."""
    forgives: bool = True
    """Nobody is put away: where every process is killed again and again, that is not its fault."""


class Cut:
    """The only way to a region, which can be cut: the relay is stopped, and nobody hears of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.control = RelayControl(process)

    def cut(self) -> None:
        """Nothing gets through, nothing is refused."""
        self._process.send_signal(signal.SIGSTOP)

    def heal(self) -> None:
        """It goes on, with what was under way."""
        self._process.send_signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All processes, and the way to the far region."""

    replicas: tuple[Service, ...]
    routers: tuple[Service, ...]
    edges: tuple[Service, ...]
    tokenizers: tuple[Service, ...]
    way: Cut
    ca: Path

    async def num_sessions(self, down: Collection[Service] = ()) -> dict[str, int]:
        """Sessions by replica, as the routers that are not `down` see them."""
        counts = {replica.name: 0 for replica in self.replicas}
        for router in (router for router in self.routers if router not in down):
            async with make_channel(router.address) as channel:
                stub: router_pb2_grpc.RouterServiceAsyncStub
                stub = router_pb2_grpc.RouterServiceStub(channel)
                listed = await stub.ListReplicas(router_pb2.ListReplicasRequest(), timeout=5)
                for row in listed.replicas:
                    # Reports count the sessions of all routers.
                    counts[row.name] = max(counts[row.name], row.sessions)
        return counts

    async def num_put_away(self) -> int:
        """How often a replica or a router was put into quarantine by those who judge it."""
        pages = await asyncio.gather(*(it.metrics() for it in (*self.routers, *self.edges)))
        samples = (line for page in pages for line in page.splitlines())
        counts = [line.rsplit(" ", 1)[1] for line in samples if _QUARANTINES.match(line)]
        return sum(int(float(count)) for count in counts)


@contextlib.asynccontextmanager
async def running(shape: Shape) -> AsyncIterator[Fleet]:
    """Start everything, and stop it whatever happens."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-faults-")))
        relay = child(sys.executable, "-m", "bench.wan.relay")
        way = Cut(await stack.enter_async_context(relay))
        stack.callback(way.heal)
        replicas = _replicas(shape, folder)
        ports = [await _reach(way, replica, shape) for replica in replicas]
        tokenizers = [
            Service(f"tokenizer-{number}", "tokenizer", {}, folder)
            for number in range(shape.num_tokenizers)
        ]
        routers = [
            _router(number, replicas, ports, tokenizers, shape, folder)
            for number in range(shape.num_routers)
        ]
        edges = [_edge(number, routers, shape, folder) for number in range(shape.num_edges)]
        # The first edge makes the certificate that the others find.
        for group in ([*replicas, *tokenizers], routers, *([edge] for edge in edges)):
            for service in group:
                stack.callback(service.end)
                service.spawn()
            await asyncio.gather(*(service.ready() for service in group))
        ca = folder / "tls" / "cert.pem"
        yield Fleet(tuple(replicas), tuple(routers), tuple(edges), tuple(tokenizers), way, ca)


def is_far(replica: Service) -> bool:
    """Whether it is in the region that can be cut off."""
    return replica.name.startswith(FAR)


def _replicas(shape: Shape, folder: Path) -> list[Service]:
    names = [f"{NEAR}-{n}" for n in range(shape.num_near)]
    names += [f"{FAR}-{n}" for n in range(shape.num_far)]
    values = {"engine": shape.engine, "threads": 1, "kv_bytes": 1 << 28, "max_fixed_rows": 4}
    if shape.max_sessions:
        values["max_sessions"] = shape.max_sessions
    return [
        Service(name, "inference", {"replica": name, "region": name[:-2], **values}, folder)
        for name in names
    ]


async def _reach(way: Cut, replica: Service, shape: Shape) -> int:
    """The port that leads to it, through the relay if it is far."""
    if not is_far(replica):
        return replica.port
    return await way.control.add(replica.name, "tcp", (HOST, replica.port), seed=1)


def _router(
    number: int,
    replicas: list[Service],
    ports: list[int],
    tokenizers: list[Service],
    shape: Shape,
    folder: Path,
) -> Service:
    table = tuple(
        {"name": replica.name, "region": replica.name[:-2], "address": f"{HOST}:{port}"}
        for replica, port in zip(replicas, ports, strict=True)
    )
    values: dict[str, object] = {
        "region": NEAR,
        "replicas": table,
        "tokenizers": tuple(tokenizer.address for tokenizer in tokenizers),
        "max_backoff_s": 0.5,
        "placement": {"near_ms": 50.0},
    }
    if shape.forgives:
        values["quarantine"] = {"max_failures": 1_000_000}
    return Service(f"router-{number}", "router", values, folder)


def _edge(number: int, routers: list[Service], shape: Shape, folder: Path) -> Service:
    values = {
        "name": f"edge-{number}",
        "region": NEAR,
        # Half of the edges prefer each router, so that there are sessions on both.
        "routers": tuple(r.address for r in (*routers[number:], *routers[:number])),
        # One certificate for all.
        "state_dir": str(folder),
        "draft_model": "none",
    }
    return Service(f"edge-{number}", "edge", values, folder)
