"""Helps to test Outrider and what is built on it: virtual time, free ports, leak checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from outrider.free_ports import free_tcp_port, free_udp_port

__all__ = ["FakeClock", "eventually", "free_tcp_port", "free_udp_port", "leak_check"]


class FakeClock:
    """A clock that moves only by `advance`; call it for the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Move on and return the new time."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self.now += seconds
        return self.now


async def eventually(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Return as soon as `condition` holds; AssertionError when it does not in time."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"still not true after {timeout_s} s: {condition}")
        await asyncio.sleep(0.005)


def _told(task: asyncio.Task[Any]) -> str:
    """Description of a task's coroutine; for those of extension modules only an address is
    known."""
    coroutine = task.get_coro()
    return f"{getattr(coroutine, '__qualname__', '')} {coroutine!r}"


_AWAITS_CALL = "AioServer._request_"
"""Prefix of the task with which a gRPC server awaits its next call; it starts a new one after each
call, while the server's other tasks stay the same."""


@asynccontextmanager
async def leak_check(*, settle_s: float = 60.0) -> AsyncIterator[None]:
    """Fail when the block leaves asyncio tasks behind that were not there before.

    Tasks that are on their way out get `settle_s` to finish.
    """
    before = asyncio.all_tasks()
    yield
    deadline = asyncio.get_running_loop().time() + settle_s
    while left := {
        task
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}
        if not _told(task).startswith(_AWAITS_CALL)
    }:
        if asyncio.get_running_loop().time() > deadline:
            names = ", ".join(sorted(_told(task) for task in left))
            raise AssertionError(f"{len(left)} task(s) left behind: {names}")
        await asyncio.sleep(0.005)
