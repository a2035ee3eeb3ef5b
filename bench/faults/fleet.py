"""The mesh under test: routers, edges and tokenizers in one region, replicas in two, and a relay as
the only link to the far one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from bench.harness.mesh import Mesh, Service, mesh, replica_rows
from bench.harness.run_folder import RunFolder
from bench.relay.control import RelayControl
from outrider.rpc import make_channel
from outrider.v1 import router_pb2, router_pb2_grpc

NEAR = "near"
FAR = "far"
"""Regions; the far one is reached through a relay, so that it can be cut off."""
_QUARANTINES = re.compile(r"outrider_(router_replica|edge_router)_quarantines\{")


@dataclass(frozen=True, slots=True)
class MeshShape:
    """How many processes of each kind a mesh has."""

    engine: str
    num_near: int
    num_far: int
    num_routers: int = 3
    num_edges: int = 3
    num_tokenizers: int = 0
    """For clients that send text without tokenizing it."""
    max_sessions: int = 0
    """Of each replica at once; 0: the default."""
    quarantine: bool = False
    """Whether routers quarantine replicas that fail again and again. Off where this bench kills
    every process many times over."""
    kv_ahead: bool = False
    """Whether KV is copied to the replica that would take over (`[router.kv_ahead]`)."""
    fake_call_ms: float = 0.0
    """How long a call of the fake engine waits: chats that are there to be interrupted need not
    keep all cores busy."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All processes, and the link to the far region."""

    replicas: tuple[Service, ...]
    routers: tuple[Service, ...]
    edges: tuple[Service, ...]
    tokenizers: tuple[Service, ...]
    far_link: RelayControl
    ca: Path
    files: RunFolder
    """Configurations and logs of all processes."""

    @property
    def urls(self) -> list[str]:
        """Of the edges."""
        return [f"quic://{edge.address}" for edge in self.edges]

    @property
    def key(self) -> str:
        """The edges ask for none."""
        return ""

    @property
    def has_tokenizers(self) -> bool:
        """Whether clients may send text without tokenizing it."""
        return bool(self.tokenizers)

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

    async def num_quarantined(self) -> int:
        """How often routers quarantined a replica, or edges a router."""
        pages = await asyncio.gather(*(it.metrics() for it in (*self.routers, *self.edges)))
        samples = (line for page in pages for line in page.splitlines())
        counts = [line.rsplit(" ", 1)[1] for line in samples if _QUARANTINES.match(line)]
        return sum(int(float(count)) for count in counts)


@contextlib.asynccontextmanager
async def running(shape: MeshShape) -> AsyncIterator[Fleet]:
    """Start every process; all are stopped when the context ends."""
    async with mesh("faults") as made:
        replicas = _replicas(shape, made)
        through = {it.name: await made.relayed(it.name, it) for it in replicas if is_far(it)}
        tokenizers = [
            made.service(f"tokenizer-{number}", "tokenizer", {})
            for number in range(shape.num_tokenizers)
        ]
        values: dict[str, object] = {
            "replicas": replica_rows(replicas, through),
            "tokenizers": tuple(tokenizer.address for tokenizer in tokenizers),
            "max_backoff_s": 0.5,
            "placement": {"near_ms": 50.0},
            "kv_ahead": {"enabled": shape.kv_ahead},
        }
        if not shape.quarantine:
            values["quarantine"] = {"max_failures": 1_000_000}
        routers = [
            made.service(f"router-{number}", "router", values, region=NEAR)
            for number in range(shape.num_routers)
        ]
        edges = [_edge(number, routers, made) for number in range(shape.num_edges)]
        # The first edge makes the certificate that the others find.
        for group in ([*replicas, *tokenizers], routers, *([edge] for edge in edges)):
            await made.start(*group)
        yield Fleet(
            *(tuple(replicas), tuple(routers), tuple(edges), tuple(tokenizers)),
            far_link=await made.relay(),
            ca=made.ca,
            files=made.files,
        )


def is_far(replica: Service) -> bool:
    """Whether it is in the far region."""
    return replica.name.startswith(FAR)


def _replicas(shape: MeshShape, made: Mesh) -> list[Service]:
    values: dict[str, object] = {
        "engine": shape.engine,
        "threads": 1,
        "kv_bytes": 1 << 28,
        "max_fixed_rows": 4,
    }
    if shape.fake_call_ms:
        values["fake_call_ms"] = shape.fake_call_ms
    if shape.max_sessions:
        values["scheduler"] = {"max_sessions": shape.max_sessions}
    return [
        made.service(name, "inference", {"replica": name, **values}, region=region)
        for region, count in ((NEAR, shape.num_near), (FAR, shape.num_far))
        for name in (f"{region}-{number}" for number in range(count))
    ]


def _edge(number: int, routers: list[Service], made: Mesh) -> Service:
    name = f"edge-{number}"
    values = {
        "name": name,
        # Half of the edges prefer each router, so that there are sessions on both.
        "routers": tuple(r.address for r in (*routers[number:], *routers[:number])),
        # One certificate for all.
        "state_dir": str(made.folder),
        "anonymous": True,
        "drafter.model": "none",
    }
    return made.service(name, "edge", values, region=NEAR)
