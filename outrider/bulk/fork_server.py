"""A process that has loaded everything, and forks workers that begin at once.

An interpreter that starts, imports and loads a vocabulary takes a second; a fork of a process that
has done so takes milliseconds, and shares its memory. The server is a fork of the command itself,
made while that has no threads of its own; where it has some, as in a program that uses this
library, or where the fork turns out to be of no use, it is a new process that loads everything.

`python -m outrider.bulk.fork_server FD` is the latter: it is asked over the socket FD and reads its
job from standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, NoReturn

from outrider.bulk.plan.results import ShardResult
from outrider.bulk.plan.shards import Shard
from outrider.bulk.worker import ENVIRONMENT, MALLOC_OPTIONS, BulkJob, BulkWorker
from outrider.children import python_module
from outrider.errors import OutriderError
from outrider.telemetry.logs import configure_logging
from outrider.tokenization.backends.base import Backend

_MESSAGE: Final = struct.Struct("!ci")
_FORK: Final = b"f"
"""Fork a worker that works over the descriptor that comes along; the answer is its process id."""
_END: Final = b"e"
"""Wait for the end of the worker with this process id; the answer is its exit status."""
_EXIT_S: Final = 5.0
"""From asking for a worker's end to SIGKILL."""
_PROBE_S: Final = 30
"""Encoding one line takes milliseconds, unless it waits for a thread that a fork does not have."""
_UNSAFE: Final = frozenset({"grpc"})
"""Modules whose own threads make a forked process useless."""


class ForkServer:
    """One such process. `fork` is for one thread at a time."""

    def __init__(self, job: BulkJob, fast: Backend | None) -> None:
        """Returns at once. `fast`: the job's backend, if it is loaded here already."""
        self._job = job
        if _may_fork():
            self._control, self._wait = _forked(job, fast)
        else:
            self._control, self._wait = _executed(job)

    def fork(self, descriptor: int) -> int:
        """The process id of a new worker, which gets shards over this end of a pipe and sends what
        came of them. Raises OutriderError."""
        message = _MESSAGE.pack(_FORK, 0)
        try:
            return self._ask(message, descriptor)
        except OSError:
            self._leave()
        self._control, self._wait = _executed(self._job)
        try:
            return self._ask(message, descriptor)
        except OSError as error:
            raise OutriderError(f"no worker process could be started: {error}") from error

    def ended(self, pid: int) -> int | None:
        """The exit status of a worker that has ended, or is ended now; None if the server that
        started it is gone."""
        try:
            return self._ask(_MESSAGE.pack(_END, pid))
        except OSError:
            return None

    def close(self) -> None:
        """End the server; workers whose pipes are closed end by themselves."""
        self._leave()

    def _ask(self, message: bytes, *descriptors: int) -> int:
        socket.send_fds(self._control, [message], descriptors)
        answer = self._control.recv(_MESSAGE.size)
        if not answer:
            raise BrokenPipeError("the process that starts workers has ended")
        return int(_MESSAGE.unpack(answer)[1])

    def _leave(self) -> None:
        self._control.close()
        self._wait()


def _may_fork() -> bool:
    """Whether a fork of this process can work: threads that run would be missing in it, and what
    they hold would stay locked for ever."""
    return threading.active_count() == 1 and not _UNSAFE & sys.modules.keys()


Started = tuple[socket.socket, Callable[[], object]]
"""Our end of the control socket, and a function that waits for the process."""


def _forked(job: BulkJob, fast: Backend | None) -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.freeze()  # else the first collection of every worker would copy all memory
    pid = os.fork()  # noqa: TID251 - a process without gRPC (_may_fork)
    if pid:
        gc.unfreeze()
        theirs.close()
        return ours, lambda: os.waitpid(pid, 0)
    ours.close()
    _end_with(partial(_serve_as_fork, theirs, job, fast))


def _serve_as_fork(control: socket.socket, job: BulkJob, fast: Backend | None) -> None:
    # In a session of its own: a terminal's Ctrl-C is for the command, which ends it.
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.environ.update(ENVIRONMENT)
    for option, value in MALLOC_OPTIONS.items():
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(option, value)
    signal.alarm(_PROBE_S)
    worker = BulkWorker(job, fast)
    worker.warm()
    signal.alarm(0)
    _serve(control, worker)


def _executed(job: BulkJob) -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, tempfile.TemporaryFile() as given:
        pickle.dump(job, given)
        given.seek(0)
        process = subprocess.Popen(
            python_module(__name__, str(theirs.fileno())),
            stdin=given,
            env={**os.environ, **ENVIRONMENT},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return ours, process.wait


def _serve(control: socket.socket, worker: BulkWorker) -> None:
    """Until the other side closes, or ends."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE.size, 1)
        if not message:
            return
        kind, pid = _MESSAGE.unpack(message)
        if kind == _FORK:
            answer = _fork(control, worker, *descriptors)
        else:
            answer = _status(pid)
        control.send(_MESSAGE.pack(kind, answer))


def _fork(control: socket.socket, worker: BulkWorker, descriptor: int) -> int:
    pid = os.fork()  # noqa: TID251 - a process without gRPC: it never imports it
    if pid:
        os.close(descriptor)
        return pid
    control.close()
    _end_with(partial(_work, worker, descriptor))


def _work(worker: BulkWorker, descriptor: int) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError), Connection(descriptor) as connection:
        while True:
            connection.send(_result(worker, connection.recv()))


def _result(worker: BulkWorker, shard: Shard) -> ShardResult | OutriderError:
    try:
        return worker.run(shard)
    except OSError as error:
        return OutriderError(f"shard {shard.number} cannot be written: {error}")


def _status(pid: int) -> int:
    """Exit status of a process, negative for a signal's number; it is killed if it does not end by
    itself."""
    limit = time.monotonic() + _EXIT_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Call `work` in a forked process and exit without running exit handlers or flushing buffers,
    which belong to the parent."""
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        traceback.print_exception(error)
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    """Run a server that has loaded everything a worker needs."""
    configure_logging("tokenize", "warning")
    worker = BulkWorker(pickle.load(sys.stdin.buffer))  # noqa: S301 - our own command wrote it
    worker.warm()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])), worker)


if __name__ == "__main__":
    main()
