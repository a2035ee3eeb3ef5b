"""Services of a real mesh, each a process of its own that is started as `outrider serve` starts it.

`outrider up` (bench.harness.local_mesh) starts whole meshes as users do. What it cannot do is here:
replicas alone, a service that is killed and comes back at its ports, one that runs on some cores
only or has an engine of a benchmark's own, and a relay as the only link between two of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.harness.run_folder import RunFolder, run_folder
from bench.relay.control import RelayControl, relay
from outrider import children
from outrider.children import ChildProcess
from outrider.cli.local.certificates import Certificates
from outrider.cli.local.mesh import ProcessSpec, completed, to_toml
from outrider.cli.local.supervisor import tail
from outrider.engines.huge_pages import with_huge_pages
from outrider.process import Ports, read_ports
from outrider.rpc import make_channel
from outrider.testing import free_tcp_port, free_udp_port
from outrider.tls import Role
from outrider.tls.config import TlsConfig
from outrider.v1 import router_pb2, router_pb2_grpc

HOST: Final = "127.0.0.1"
_START_LIMIT_S: Final = 900.0
"""Seconds in which a service has to start serving: the conversion of a large model takes
minutes."""
_STOP_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.02


class Service:
    """One service, always at the same port; it is not started yet."""

    def __init__(
        self,
        name: str,
        role: str,
        values: Mapping[str, object],
        folder: Path,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        *,
        cores: Collection[int] = (),
        models: Mapping[str, Mapping[str, object]] | None = None,
        settings: Sequence[str] = (),
        program: Sequence[str] = (),
        tls: TlsConfig | None = None,
        host: str = HOST,
        within: Sequence[str] = (),
    ) -> None:
        """It listens on `host`; `within` stands before its command, to run it on another host
        (bench.regions.hosts). `values` are the keys of its section, `settings` KEY=VALUE that count
        before them, `models` the definitions that it knows. `environment` has variables of its
        process besides those of this one. `program` is run in place of `outrider serve ROLE` and
        has to understand
        `--config` and `--ready-file`. It runs on these cores; without any, on this process's."""
        self.name = name
        self.role = role
        self.host = host
        self.port = port or (free_udp_port() if role == Role.EDGE else free_tcp_port())
        given = {"host": host, "port": self.port, "log_level": "warning", "drain_s": 0.0}
        admin = {"host": host, "port": 0}
        self.values: Mapping[str, object] = {**given, "admin": admin, **values}
        self.log = folder / f"{name}.log"
        config, self._ready = (folder / f"{name}.{kind}" for kind in ("toml", "json"))
        spec = completed(ProcessSpec(name, role, self.values), {}, tls or TlsConfig())
        config.write_text(to_toml(spec, models), encoding="utf-8")
        words = program or (sys.executable, "-m", "outrider.cli.main", "serve", role)
        files = ("--config", str(config), "--ready-file", str(self._ready))
        self._command = (*within, *words, *files, *(f"--set={setting}" for setting in settings))
        environ = {**os.environ, **(environment or {})}
        # As `outrider up` and the image start it: its death is noticed sooner, too.
        self._environment = with_huge_pages(environ) if role == Role.INFERENCE else environ
        self._cores = cores
        self._process: ChildProcess | None = None
        self._spawned_at = 0.0
        self.start_s = 0.0
        """Seconds from its last start until it served."""
        self.num_kills = 0

    @property
    def address(self) -> str:
        """HOST:PORT on which it listens."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Id of its process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def status(self) -> int | None:
        """Exit status of its process, or minus the number of the signal that killed it; None while
        it runs."""
        assert self._process is not None
        return self._process.returncode

    @property
    def ports(self) -> Ports:
        """Those that it bound; it is ready."""
        ports = read_ports(self._ready)
        assert ports is not None
        return ports

    def spawn(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it; `environment` has further variables, for this run of it alone."""
        self._ready.unlink(missing_ok=True)
        self._spawned_at = time.monotonic()
        with self.log.open("ab") as sink:
            self._process = children.start(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**self._environment, **(environment or {})},
                ends_with_parent=signal.SIGTERM,
                cores=self._cores,
            )

    async def ready(self) -> None:
        """Return once it serves. Raises RuntimeError, with its log's end, if it does not come to
        that."""
        while read_ports(self._ready) is None:
            assert self._process is not None
            if (status := self._process.returncode) is not None:
                why = f"ended with status {status} while it started"
            elif time.monotonic() > self._spawned_at + _START_LIMIT_S:
                why = f"did not start in {_START_LIMIT_S:.0f} s"
            else:
                await asyncio.sleep(_POLL_S)
                continue
            raise RuntimeError(f"{self.name} {why}; {self.log} ends with:\n{tail(self.log)}")
        self.start_s = time.monotonic() - self._spawned_at

    async def metrics(self) -> str:
        """Its page of metrics."""
        url = f"http://{self.host}:{self.ports.admin}/metrics"
        return await asyncio.to_thread(lambda: urlopen(url, timeout=10).read().decode())

    async def samples(self) -> list[Sample]:
        """Every sample on it."""
        families = text_string_to_metric_families(await self.metrics())
        return [sample for family in families for sample in family.samples]

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

    async def stop(self) -> None:
        """SIGTERM: it drains, for `drain_s` at most. Returns when it has ended. Raises RuntimeError
        with its log's end if it does not end, or fails."""
        assert self._process is not None
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                status = await self._process.wait()
        except TimeoutError:
            raise RuntimeError(
                f"{self.name} did not stop; {self.log} ends with:\n{tail(self.log)}"
            ) from None
        if status:
            raise RuntimeError(
                f"{self.name} stopped with status {status}; {self.log} ends with:\n{tail(self.log)}"
            )

    def end(self) -> None:
        """Stop it for good, whatever its state."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.join()


class Mesh:
    """Services that end with the context of `mesh`; their files are in one folder."""

    def __init__(
        self,
        files: RunFolder,
        stack: contextlib.AsyncExitStack,
        relay_cores: Collection[int],
        *,
        is_secure: bool,
    ) -> None:
        self.files = files
        self.services: list[Service] = []
        self._stack = stack
        self._relay_cores = relay_cores
        self._relay: RelayControl | None = None
        self._certificates = Certificates(files.path) if is_secure else None

    @property
    def folder(self) -> Path:
        """Folder of configurations, logs and certificates."""
        return self.files.path

    @property
    def ca(self) -> Path:
        """The certificate of the edges whose `state_dir` is this folder."""
        return self.folder / "tls" / "cert.pem"

    async def relay(self) -> RelayControl:
        """The relay between its regions; started when it is first asked for."""
        if self._relay is None:
            self._relay = await self._stack.enter_async_context(relay(self._relay_cores))
        return self._relay

    async def relayed(self, name: str, service: Service) -> int:
        """The port of a new link to a service, called `name` in the relay."""
        kind: Literal["udp", "tcp"] = "udp" if service.role == Role.EDGE else "tcp"
        return await (await self.relay()).add(name, kind, (HOST, service.port))

    def service(
        self,
        name: str,
        role: str,
        values: Mapping[str, object],
        *,
        region: str = "",
        cores: Collection[int] = (),
        models: Mapping[str, Mapping[str, object]] | None = None,
        settings: Sequence[str] = (),
        program: Sequence[str] = (),
        host: str = HOST,
        within: Sequence[str] = (),
        port: int = 0,
    ) -> Service:
        """A further service, which is not started yet; see Service."""
        own = {"region": region, **values} if region else values
        tls = None
        if self._certificates is not None:
            tls = self._certificates.issue(Role(role), region, name=name)
        made = Service(
            *(name, role, own, self.folder, port),
            cores=cores,
            models=models,
            settings=settings,
            program=program,
            tls=tls,
            host=host,
            within=within,
        )
        self.services.append(made)
        self._stack.callback(made.end)
        return made

    async def start(self, *services: Service) -> None:
        """All of these at once; returns when they serve. Raises RuntimeError if one does not."""
        for service in services:
            service.spawn()
        await asyncio.gather(*(service.ready() for service in services))


@contextlib.asynccontextmanager
async def mesh(
    name: str, *, relay_cores: Collection[int] = (), is_secure: bool = False
) -> AsyncIterator[Mesh]:
    """One without services yet. All that are made end with the context, and their files go unless
    it failed. `is_secure`: services have certificates of one CA."""
    async with contextlib.AsyncExitStack() as stack:
        files = stack.enter_context(run_folder(name))
        yield Mesh(files, stack, relay_cores, is_secure=is_secure)


def replica_rows(
    replicas: Iterable[Service], through: Mapping[str, int] | None = None
) -> tuple[dict[str, object], ...]:
    """Rows for a router's `replicas`. `through`: ports of links to some of the replicas, by
    name."""
    ports = through or {}
    return tuple(
        {
            "name": str(it.values["replica"]),
            "region": str(it.values["region"]),
            "address": f"{HOST}:{ports.get(it.name, it.port)}",
        }
        for it in replicas
    )


async def until_placing(router: Service, num_replicas: int) -> None:
    """Return once a router without certificates can place sessions on `num_replicas` replicas.
    Raises TimeoutError."""
    async with make_channel(router.address) as channel, asyncio.timeout(120.0):
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        ready = 0
        while ready < num_replicas:
            await asyncio.sleep(_POLL_S)
            request = router_pb2.ListReplicasRequest()
            answer = await stub.ListReplicas(request, wait_for_ready=True)
            ready = sum(one.state == router_pb2.REPLICA_STATE_READY for one in answer.replicas)
