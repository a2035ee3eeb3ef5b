"""The mesh under test: processes that can be killed and started again on the same ports, and a
relay as the only link to the far region."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from bench.harness.processes import child
from bench.harness.run_folder import RunFolder, run_folder
from bench.relay.control import RelayControl
from outrider import children
from outrider.children import ChildProcess, PipedProcess
from outrider.cli.local.mesh import ProcessSpec, to_toml
from outrider.cli.local.supervisor import tail
from outrider.engines.huge_pages import with_huge_pages
from outrider.process import read_ports
from outrider.rpc import make_channel
from outrider.testing import free_tcp_port, free_udp_port
from outrider.v1 import router_pb2, router_pb2_grpc

HOST = "127.0.0.1"
NEAR = "near"
FAR = "far"
"""Regions; the far one is reached through a relay, so that it can be cut off."""
_START_LIMIT_S = 240.0
_POLL_S = 0.02
_QUARANTINES = re.compile(r"outrider_(router_replica|edge_router)_quarantines\{")


class Service:
    """One `outrider serve` process, always on the same ports."""

    def __init__(
        self,
        name: str,
        role: str,
        values: Mapping[str, object],
        folder: Path,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` has variables of its process besides those of this one."""
        self.name = name
        self.role = role
        self.port = port or (free_udp_port() if role == "edge" else free_tcp_port())
        given = {"host": HOST, "port": self.port, "log_level": "warning"}
        self._config, self._ready = (folder / f"{name}.{kind}" for kind in ("toml", "json"))
        self._log = folder / f"{name}.log"
        spec = ProcessSpec(name, role, {**given, "drain_s": 0.0, **values})
        self._config.write_text(to_toml(spec), encoding="utf-8")
        environ = {**os.environ, **(environment or {})}
        # As `outrider up` and the image start it: its death is noticed sooner, too.
        self._environment = with_huge_pages(environ) if role == "inference" else environ
        self._process: ChildProcess | None = None
        self.num_kills = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.returncode is None

    def spawn(self) -> None:
        """Start it."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as sink:
            command = ("-m", "outrider.cli.main", "serve", self.role)
            where = ("--config", str(self._config), "--ready-file", str(self._ready))
            self._process = children.start(
                (sys.executable, *command, *where),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=self._environment,
                ends_with_parent=signal.SIGTERM,
            )

    async def ready(self) -> None:
        """Return once it serves. Raises RuntimeError, with its log's end, if it does not."""
        limit = time.monotonic() + _START_LIMIT_S
        while read_ports(self._ready) is None:
            assert self._process is not None
            if (status := self._process.returncode) is not None:
                why = f"ended with status {status} while it started"
            elif time.monotonic() > limit:
                why = f"did not start in {_START_LIMIT_S:.0f} s"
            else:
                await asyncio.sleep(_POLL_S)
                continue
            raise RuntimeError(f"{self.name} {why}; {self._log} ends with:\n{tail(self._log)}")

    async def metrics(self) -> str:
        """Its page of metrics."""
        ports = read_ports(self._ready)
        assert ports is not None
        url = f"http://{HOST}:{ports.admin}/metrics"
        return await asyncio.to_thread(lambda: urlopen(url, timeout=10).read().decode())

    def kill(self) -> None:
        """Send SIGKILL: the process gets no chance to say goodbye."""
        assert self._process is not None
        self._process.kill()
        self._process.join()
        self.num_kills += 1

    def signal(self, number: signal.Signals) -> None:
        """Send any other signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        """Stop it for good, whatever its state."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.join()


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
    fake_call_ms: float = 0.0
    """How long a call of the fake engine waits: chats that are there to be interrupted need not
    keep all cores busy."""


class RegionLink:
    """The link to the far region. Cutting it stops the relay's process, so that packets are neither
    delivered nor refused."""

    def __init__(self, process: PipedProcess) -> None:
        self._process = process
        self.control = RelayControl(process)

    def cut(self) -> None:
        """Deliver nothing, refuse nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def heal(self) -> None:
        """Deliver again, first what was in flight."""
        self._process.send_signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All processes, and the link to the far region."""

    replicas: tuple[Service, ...]
    routers: tuple[Service, ...]
    edges: tuple[Service, ...]
    tokenizers: tuple[Service, ...]
    far_link: RegionLink
    ca: Path
    files: RunFolder
    """Configurations and logs of all processes."""

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
    async with contextlib.AsyncExitStack() as stack:
        files = stack.enter_context(run_folder("faults"))
        folder = files.path
        relay = child(sys.executable, "-m", "bench.relay")
        far_link = RegionLink(await stack.enter_async_context(relay))
        stack.callback(far_link.heal)
        replicas = _replicas(shape, folder)
        ports = [await _reach(far_link, replica, shape) for replica in replicas]
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
        yield Fleet(
            tuple(replicas), tuple(routers), tuple(edges), tuple(tokenizers), far_link, ca, files
        )


def is_far(replica: Service) -> bool:
    """Whether it is in the far region."""
    return replica.name.startswith(FAR)


def _replicas(shape: MeshShape, folder: Path) -> list[Service]:
    names = [f"{NEAR}-{n}" for n in range(shape.num_near)]
    names += [f"{FAR}-{n}" for n in range(shape.num_far)]
    values = {"engine": shape.engine, "threads": 1, "kv_bytes": 1 << 28, "max_fixed_rows": 4}
    if shape.fake_call_ms:
        values["fake_call_ms"] = shape.fake_call_ms
    if shape.max_sessions:
        values["scheduler"] = {"max_sessions": shape.max_sessions}
    return [
        Service(name, "inference", {"replica": name, "region": name[:-2], **values}, folder)
        for name in names
    ]


async def _reach(far_link: RegionLink, replica: Service, shape: MeshShape) -> int:
    """The port that leads to it, through the relay if it is far."""
    if not is_far(replica):
        return replica.port
    return await far_link.control.add(replica.name, "tcp", (HOST, replica.port), seed=1)


def _router(
    number: int,
    replicas: list[Service],
    ports: list[int],
    tokenizers: list[Service],
    shape: MeshShape,
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
    if not shape.quarantine:
        values["quarantine"] = {"max_failures": 1_000_000}
    return Service(f"router-{number}", "router", values, folder)


def _edge(number: int, routers: list[Service], shape: MeshShape, folder: Path) -> Service:
    values: dict[str, object] = {
        "name": f"edge-{number}",
        "region": NEAR,
        # Half of the edges prefer each router, so that there are sessions on both.
        "routers": tuple(r.address for r in (*routers[number:], *routers[:number])),
        # One certificate for all.
        "state_dir": str(folder),
        "anonymous": True,
        "drafter.model": "none",
    }
    return Service(f"edge-{number}", "edge", values, folder)
