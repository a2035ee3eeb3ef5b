"""Runs the processes of a mesh: starts them side by side, again when they die, stops every one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final

from outrider import children
from outrider.children import ChildProcess
from outrider.cli.local import certificates, mesh, settings
from outrider.cli.local.admin_page import reaches_all_replicas
from outrider.cli.local.certificates import Certificates
from outrider.cli.local.link import DelayedLink
from outrider.cli.local.log_lines import readable
from outrider.cli.local.mesh import MeshOptions, ProcessSpec
from outrider.cli.local.redis_server import LocalRedis, find_binary
from outrider.cli.local.start_progress import StartProgress
from outrider.cli.local.state import RunningMesh, command_for, publish, withdraw, write_private
from outrider.engines.huge_pages import with_huge_pages
from outrider.errors import UnavailableError
from outrider.free_ports import free_tcp_port, free_udp_port
from outrider.models.catalog import MODELS_VARIABLE
from outrider.process import PARENT_ENDED, PARENT_VARIABLE, Ports, read_ports
from outrider.tls.config import TlsConfig
from outrider.tls.identity import Role
from outrider.workers.ports import reserve_row
from outrider.workers.restarts import RestartPolicy, Restarts

START_LIMIT_S = 300.0
"""Longest time in which a process that starts reports nothing new."""
STOP_LIMIT_S = 15.0
FAILED: Final = "outrider: "
"""Prefix of the line in which a command gives the reason of its failure (outrider/cli/main.py)."""
_POLL_S = 0.05
_ASK_S: Final = 1.0
"""Between two questions to a process that starts what it does now."""
_ANSWER_S: Final = 5.0
"""Longest wait for an answer of a process that starts."""
_END_OF: Final = "; the end of "
"""Stands in an error between why a process failed and its log."""
_CONNECTED_S: Final = 5.0
"""Longest wait until routers reach replicas that are all ready."""
_RECORD_AGAIN_S: Final = 30.0
"""Before what could not be recorded is tried again."""


@dataclass(slots=True)
class LastEnd:
    """How a process last ended that was to run on. Times in seconds since 1970."""

    why: str
    at_s: float
    back_at_s: float | None = None
    """When another was ready in its place; None until then."""


@dataclass(slots=True, eq=False)
class Child:
    """A process of the mesh."""

    spec: ProcessSpec
    process: ChildProcess
    ports: Ports
    """Ports it was started with first; it keeps them, since other processes have them."""
    log: Path
    restarts: Restarts
    is_up: bool = True
    last_end: LastEnd | None = None
    keeper: asyncio.Task[None] | None = None
    """Starts it again whenever it dies."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A process that is to be started for the first time."""

    spec: ProcessSpec
    """As the mesh has it."""
    completed: ProcessSpec
    """With all settings of its file, and its ports."""

    @property
    def port(self) -> int:
        """Its first main port."""
        return _number(self.completed.values["port"])

    @property
    def num_ports(self) -> int:
        """Number of its main ports: one for each process of a router."""
        return _number(self.completed.values.get("processes", 1))


class Supervisor:
    """One mesh. `start`, then `wait`, then `stop`; `stop` is safe at any time."""

    def __init__(
        self,
        options: MeshOptions,
        state_dir: Path,
        say: Callable[[str], None],
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` prints a line; `clock` gives seconds."""
        self._clock = clock
        self._policy = policy or RestartPolicy()
        self._options = options
        self.state_dir = state_dir
        self.children: list[Child] = []
        self._starting: list[ChildProcess] = []
        self._say = say
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if a process cannot be kept up by a defect here."""
        self._certificates: Certificates | None = None
        self._is_up = False
        self._progress = StartProgress(mesh.phases(options))
        self._record_again: asyncio.TimerHandle | None = None
        self._links: list[DelayedLink] = []
        self.redis: LocalRedis | None = None
        """The prefix store, where one was asked for."""
        self._salt_key = secrets.token_urlsafe(32)
        """Kept over restarts, so that an edge finds its clients' trust groups again."""

    async def start(self, show: Callable[[str], None] = lambda line: None) -> None:
        """Start everything side by side; `show` gets a line every second that says how
        far this is. Raises UnavailableError with the end of the log of the process that failed."""
        showing = asyncio.create_task(self._show_progress(show))
        try:
            await self._start_phases()
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def _show_progress(self, show: Callable[[str], None]) -> None:
        while True:
            show(self._progress.line(self._clock()))
            await asyncio.sleep(_ASK_S)

    async def _start_phases(self) -> None:
        for folder in ("config", "logs", "run"):
            (self.state_dir / folder).mkdir(parents=True, exist_ok=True)
        if self._options.plaintext:
            certificates.forget(self.state_dir)
        else:
            self._certificates = Certificates(self.state_dir)
        options = self._options
        if options.prefix_store:
            await self._start_redis()
        replicas = mesh.replicas(options)
        behind = [self._plan(spec) for spec in (*replicas, mesh.tokenizer(options))]
        ports = {plan.spec.name: plan.port for plan in behind}
        router_specs = mesh.routers(options, replicas, ports, ports["tokenizer"])
        routers = [self._plan(spec) for spec in router_specs]
        router_ports = [await self._far_port(plan) for plan in routers]
        first, *others = mesh.edges(options, router_ports, self.state_dir)
        started = await self._start_all([behind, routers, [self._plan(first)]])
        await self._start_all([[self._plan(spec) for spec in others]])
        await self._until_connected([it for it in started if it.spec.role == Role.ROUTER])
        self._is_up = True
        self._publish()

    async def _start_redis(self) -> None:
        log = self.state_dir / "logs" / "prefix-store.log"
        self.redis = LocalRedis(find_binary(), self._options.host, log)
        await self.redis.start()
        self._say(f"{'prefix-store':<32} {'redis':<10} port {self.redis.port}")

    async def _far_port(self, router: _Plan) -> int:
        """The port at which edges reach a router's first port; its other ports follow. If a
        distance is configured, these are ports of links that delay."""
        if not self._options.rtt_ms:
            return router.port
        row = reserve_row(self._options.host, 0, router.num_ports)
        for number, reserved in enumerate(row):
            link = DelayedLink(self._options.host, router.port + number, self._options.rtt_ms / 2e3)
            self._links.append(link)
            await link.start(reserved)
        return int(row[0].getsockname()[1])

    def _plan(self, spec: ProcessSpec) -> _Plan:
        """With ports chosen, so that others can be told of them before it runs."""
        completed = self._completed(spec, is_first=True)
        return _Plan(spec, replace(completed, values=_with_ports(completed, self._options.host)))

    async def _start_all(self, groups: Sequence[Sequence[_Plan]]) -> list[Child]:
        """Start processes side by side and wait until all are ready; from now on each is started
        again when it dies. Those of a group may take as long as all groups before it. Raises
        UnavailableError with the end of the log of one that did not start."""
        tasks = list[asyncio.Task[Child]]()
        for group in groups:
            needed = tuple(tasks)
            tasks += [asyncio.create_task(self._start(plan, needed)) for plan in group]
        try:
            started = list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        # Not in the order in which they became ready: `outrider status` lists them like this.
        self.children = [child for child in self.children if child not in started] + started
        return started

    async def _start(self, plan: _Plan, needed: Sequence[asyncio.Task[Child]]) -> Child:
        spec = plan.spec
        self._progress.enter(spec.name, "", self._clock())
        process, ports, log = await self._spawn(plan.completed, is_first=True, needed=needed)
        restarts = Restarts(self._policy, self._clock())
        child = Child(spec, process, ports, log, restarts)
        self._progress.ready(spec.name, self._clock())
        self.children.append(child)
        child.keeper = asyncio.create_task(self._keep(child))
        child.keeper.add_done_callback(self._keeper_ended)
        http = f"  http {ports.http}" if ports.http else ""
        self._say(f"{spec.name:<32} {spec.role:<10} port {ports.main:<6} admin {ports.admin}{http}")
        return child

    async def _until_connected(self, routers: Sequence[Child]) -> None:
        """Wait until routers reach every replica, so that the first chats find all of them; a
        replica that died meanwhile is not waited for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECTED_S):
                await asyncio.gather(*(self._connected(router.ports.admin) for router in routers))

    async def _connected(self, admin_port: int) -> None:
        while True:
            if await asyncio.to_thread(reaches_all_replicas, self._options.host, admin_port):
                return
            await asyncio.sleep(_POLL_S)

    async def _spawn(
        self,
        completed: ProcessSpec,
        *,
        is_first: bool,
        needed: Sequence[asyncio.Task[Child]] = (),
    ) -> tuple[ChildProcess, Ports, Path]:
        """Start a process and wait until it is ready, which it may not be before the `needed` ones
        are; returns it with its ports and its log, to which a restarted process appends."""
        name = completed.name
        config = self.state_dir / "config" / f"{name}.toml"
        write_private(config, mesh.to_toml(completed, self._options.definitions))
        ready_file = self.state_dir / "run" / f"{name}.json"
        ready_file.unlink(missing_ok=True)
        log = self.state_dir / "logs" / f"{name}.log"
        with log.open("wb" if is_first else "ab") as sink:
            process = children.start(
                children.python_module(
                    *("outrider.cli.main", "serve", completed.role),
                    *("--config", str(config), "--ready-file", str(ready_file)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=_environ(completed.role),
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops in order
                ends_with_parent=PARENT_ENDED,
            )
        self._starting = [it for it in self._starting if it.returncode is None]
        self._starting.append(process)
        try:
            ports = await self._until_ready(completed, process, ready_file, log, needed)
            return process, ports, log
        except BaseException:
            await _end(process)
            raise

    def _completed(self, spec: ProcessSpec, *, is_first: bool) -> ProcessSpec:
        """The process with all settings of its file; none of them are on the command line. A
        restarted process keeps its ports, whatever was configured at first."""
        role = Role(spec.role)
        region = str(spec.values.get("region", ""))
        tls = TlsConfig()
        if self._certificates is not None:
            tls = self._certificates.issue(role, region, name=spec.name)
        told = mesh.merged(
            self._options.tables.get(spec.role, {}),
            settings.typed(spec.role, self._options.settings_of(spec.role)),
        )
        if role is Role.EDGE:
            told.setdefault("cache_salt_key", self._salt_key)
        if role is Role.INFERENCE:
            told.setdefault("state_dir", str(self.state_dir / "inference"))
        if role is Role.INFERENCE and self.redis is not None:
            told = mesh.merged(told, {"prefix_store": self.redis.settings})
        completed = mesh.completed(spec, told, tls)
        if is_first:
            return completed
        ports = {key: spec.values[key] for key in ("port", "admin", "http") if key in spec.values}
        return replace(completed, values=mesh.merged(completed.values, ports))

    async def _until_ready(
        self,
        spec: ProcessSpec,
        process: ChildProcess,
        ready_file: Path,
        log: Path,
        needed: Sequence[asyncio.Task[Child]],
    ) -> Ports:
        """Wait; a process that reports nothing new for START_LIMIT_S has failed, unless it may be
        waiting for others. Raises UnavailableError."""
        host, said, since, ask_at = self._options.host, "", self._clock(), 0.0
        while process.returncode is None:
            now, ports = self._clock(), read_ports(ready_file)
            if ports is not None or now >= ask_at:
                port = ports.admin if ports is not None else _admin_port(spec)
                is_ready, reason = await asyncio.to_thread(_readiness, host, port)
                if is_ready and ports is not None:
                    return ports
                if reason not in ("", said):
                    said, since = reason, now
                    self._progress.enter(spec.name, said, now)
                ask_at = now + _ASK_S
            if not all(task.done() for task in needed):
                since = now
            if now - since > START_LIMIT_S:
                why = f"was not ready, and for {START_LIMIT_S:.0f} s it reported nothing new"
                raise self._failed(spec.name, f"{why} ({said or 'no answer'})", log)
            await asyncio.sleep(_POLL_S)
        why = f"ended with status {process.returncode} before it was ready"
        raise self._failed(spec.name, why, log)

    def _failed(self, name: str, why: str, log: Path) -> UnavailableError:
        logs = command_for("logs", self.state_dir)
        return UnavailableError(
            f"{name} {why}{_END_OF}{log}:\n{tail(log)}\n"
            f"(`{logs}` shows all logs, `outrider doctor` checks this machine)"
        )

    def _publish(self) -> None:
        """Record the mesh's services for other commands, once all of them are up."""
        if not self._is_up:
            return
        services = [
            {
                "name": child.spec.name,
                "role": child.spec.role,
                "pid": child.process.pid,
                "port": child.ports.main,
                "admin_port": child.ports.admin,
                "log": str(child.log),
                "is_up": child.is_up,
                "restarts": child.restarts.count,
                "last_end": None if child.last_end is None else asdict(child.last_end),
            }
            | ({"model": child.spec.values["model"]} if child.spec.role == "inference" else {})
            | ({"rtt_ms": self._options.rtt_ms} if child.spec.role == "router" else {})
            | ({"http_port": child.ports.http} if child.ports.http else {})
            for child in self.children
        ]
        models = [asdict(model) for model in self._options.models]
        publish(self.state_dir, RunningMesh(os.getpid(), self._options.host, services, models))

    async def wait(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; processes that die meanwhile are started again."""
        asked = asyncio.create_task(stop.wait())
        try:
            both: set[asyncio.Future[Any]] = {asked, self._broken}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        if self._broken.done():
            self._broken.result()

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if keeper.cancelled() or self._broken.done():
            return
        if error := keeper.exception():
            self._broken.set_exception(error)

    async def _keep(self, child: Child) -> None:
        """Restart a process whenever it dies, with its present configuration."""
        name = child.spec.name
        while True:
            status = await child.process.wait()
            why = ending(status)
            end = child.last_end = LastEnd(why, time.time())
            child.is_up, was_ready = False, True
            while not child.is_up:
                await self._pause(child, why, was_ready=was_ready)
                was_ready = False
                try:
                    child.process = await self._start_again(child)
                    child.is_up = True
                except UnavailableError as error:
                    why = error.message.partition(_END_OF)[0].removeprefix(f"{name} ")
                except OSError as error:
                    # No room on the disk, no more processes: the others need neither.
                    why = f"could not be started: {error}"
            end.back_at_s = time.time()
            self._record()
            self._tell(f"{name} is up again, on port {child.ports.main}")

    async def _start_again(self, child: Child) -> ChildProcess:
        ports: dict[str, object] = {
            "port": child.ports.main,
            "admin": {"port": child.ports.admin},
        }
        if child.ports.http:
            ports["http"] = {"port": child.ports.http}
        again = replace(child.spec, values=mesh.merged(child.spec.values, ports))
        process, _, _ = await self._spawn(self._completed(again, is_first=False), is_first=False)
        return process

    async def _pause(self, child: Child, why: str, *, was_ready: bool) -> None:
        """Wait before it is started again; `outrider status` shows it."""
        restarts = child.restarts
        name = child.spec.name
        pause_s = restarts.died(self._clock(), was_ready=was_ready)
        self._record()
        self._tell(f"{name} {why}; it is started again in {pause_s:g} s")
        if restarts.does_not_start:
            self._tell(
                f"{name} ended {restarts.num_early} times in a row soon after its start; the end "
                f"of {child.log}:\n{tail(child.log)}"
            )
        await asyncio.sleep(pause_s)
        restarts.started(self._clock())

    def _record(self) -> None:
        """Publish; where that fails, later: the mesh runs on with an older record."""
        if self._record_again is not None:
            self._record_again.cancel()
            self._record_again = None
        try:
            self._publish()
        except OSError as error:
            self._tell(f"the mesh's record could not be written: {error}")
            loop = asyncio.get_running_loop()
            self._record_again = loop.call_later(_RECORD_AGAIN_S, self._record)

    def _tell(self, text: str) -> None:
        """Print a line; ignore it if the output is closed."""
        with contextlib.suppress(OSError):
            self._say(text)

    def kill(self) -> None:
        """Kill every process now; running work is lost."""
        for process in self._starting:
            process.kill()

    async def stop(self) -> None:
        """Stop the edge first and the replicas last; kill what does not drain in time."""
        self._is_up = False
        withdraw(self.state_dir)
        for child in self.children:
            if child.keeper is not None:
                child.keeper.cancel()
        for role in mesh.ROLES:
            group = [c.process for c in self.children if c.spec.role == role]
            await asyncio.gather(*(_end(process) for process in group))
        await asyncio.gather(*(_end(process) for process in self._starting))
        if self.redis is not None:
            await self.redis.stop()
        for link in self._links:
            await link.stop()
        self._links.clear()
        self.children.clear()
        self._starting.clear()


def _with_ports(spec: ProcessSpec, host: str) -> mesh.Values:
    """The process's settings, with a free port for every 0: it gets the same ports when it is
    restarted."""
    chosen: dict[str, object] = {}
    if spec.values.get("port") == 0:
        free = free_udp_port if Role(spec.role) is Role.EDGE else free_tcp_port
        chosen["port"] = free(host)
    for listener in ("admin", "http"):
        table = spec.values.get(listener)
        if isinstance(table, Mapping) and table.get("port") == 0:
            chosen[listener] = {"port": free_tcp_port(str(table.get("host", host)))}
    return mesh.merged(spec.values, chosen)


def _number(setting: object) -> int:
    return int(str(setting))


def _environ(role: str) -> dict[str, str]:
    """Environment of a service's process. Its config file has the user's model definitions of the
    time when the model was named. Variables that name models are for services started one by one:
    here they would hide the file's values."""
    ours = {f"OUTRIDER_{owner}_{key}".upper() for owner, key in mesh.OF_MODELS}
    environ = {key: value for key, value in os.environ.items() if key not in ours}
    environ[MODELS_VARIABLE] = os.devnull
    environ[PARENT_VARIABLE] = "1"
    return with_huge_pages(environ) if role == "inference" else environ


async def _end(process: ChildProcess) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _admin_port(spec: ProcessSpec) -> int:
    """Where a process of these settings answers while it starts; 0: it is not known."""
    table = spec.values.get("admin")
    return int(table.get("port", 0)) if isinstance(table, Mapping) else 0


def _readiness(host: str, admin_port: int) -> tuple[bool, str]:
    """Whether a process is ready, and what it does if it is not; "": it does not answer."""
    try:
        with urllib.request.urlopen(
            f"http://{host}:{admin_port}/ready", timeout=_ANSWER_S
        ) as reply:
            return bool(reply.status == HTTPStatus.OK), ""
    except urllib.error.HTTPError as error:
        with error:
            return False, _reason(error)
    except (OSError, HTTPException):
        return False, ""


def _reason(answer: IO[bytes]) -> str:
    try:
        return str(json.load(answer)["reason"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ""


def ending(status: int) -> str:
    """How a process ended, by its exit status; negative is the signal that killed it."""
    return f"killed (signal {-status})" if status < 0 else f"ended with status {status}"


def tail(log: Path, num_lines: int = 20) -> str:
    """The last lines of a log, for people, starting at a command's own failure message if it is
    among them."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    last = lines[-num_lines:]
    failures = [number for number, line in enumerate(last) if line.startswith(FAILED)]
    shown = last[failures[-1] :] if failures else last
    return "\n".join(text for line in shown for text in readable(line)).removeprefix(FAILED)
