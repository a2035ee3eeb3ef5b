"""A service as a process: the ports it bound, its signals, its ready file."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import uvloop

from outrider.durable_files import write_atomic

C = TypeVar("C", contravariant=True)
_LEAST_FILES: Final = 32
"""A service without connections has some twenty files open."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports a service really bound; a configured port of 0 means any free one."""

    main: int
    """gRPC (TCP), or QUIC (UDP) on the edge."""
    admin: int
    """HTTP: /metrics, /health, /ready, /version."""
    http: int = 0
    """HTTP for clients (TCP), on an edge that serves it; 0: none."""
    num_main: int = 1
    """Number of consecutive ports from `main` on: one for each process of a router."""


class Serve(Protocol[C]):
    """The `serve` coroutine function of a service's app module."""

    def __call__(
        self,
        config: C,
        *,
        ready: Callable[[Ports], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> Awaitable[None]: ...


def run(
    serve: Serve[C],
    config: C,
    *,
    ready_file: Path | None = None,
    on_hangup: Callable[[], None] | None = None,
    has_parent: bool = False,
) -> None:
    """Run a service until SIGINT or SIGTERM, then let it drain. A second signal ends at once.
    `on_hangup` is called for every SIGHUP, which ends the process without it. `has_parent`: a
    parent stops this process among others, and the kernel sends PARENT_ENDED when that ends. Then
    the process ends at once if it was told to stop before, and drains if it was not; the same
    signal again changes nothing."""
    # Each connection has a file; many systems allow a process 1,024 unless it asks for more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Datagrams and streams cost a tenth to a fifth less on libuv than on asyncio's own loop.
    _check_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(serve, config, ready_file, on_hangup, has_parent))


def _check_files() -> None:
    """Raises OSError if the process may open too few files to begin with: uvloop and gRPC abort it
    then, without a word."""
    opened = list[int]()
    try:
        for _ in range(_LEAST_FILES // 2):
            opened += os.pipe()
    finally:
        for descriptor in opened:
            os.close(descriptor)


async def _run(
    serve: Serve[C],
    config: C,
    ready_file: Path | None,
    on_hangup: Callable[[], None] | None,
    has_parent: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if not first:
            first.append(number)
            stop.set()
        # Signals come again without being another wish. Who stops all processes of a service, as
        # systemd does, tells this one besides its parent, which passes it on. And the kernel tells
        # of a parent that is killed as often as a thread of it ends.
        elif not has_parent or (first[0] != PARENT_ENDED and number == PARENT_ENDED):
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    if on_hangup is not None:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)

    def ready(ports: Ports) -> None:
        settle()
        if ready_file is not None:
            write_ports(ready_file, ports)

    await serve(config, ready=ready, stop=stop)


GC_THRESHOLDS: Final = (20_000, 20, 20)
"""Arguments of gc.set_threshold. Garbage in cycles is found after at most some 8 million objects; a
connection has some hundreds of them, and nearly all are freed by reference counting."""


def settle() -> None:
    """Exempt all that a service has loaded from garbage collection, and make collections rarer. A
    full collection would hold the event loop for 50 to 100 ms each time; with thousands of
    connections open, collections took much of an edge's time and held its loop for a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


PARENT_ENDED = signal.SIGINT
"""Signal that a process with `has_parent` gets when its parent has ended; it has no terminal, so no
one else sends it."""

PARENT_VARIABLE: Final = "OUTRIDER_HAS_PARENT"
"""Environment variable, set only by a parent, for a service that is to run with `has_parent`."""


def was_told_of_parent() -> bool:
    """Whether the variable is set. It is removed: it does not hold for what this process starts."""
    return os.environ.pop(PARENT_VARIABLE, None) is not None


def write_ports(path: Path, ports: Ports) -> None:
    """Publish `ports` atomically: a reader sees all of the file or none of it."""
    write_atomic(path, json.dumps(asdict(ports)).encode(), is_durable=False)


def read_ports(path: Path) -> Ports | None:
    """Ports published by `write_ports`; None until then."""
    try:
        return Ports(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
