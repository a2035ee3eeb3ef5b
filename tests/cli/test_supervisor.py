"""What the processes of a mesh are started with."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider import children
from outrider.cli.local import mesh, supervisor
from outrider.cli.local.admin_page import reaches_all_replicas
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.cli.local.supervisor import Child, Supervisor, _environ, _with_ports, tail
from outrider.config import load
from outrider.errors import UnavailableError
from outrider.process import PARENT_ENDED, PARENT_VARIABLE, Ports
from outrider.testing import FakeClock, eventually, free_tcp_port
from outrider.workers.restarts import RestartPolicy, Restarts
from services.edge.config import EdgeConfig
from services.tokenizer.config import TokenizerConfig

OPTIONS = MeshOptions((ServedModel("smollm2-135m-instruct"), ServedModel("qwen3-0.6b")))


def test_variables_that_name_models_do_not_hide_those_of_the_mesh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for role in ("EDGE", "TOKENIZER"):
        monkeypatch.setenv(f"OUTRIDER_{role}_MODELS", "smollm2-360m-instruct")
        monkeypatch.setenv(f"OUTRIDER_{role}_LOG_LEVEL", "error")
    specs: list[tuple[type[EdgeConfig | TokenizerConfig], ProcessSpec]] = [
        (EdgeConfig, mesh.edges(OPTIONS, [7001], tmp_path)[0]),
        (TokenizerConfig, mesh.tokenizer(OPTIONS)),
    ]
    for cls, spec in specs:
        file = tmp_path / f"{spec.role}.toml"
        file.write_text(mesh.to_toml(spec))
        config: EdgeConfig | TokenizerConfig = load(
            cls, spec.role, file=file, environ=_environ(spec.role)
        )
        assert config.models == ("smollm2-135m-instruct", "qwen3-0.6b")
        assert config.log_level == "error", "others count as ever"


def test_processes_get_ports_that_they_can_be_started_with_again(tmp_path: Path) -> None:
    options = MeshOptions(OPTIONS.models, port=0, http_port=0)
    specs = [mesh.tokenizer(options), *mesh.edges(options, [7001], tmp_path)]
    for spec in specs:
        values = _with_ports(spec, options.host)
        listeners = {"admin", "http"} & spec.values.keys()
        assert listeners == ({"admin", "http"} if spec.role == "edge" else {"admin"})
        ports = [values["port"], *(values[name]["port"] for name in listeners)]  # type: ignore[index]
        assert all(ports)
        assert len(set(ports)) == len(ports)


def test_ports_that_were_asked_for_stay(tmp_path: Path) -> None:
    options = MeshOptions(OPTIONS.models, port=4433, http_port=8080)
    (edge,) = mesh.edges(options, [7001], tmp_path)
    values = _with_ports(edge, options.host)
    assert values["port"] == 4433
    assert values["http"] == {"host": "127.0.0.1", "port": 8080}


def test_of_a_log_its_failure_is_told_and_not_what_was_before(tmp_path: Path) -> None:
    log = tmp_path / "edge.log"
    log.write_text("".join(f'{{"event": "number {it}"}}\n' for it in range(30)), "utf-8")
    assert tail(log).splitlines()[0].strip() == "number 10", "as people read it"
    with log.open("a", encoding="utf-8") as file:
        file.write("outrider: cannot listen on UDP 127.0.0.1:4433\nset another port\n")
    assert tail(log) == "cannot listen on UDP 127.0.0.1:4433\nset another port"


def supervisor_of(
    tmp_path: Path, told: list[str], clock: Callable[[], float] = time.monotonic
) -> Supervisor:
    for folder in ("config", "logs", "run"):
        (tmp_path / folder).mkdir()
    return Supervisor(OPTIONS, tmp_path, told.append, RestartPolicy(first_pause_s=0.0), clock)


NO_ROOM = OSError(errno.ENOSPC, "no space left")


async def test_services_take_their_supervisors_end_for_one_wish_however_often_it_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel says it once for each of its threads, and they let chats end first."""
    started: dict[str, Any] = {}

    def start(command: Sequence[str], **options: Any) -> None:
        started.update(options)
        raise NO_ROOM

    mine = supervisor_of(tmp_path, [])
    monkeypatch.setattr(children, "start", start)
    with pytest.raises(OSError, match="no space"):
        await mine._start_all([[mine._plan(mesh.tokenizer(OPTIONS))]])
    assert started["env"][PARENT_VARIABLE]
    assert started["ends_with_parent"] is PARENT_ENDED


class _Process:
    """Runs until it is told to end."""

    pid = 4711

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        return self.returncode or 0

    def terminate(self) -> None:
        self.returncode = -signal.SIGTERM
        self._ended.set()


async def test_a_full_disk_ends_no_process_and_keeps_none_away_for_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    published: list[bool] = []
    failures = [NO_ROOM] * 3

    def start(command: Sequence[str], **options: Any) -> _Process:
        if failures:
            raise failures.pop()
        return _Process()

    async def until_ready(*_: Any) -> Ports:
        return Ports(1, 2)

    def publish(*_: Any) -> None:
        if failures:
            raise NO_ROOM
        published.append(True)

    def say(text: str) -> None:
        told.append(text)
        raise NO_ROOM

    mine = supervisor_of(tmp_path, told)
    monkeypatch.setattr(children, "start", start)
    monkeypatch.setattr(supervisor, "publish", publish)
    monkeypatch.setattr(mine, "_say", say)
    monkeypatch.setattr(mine, "_until_ready", until_ready)
    monkeypatch.setattr(mine, "_is_up", True)
    spec = mesh.tokenizer(OPTIONS)
    first, restarts = _Process(), Restarts(RestartPolicy(first_pause_s=0.0), 0.0)
    child = Child(spec, first, Ports(1, 2), tmp_path / "log", restarts)  # type: ignore[arg-type]
    mine.children.append(child)
    child.keeper = asyncio.create_task(mine._keep(child))
    child.keeper.add_done_callback(mine._keeper_ended)
    waiting = asyncio.create_task(mine.wait(asyncio.Event()))
    first.terminate()
    await eventually(lambda: told[-1:] == [f"{spec.name} is up again, on port 1"] or waiting.done())
    assert not waiting.done() and published
    assert child.is_up and child.process.returncode is None
    assert any("could not be started: " in line and "no space left" in line for line in told)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await mine.stop()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\n{", b"SSH-2.0-x\r\n", b""],
)
async def test_a_process_that_dies_while_it_answers_or_is_another_says_nothing(
    answer: bytes,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        assert await asyncio.to_thread(supervisor._readiness, host, port) == (False, "")


STARTING = """
import http.server, json, os, sys

stages = iter(sys.argv[2:])

class Handler(http.server.BaseHTTPRequestHandler):
    stage = ""

    def do_GET(self):
        Handler.stage = next(stages, Handler.stage)
        if Handler.stage == "end":
            os._exit(3)
        self.send_response(503)
        self.end_headers()
        self.wfile.write(json.dumps({"ready": False, "reason": Handler.stage}).encode())

    def log_message(self, *_):
        pass

print("outrider: it fails", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A service that is never ready. Each question is answered with the next stage; the last one stays,
or is `end`."""


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        (["one", "two", "three", "four", "end"], "ended with status 3 before it was ready"),
        (["one", "two"], "was not ready, and for 300 s it reported nothing new (two)"),
    ],
)
async def test_a_start_may_last_while_there_is_progress_and_the_log_of_what_failed_is_shown(
    stages: list[str], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, port, heard = FakeClock(), free_tcp_port(), list[str]()
    read = supervisor._readiness

    def readiness(host: str, admin_port: int) -> tuple[bool, str]:
        """Every answer takes nearly as long as a stage may."""
        answer = read(host, admin_port)
        while not heard and not answer[1]:
            time.sleep(0.01)  # it has yet to listen
            answer = read(host, admin_port)
        if answer[1]:
            heard.append(answer[1])
            clock.advance(supervisor.START_LIMIT_S - 1)
        return answer

    monkeypatch.setattr(supervisor, "_readiness", readiness)
    command = [sys.executable, "-c", STARTING, str(port), *stages]
    monkeypatch.setattr(children, "python_module", lambda *_: command)
    spec = mesh.replicas(OPTIONS)[0]
    spec = replace(spec, values={**spec.values, "admin": {"port": port}})
    mine = supervisor_of(tmp_path, [], clock)
    with pytest.raises(UnavailableError) as failed:
        await mine._start_all([[mine._plan(spec)]])
    log = tmp_path / "logs" / f"{spec.name}.log"
    first, *shown, advice = failed.value.message.splitlines()
    assert first == f"{spec.name} {why}; the end of {log}:"
    assert shown == ["it fails"]
    assert f"outrider logs --state-dir {tmp_path}" in advice
    assert f"{spec.name}: {[it for it in stages if it != 'end'][-1]}" in mine._progress.line(0.0)


async def test_a_process_that_may_wait_for_others_is_not_late_before_they_are_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, others = FakeClock(), asyncio.Event()
    asked = 0

    def readiness(host: str, admin_port: int) -> tuple[bool, str]:
        nonlocal asked
        asked += 1
        clock.advance(supervisor.START_LIMIT_S)
        return False, "no router can be reached"

    async def ready_later() -> Child:
        await others.wait()
        raise AssertionError("nobody asks for the result")

    monkeypatch.setattr(supervisor, "_readiness", readiness)
    mine = supervisor_of(tmp_path, [], clock)
    spec = mesh.edges(OPTIONS, [7001], tmp_path)[0]
    needed = asyncio.create_task(ready_later())
    files = (tmp_path / "ready.json", tmp_path / "edge.log")
    waiting = asyncio.create_task(
        mine._until_ready(spec, _Process(), *files, [needed])  # type: ignore[arg-type]
    )
    await eventually(lambda: asked > 3 or waiting.done())
    assert not waiting.done()
    others.set()
    with pytest.raises(UnavailableError, match="edge was not ready, and for 300 s"):
        await waiting
    with pytest.raises(AssertionError):
        await needed


async def test_a_process_that_does_not_start_ends_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[_Process] = []

    def start(command: Sequence[str], **options: Any) -> _Process:
        process = _Process()
        started.append(process)
        if "edge" in command:
            process.returncode = 2
        return process

    monkeypatch.setattr(children, "start", start)
    mine = Supervisor(OPTIONS, tmp_path, lambda line: None)
    with pytest.raises(UnavailableError, match="edge ended with status 2 before it was ready"):
        await mine.start()
    assert len(started) == len(mesh.phases(OPTIONS)[0]), "side by side"
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize(
    ("page", "reaches"),
    [
        ('{state="ready"} 2.0\n{state="failed"} 0.0', True),
        ('{state="ready"} 1.0\n{state="failed"} 1.0', False),
        ("", False),
    ],
)
async def test_a_router_reaches_all_replicas_when_every_one_is_ready(
    page: str, reaches: bool
) -> None:
    body = "".join(f"outrider_router_replicas{line}\n" for line in page.splitlines())
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        assert await asyncio.to_thread(reaches_all_replicas, host, port) == reaches


@pytest.mark.parametrize("num_edges", [1, 3])
def test_all_processes_are_in_one_phase_of_the_start(tmp_path: Path, num_edges: int) -> None:
    options = replace(OPTIONS, num_edges=num_edges, num_routers=2)
    replicas = mesh.replicas(options)
    ports = {it.name: 7000 for it in replicas}
    specs = [*replicas, mesh.tokenizer(options), *mesh.routers(options, replicas, ports, 7001)]
    specs += mesh.edges(options, [7002, 7003], tmp_path)
    phases = mesh.phases(options)
    assert {name: role for phase in phases for name, role in phase.items()} == {
        it.name: it.role for it in specs
    }
    assert sum(map(len, phases)) == len(specs)
