"""A service in a process of its own whose event loop lag is sampled, and clients in other
processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import uvloop

from outrider.process import Ports, settle

TICK_S: Final = 0.001
_spawn = multiprocessing.get_context("spawn")  # noqa: TID251 - spawn does not fork

Serve = Callable[[Callable[[Ports], None], asyncio.Event], Awaitable[None]]


class Watched:
    """A service and the lateness of its loop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.ports: Ports = pipe.recv()

    def begin(self) -> None:
        """Forget what was seen."""
        self._pipe.send("begin")

    def lag_ms(self) -> list[float]:
        """How late the loop was each time, since `begin`."""
        self._pipe.send("lag")
        found: list[float] = self._pipe.recv()
        return found


@contextmanager
def watched(make: Callable[..., Serve], *arguments: Any) -> Iterator[Watched]:
    """`make(*arguments)` is called in another process, and what it returns is served there."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Watched(ours)
    finally:
        ours.close()
        process.join()


def _serve(pipe: Connection, make: Callable[..., Serve], arguments: tuple[Any, ...]) -> None:
    uvloop.run(_watch(pipe, make(*arguments)))


async def _watch(pipe: Connection, serve: Serve) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    lag_ms: list[float] = []

    def tick(due: float) -> None:
        now = time.perf_counter()
        lag_ms.append(max(0.0, now - due) * 1e3)
        loop.call_later(TICK_S, tick, now + TICK_S)

    def ready(ports: Ports) -> None:
        settle()
        pipe.send(ports)

    def answer() -> None:
        try:
            while True:
                if pipe.recv() == "lag":
                    pipe.send(list(lag_ms))
                lag_ms.clear()
        except EOFError:
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=answer, daemon=True).start()
    tick(time.perf_counter())
    await serve(ready, stop)


@contextmanager
def client(
    work: Callable[..., Any], *arguments: Any, is_elsewhere: bool = False
) -> Iterator[Connection]:
    """`work(pipe, *arguments)` in another process, until the context is left; what it sends can be
    received. `is_elsewhere`: it stands for other machines, and so has the time of this one's cores
    that nobody else wants (SCHED_IDLE, on Linux)."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(
        target=_client, args=(theirs, is_elsewhere, work, arguments), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def _client(
    pipe: Connection, is_elsewhere: bool, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    if is_elsewhere and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    uvloop.run(work(pipe, *arguments))


async def computing(pipe: Connection) -> None:
    """A load that asks nothing of anybody and takes what time is left."""
    pipe.send(0)
    while True:
        pass
