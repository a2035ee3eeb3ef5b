"""Runs the processes of a mesh: starts them in order, watches them, stops every one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.cli.local import mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec
from outrider.cli.local.state import RunningMesh, publish, withdraw
from outrider.errors import UnavailableError
from outrider.process import Ports, read_ports

START_LIMIT_S = 300.0
STOP_LIMIT_S = 15.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Child:
    """A started process."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    ports: Ports
    log: Path


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, however it dies (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """One mesh. `start`, then `wait`, then `stop`; `stop` is safe at any time."""

    def __init__(self, options: MeshOptions, state_dir: Path, say: Callable[[str], None]) -> None:
        self.options = options
        self.state_dir = state_dir
        self.children: list[Child] = []
        self._starting: list[asyncio.subprocess.Process] = []
        self._say = say

    async def start(self) -> None:
        """Start everything in order of dependence. Raises UnavailableError with the log's tail."""
        for folder in ("config", "logs", "run"):
            (self.state_dir / folder).mkdir(parents=True, exist_ok=True)
        first = [*mesh.replicas(self.options), mesh.tokenizer(self.options)]
        started = await self._start_all(first)
        ports = {child.spec.name: child.ports.main for child in started}
        (router,) = await self._start_all([mesh.router(self.options, ports, ports["tokenizer"])])
        await self._start_all([mesh.edge(self.options, router.ports.main, self.state_dir)])
        self._write_state()

    async def _start_all(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        children = await asyncio.gather(*(self._start(spec) for spec in specs))
        return list(children)

    async def _start(self, spec: ProcessSpec) -> Child:
        config = self.state_dir / "config" / f"{spec.name}.toml"
        config.write_text(mesh.to_toml(spec), encoding="utf-8")
        ready_file = self.state_dir / "run" / f"{spec.name}.json"
        ready_file.unlink(missing_ok=True)
        log = self.state_dir / "logs" / f"{spec.name}.log"
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "outrider.cli.main", "serve", spec.role),
                *("--config", str(config), "--ready-file", str(ready_file)),
                *(f"--set={setting}" for setting in self.options.settings_of(spec.role)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops in order
                preexec_fn=die_with_parent,
            )
        self._starting.append(process)
        ports = await self._until_ready(spec, process, ready_file, log)
        child = Child(spec, process, ports, log)
        self.children.append(child)
        self._say(f"{spec.name:<12} {spec.role:<10} port {ports.main:<6} admin {ports.admin}")
        return child

    async def _until_ready(
        self, spec: ProcessSpec, process: asyncio.subprocess.Process, ready_file: Path, log: Path
    ) -> Ports:
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while process.returncode is None:
                    ports = read_ports(ready_file)
                    if ports is not None:
                        host, admin_port = self.options.host, ports.admin
                        if await asyncio.to_thread(_is_ready, host, admin_port):
                            return ports
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise UnavailableError(
                f"{spec.name} was not ready after {START_LIMIT_S:.0f} s; see {log}"
            ) from None
        raise UnavailableError(
            f"{spec.name} ended with status {process.returncode} before it was ready:\n{tail(log)}"
        )

    def _write_state(self) -> None:
        services = [
            {
                "name": child.spec.name,
                "role": child.spec.role,
                "pid": child.process.pid,
                "port": child.ports.main,
                "admin_port": child.ports.admin,
                "log": str(child.log),
            }
            for child in self.children
        ]
        publish(self.state_dir, RunningMesh(os.getpid(), self.options.host, services))

    async def wait(self, stop: asyncio.Event) -> str | None:
        """Until `stop` is set (None) or a process dies (a sentence that says which)."""
        watches = {asyncio.create_task(c.process.wait()): c for c in self.children}
        asked = asyncio.create_task(stop.wait())
        done, pending = await asyncio.wait({*watches, asked}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        dead = [watches[task] for task in done if task in watches]
        if not dead:
            return None
        child = dead[0]
        return f"{child.spec.name} ended with status {child.process.returncode}:\n{tail(child.log)}"

    def kill(self) -> None:
        """End every process now; what is under way is lost."""
        for process in self._starting:
            if process.returncode is None:
                process.kill()

    async def stop(self) -> None:
        """Stop the edge first and the replicas last; kill what does not drain in time."""
        withdraw(self.state_dir)
        for role in mesh.ROLES:
            group = [c.process for c in self.children if c.spec.role == role]
            await asyncio.gather(*(_end(process) for process in group))
        await asyncio.gather(*(_end(process) for process in self._starting))
        self.children.clear()
        self._starting.clear()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _is_ready(host: str, admin_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{host}:{admin_port}/ready", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def tail(log: Path, num_lines: int = 20) -> str:
    """The last lines of a log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-num_lines:])
