"""Child processes: none is lost as it starts, all end with their parent, and an end is awaited."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import outrider
from outrider.children import PipedProcess, python_module, start, start_piped

ROOT = Path(__file__).parents[1]
LAUNCHER = Path(outrider.__file__).with_name("launch_child.py")
STAYS = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")

UNDER_TRAFFIC = """
import asyncio, collections, os, sys
import uvloop
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from outrider.children import start
from outrider.rpc import add_health, bind, make_channel, make_server

async def main(count):
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "1", "gRPC's fork handlers are to be there"
    server = make_server()
    add_health(server).set_serving(True)
    port = bind(server, "127.0.0.1", 0)
    await server.start()
    async with make_channel(f"127.0.0.1:{port}") as channel:
        ask = HealthStub(channel).Check

        async def traffic():
            while True:
                await ask(HealthCheckRequest())

        async def starts():
            for _ in left:
                await ask(HealthCheckRequest())
                ended[await start(("true",)).wait()] += 1

        left, ended = iter(range(count)), collections.Counter()
        callers = [asyncio.create_task(traffic()) for _ in range(8)]
        await asyncio.gather(*(starts() for _ in range(4)))
        assert not any(caller.done() for caller in callers)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    await server.stop(None)
    print(dict(ended))

uvloop.run(main(int(sys.argv[1])))
"""

Main = Callable[[], Coroutine[Any, Any, None]]
on_both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Main) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def output(starting: Awaitable[PipedProcess]) -> str:
    """All that it prints; it ends well."""
    process = await starting
    said = await process.stdout.read()
    assert await process.finish() == 0
    return said.decode()


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.soak)])
def test_none_of_many_is_lost_under_grpc_traffic(count: int) -> None:
    environ = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1"}
    command = [sys.executable, "-c", UNDER_TRAFFIC, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.stdout == f"{{0: {count}}}\n", done.stderr


def test_nothing_starts_processes_otherwise() -> None:
    """What the linter does not see: programs in strings, and methods of a loop."""
    others = re.compile(r"preexec_fn|\bsubprocess_(?:exec|shell)\b|\bcreate_subprocess_")
    folders = ("bench", "examples", "outrider", "services", "tests", "tools")
    files = {file for folder in folders for file in (ROOT / folder).rglob("*.py")}
    files -= {ROOT / "outrider" / "children.py", Path(__file__)}
    assert [str(file) for file in sorted(files) if others.search(file.read_text("utf-8"))] == []


def entry_points() -> list[str]:
    files = [*(ROOT / "outrider").rglob("*.py"), *(ROOT / "services").rglob("*.py")]
    mains = [file for file in files if '__name__ == "__main__"' in file.read_text("utf-8")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in mains]
    # Of all benches one that imports gRPC first.
    return [*sorted(modules), "bench.router.loop_lag"]


@pytest.mark.parametrize("module", entry_points())
def test_grpc_finds_its_fork_handlers_switched_off(module: str) -> None:
    code = """
import os, runpy, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))

sys.meta_path.insert(0, Watch())
runpy.run_module(sys.argv[1], run_name="imported")
import grpc
"""
    environ = {
        name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"
    }
    done = subprocess.run(
        [sys.executable, "-c", code, module], capture_output=True, text=True, env=environ, cwd=ROOT
    )
    assert done.stdout == "0\n", done.stderr


@on_both_loops
def test_any_number_wait_for_its_end_and_may_give_up(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        before = os.listdir("/proc/self/fd")
        child = start(("sleep", "600"))
        waiting = [asyncio.create_task(child.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert waiting[0].cancelled()
        child.terminate()
        assert await asyncio.gather(*waiting[1:]) == [-signal.SIGTERM] * 2
        assert await child.wait() == child.join() == child.returncode == -signal.SIGTERM
        assert os.listdir("/proc/self/fd") == before

    run(new_loop, main)


async def test_its_end_is_seen_without_a_descriptor_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    child = start(("sleep", "600"))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    child.kill()
    assert await waiting == -signal.SIGKILL


async def test_a_child_that_has_ended_takes_no_signals() -> None:
    child = start(("true",))
    assert child.join() == 0
    child.send_signal(signal.SIGSTOP)
    child.terminate()
    child.kill()
    assert await child.wait() == 0


@on_both_loops
def test_streams(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Of more than a pipe holds, and lines longer than usual."""

    async def main() -> None:
        line = b"x" * (1 << 20) + b"\n"
        child = await start_piped(("cat",), limit_bytes=1 << 21)
        child.stdin.write(line * 2)
        assert await child.stdout.readline() == line
        assert await child.finish() == 0
        silent = await start_piped(("cat",), stdout=subprocess.DEVNULL)
        silent.stdin.write(line)
        assert await silent.stdout.read() == b""
        assert await silent.finish() == 0
        deaf = await start_piped(("true",))
        deaf.stdin.write(line)
        assert await deaf.finish() == 0

    run(new_loop, main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_a_parent_that_is_killed(number: signal.Signals) -> None:
    code = f"""
import signal, sys
from outrider.children import start
start(sys.argv[1:], ends_with_parent=signal.{number.name}).join()
"""
    with subprocess.Popen([sys.executable, "-c", code, *STAYS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.kill()
        ended, _, _ = select.select([parent.stdout], [], [], 20.0)
        assert ended and parent.stdout.read() == b"", "the child holds the other end"


def test_a_child_whose_parent_ended_before_the_kernel_was_asked_ends() -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        told = (str(number.value), str(os.getppid()), "")
        command = [sys.executable, "-I", "-S", str(LAUNCHER), *told, "echo", "it runs"]
        done = subprocess.run(command, capture_output=True)
        assert (done.returncode, done.stdout) == (-number, b"")


async def test_its_parents_end_is_heard_where_that_signal_was_ignored() -> None:
    """As by what a shell started in the background. Signals that interpreters ignore are not."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = ("grep", "SigIgn", "/proc/self/status")
        said = await output(start_piped(command, ends_with_parent=signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = int(said.split()[1], 16)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << (number - 1)


async def test_a_child_runs_on_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    command = ("grep", "Cpus_allowed_list", "/proc/self/status")
    assert (await output(start_piped(command, cores={core}))).split()[1] == str(core)


async def test_a_child_has_the_environment_that_it_is_given_and_descriptors(tmp_path: Path) -> None:
    env = shutil.which("env")
    assert env is not None
    given = {"A": "1=2", "LC_ALL": "", "B": ""}
    said = await output(start_piped((env,), env=given, ends_with_parent=signal.SIGTERM))
    assert dict(line.split("=", 1) for line in said.splitlines()) == given
    ours, theirs = os.pipe()
    command = (sys.executable, "-c", f"import os; os.write({theirs}, b'%d' % os.getpid())")
    child = start(command, pass_fds=(theirs,), ends_with_parent=signal.SIGTERM)
    os.close(theirs)
    assert await child.wait() == 0
    assert int(os.read(ours, 100)) == child.pid
    os.close(ours)


@pytest.mark.parametrize("ends_with_parent", [None, signal.SIGTERM])
def test_a_program_that_is_not_there(ends_with_parent: signal.Signals | None) -> None:
    for command in ("/no/such/program", "no-such-program"):
        with pytest.raises(FileNotFoundError, match=command):
            start((command,), ends_with_parent=ends_with_parent)
    with pytest.raises(FileNotFoundError):
        start(("true",), env={"PATH": "/nowhere"}, ends_with_parent=ends_with_parent)


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"\x00")
    file.chmod(0o700)
    with pytest.raises(OSError, match="format"):
        start((str(file),))
    with (tmp_path / "said").open("wb") as said:
        child = start((str(file),), stderr=said, ends_with_parent=signal.SIGTERM)
        assert child.join() == 127
    assert (tmp_path / "said").read_text() == f"{file} cannot be run: Exec format error\n"


def test_modules_are_ours_whatever_is_in_the_folder(tmp_path: Path) -> None:
    """A user's own `services`, or a file named like one of Python's modules, hides nothing."""
    for name in ("outrider.py", "services.py", "typing.py", "typer.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')")
    command = python_module("outrider.cli.main", "serve", "router", "--help")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_module_is_started_in_another_way() -> None:
    files = [file for part in ("outrider", "services") for file in (ROOT / part).rglob("*.py")]
    started = re.compile(r"""sys\.executable, ["']-[mc]["']""")
    assert [str(file) for file in files if started.search(file.read_text("utf-8"))] == []
