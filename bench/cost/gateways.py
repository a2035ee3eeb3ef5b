"""Other routers, relaying an SSE stream of a fake backend, with their own defaults."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cost.backend import MODEL
from bench.harness.processes import child, read_json
from bench.http.client import HttpClient
from bench.peers import smg, vllm_router
from outrider.children import PipedProcess
from outrider.testing import free_tcp_port

_START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A router of others."""

    name: str
    version: str
    server: Path
    flags: tuple[str, ...]
    is_installed: Callable[[], bool]
    install: str

    def command(self, port: int, worker: str) -> tuple[str, ...]:
        """That serves at `port` and relays to `worker`."""
        own = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker)
        quiet = ("--log-level", "error", "--prometheus-port", str(free_tcp_port()))
        return (str(self.server), *self.flags, *own, *quiet)


GATEWAYS: Final = (
    Gateway(
        *("SMG", smg.VERSION, smg.SERVER, ("launch",), smg.installed, smg.INSTALL),
    ),
    Gateway(
        *("vllm-router", vllm_router.VERSION, vllm_router.SERVER, ()),
        *(vllm_router.installed, vllm_router.INSTALL),
    ),
)


@dataclass(frozen=True, slots=True)
class Relaying:
    """A gateway that is up."""

    port: int
    pid: int


@contextlib.asynccontextmanager
async def relaying(gateway: Gateway, tick_ms: float) -> AsyncIterator[Relaying]:
    """In front of a backend whose streams have an event per tick. Raises RuntimeError if it does
    not come to serve."""
    backend_port, port = free_tcp_port(), free_tcp_port()
    backend = (sys.executable, "-m", "bench.cost.backend", str(backend_port), str(tick_ms))
    async with child(*backend) as behind:
        await read_json(behind)
        command = gateway.command(port, f"http://127.0.0.1:{backend_port}")
        async with child(*command, silent=True) as process:
            await _serving(port, process)
            yield Relaying(port, process.pid)


async def _serving(port: int, process: PipedProcess) -> None:
    """Return once it relays a stream."""
    body = b'{"model": "%s", "messages": [{"role": "user", "content": "a"}], "stream": true}'
    until = time.monotonic() + _START_S
    while True:
        if process.returncode is not None:
            raise RuntimeError(f"it ended with exit status {process.returncode}")
        try:
            async with HttpClient("127.0.0.1", port) as client, asyncio.timeout(5.0):
                async for line in client.lines(body % MODEL.encode()):
                    if line.startswith(b"data: {"):
                        return
        except (OSError, EOFError, ValueError):
            if time.monotonic() > until:
                raise RuntimeError("it relayed nothing within a minute") from None
        await asyncio.sleep(0.25)
