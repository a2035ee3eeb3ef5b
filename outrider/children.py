"""Starts child processes: the one way to do so in a process that may use gRPC.

A child made by a plain fork runs fork handlers (pthread_atfork(3)) before it executes its program.
gRPC registers some, which restart its poller on descriptors that are closed by then: now and then
the child dies of SIGSEGV or SIGABRT without a message. uvloop's subprocesses fork, and so do
`subprocess` with a `preexec_fn`, and `os.fork`. `subprocess` without `preexec_fn` uses vfork(2),
which runs no handlers. Everything here is built on vfork; the linter refuses the rest.

If no task awaits the command's end, use `subprocess.run` or `subprocess.Popen`. This module adds an
end that can be awaited, and what `preexec_fn` is otherwise for: a child that ends with its parent
or runs on some cores only. Such a child begins as a small script, launch_child.py, which settles
this and then executes the command in its own place. That costs the start of an interpreter, some 15
ms of the child's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from typing import IO, Final

_POLL_S: Final = 0.05
_LAUNCHER: Final = Path(__file__).with_name("launch_child.py")

File = int | IO[bytes] | None
"""A descriptor, a file, or DEVNULL or STDOUT of `subprocess`; None: the same as this process's."""


def python_module(name: str, *arguments: str) -> tuple[str, ...]:
    """Command that runs a module of Outrider in this Python. Python's -P keeps the current folder
    out of the module search path: a folder `services` or a file `random.py` of the user's there
    would hide ours."""
    return (sys.executable, "-P", "-m", name, *arguments)


class ChildProcess:
    """A process that `start` has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or minus the number of the signal that killed it; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait for the end and return the exit status. Any number of tasks may wait and be
        cancelled."""
        if self.returncode is None:
            await self._ended()
        return self._process.wait()

    async def _ended(self) -> None:
        try:
            descriptor = os.pidfd_open(self.pid)  # readable when the process has ended
        except OSError:  # no room for a descriptor, or an older kernel
            while self.returncode is None:  # noqa: ASYNC110 - nobody else tells of it
                await asyncio.sleep(_POLL_S)
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def join(self) -> int:
        """Like `wait`, but blocks: for callers without an event loop."""
        return self._process.wait()


class PipedProcess(ChildProcess):
    """A process that `start_piped` has started."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        reading: asyncio.BaseTransport | None,
    ) -> None:
        super().__init__(process)
        self._reading = reading
        self.stdin = stdin
        """Writes to the child's standard input."""
        self.stdout = stdout
        """Reads the child's standard output."""

    async def finish(self) -> int:
        """Close its input, read the rest of its output, and wait."""
        self.stdin.close()
        while await self.stdout.read(1 << 16):
            pass
        status = await self.wait()
        if self._reading is not None:
            self._reading.close()  # uvloop keeps it open after the end of the output
        with contextlib.suppress(OSError):  # it may not have read all of its input
            await self.stdin.wait_closed()
        return status


def start(
    command: Sequence[str],
    *,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
    start_new_session: bool = False,
    ends_with_parent: signal.Signals | None = None,
    cores: Collection[int] = (),
) -> ChildProcess:
    """Start `command`. Raises OSError if there is no such program, or no room for a process.

    The kernel sends the child `ends_with_parent` when the thread that started it ends, however it
    does: call it from one that lasts as long as the process, such as the main thread. The signal
    may come again, once for each further thread of the parent. `cores`: those it may run on; empty:
    those of this process.

    With either of these two, a program that is found but cannot be executed ends with status 127
    and a message on its standard error.
    """
    launcher: tuple[str, ...] = ()
    if ends_with_parent is not None or cores:
        _find(command[0], env)
        number = 0 if ends_with_parent is None else ends_with_parent.value
        told = (str(number), str(os.getpid()), ",".join(map(str, cores)))
        launcher = (sys.executable, "-I", "-S", str(_LAUNCHER), *told)
    process = subprocess.Popen(
        (*launcher, *command),
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        pass_fds=tuple(pass_fds),
        start_new_session=start_new_session,
    )
    return ChildProcess(process)


async def start_piped(
    command: Sequence[str],
    *,
    stdout: File = subprocess.PIPE,
    stderr: File = None,
    env: Mapping[str, str] | None = None,
    ends_with_parent: signal.Signals | None = None,
    cores: Collection[int] = (),
    limit_bytes: int = 1 << 16,
) -> PipedProcess:
    """Like `start`, with streams connected to the child's input and output. If `stdout` sends the
    output elsewhere, the output stream is at its end. `limit_bytes`: longest line of output."""
    process = start(
        command,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=env,
        ends_with_parent=ends_with_parent,
        cores=cores,
    )._process
    try:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit_bytes)
        reading: asyncio.BaseTransport | None = None
        if process.stdout is None:
            reader.feed_eof()
        else:
            reading, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), process.stdout
            )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
    except BaseException:
        process.kill()
        process.wait()
        raise
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    return PipedProcess(process, writer, reader, reading)


def _find(program: str, env: Mapping[str, str] | None) -> None:
    """Raises FileNotFoundError where executing it would fail for that reason."""
    path = os.pathsep.join(os.get_exec_path(env))
    if shutil.which(program, path=path) is None:
        raise FileNotFoundError(ENOENT, "there is no such program", program)
