"""The drafter's process: starts it, ends it, and the pipe to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final, cast

from outrider import children
from outrider.children import ChildProcess
from outrider.engines.huge_pages import with_huge_pages
from services.edge.drafter.settings import DrafterSettings

DRAFTER: Final = children.python_module("services.edge.drafter")
_EXIT_S: Final = 2.0
"""Time for a process that closed the pipe itself to exit."""


class Pipe(asyncio.Protocol):
    """The edge's end of the connection. `write` refuses while too much is unread."""

    def __init__(self, on_data: Callable[[bytes], None], max_unsent_bytes: int) -> None:
        self._on_data = on_data
        self._max_unsent_bytes = max_unsent_bytes
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self.closed = asyncio.Event()
        """Set when the other end has closed."""
        self.writable = asyncio.Event()
        """Cleared while the other end leaves too much unread."""
        self.writable.set()
        self.changed = asyncio.Event()
        """Set when `closed` is set or `writable` cleared."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are of no class of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._max_unsent_bytes, low=0)

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def pause_writing(self) -> None:
        self.writable.clear()
        self.changed.set()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closed.set()
        self.writable.set()
        self.changed.set()

    @property
    def is_writable(self) -> bool:
        """Whether `write` would take something."""
        return self._transport is not None and self.writable.is_set()

    def write(self, data: bytes) -> bool:
        """Queue all of `data`; False, and nothing is queued, if too much waits already."""
        if self._transport is None or not self.writable.is_set():
            return False
        self._transport.write(data)
        return True

    def close(self) -> None:
        """Forget what was not sent."""
        if self._transport is not None:
            self._transport.abort()


class DrafterProcess:
    """A running drafter."""

    def __init__(self, process: ChildProcess, pipe: Pipe) -> None:
        self._process = process
        self.pipe = pipe

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        settings: DrafterSettings,
        on_data: Callable[[bytes], None],
        max_unsent_bytes: int,
    ) -> DrafterProcess:
        """Start the process; `command` is followed by what __main__ takes. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            try:
                _, pipe = await asyncio.get_running_loop().create_unix_connection(
                    lambda: Pipe(on_data, max_unsent_bytes), sock=ours
                )
            except BaseException:
                ours.close()
                raise
            try:
                process = children.start(
                    (*command, settings.to_json(), str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=with_huge_pages(os.environ),
                    ends_with_parent=signal.SIGKILL,
                )
            except OSError:
                pipe.close()
                raise
        return cls(process, pipe)

    async def end(self) -> int:
        """Kill it, unless it closed the pipe and exits by itself. Returns its exit status."""
        return await (self._exit() if self.pipe.closed.is_set() else self.kill())

    async def finish(self) -> int:
        """End it once it has saved its statistics; kill it if that takes longer than _EXIT_S."""
        self.pipe.close()
        return await self._exit()

    async def kill(self) -> int:
        """End it at once; statistics since its last save are lost."""
        self.pipe.close()
        self._process.kill()
        return await self._process.wait()

    async def _exit(self) -> int:
        try:
            async with asyncio.timeout(_EXIT_S):
                return await self._process.wait()
        except TimeoutError:
            return await self.kill()
