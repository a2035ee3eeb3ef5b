"""Other routers, relaying an SSE stream of a fake backend, with their own defaults."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from bench.cost.load import Job
from bench.cost.measuring import NUM_WINDOWS, clients, counted
from bench.harness import processor_time
from bench.harness.http_client import HttpClient
from bench.harness.http_server import MODEL
from bench.harness.processes import child, read_json
from bench.peers import smg, vllm_router
from bench.peers.installing import Peer
from outrider.children import PipedProcess
from outrider.testing import free_tcp_port

_START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A router of others."""

    name: str
    peer: Peer
    command: Callable[[int, list[str]], tuple[str, ...]]


GATEWAYS: Final = (
    Gateway("SMG", smg.PEER, smg.command),
    Gateway("vllm-router", vllm_router.PEER, vllm_router.command),
)


async def relay_us(
    gateway: Gateway, chats: int, tick_ms: float, seconds: float
) -> tuple[list[float], float]:
    """Microseconds per event, window by window, and events per second. Raises RuntimeError."""
    taken, num_events, begun = [], 0, 0.0
    async with relaying(gateway, tick_ms) as (port, pid):
        job = Job("http", "127.0.0.1", port, chats, 1, False, model=MODEL)
        async with clients(job) as client:
            await counted(client)
            begun = time.monotonic()
            for _ in range(NUM_WINDOWS):
                before = processor_time.of_threads(pid)
                await asyncio.sleep(max(1, round(seconds * 1e3 / tick_ms)) * tick_ms / 1e3)
                used = processor_time.between(before, processor_time.of_threads(pid))
                counts = await counted(client)
                if not counts["events"]:
                    raise RuntimeError(f"no events came: {counts['error']}")
                taken.append(used / 1e3 / counts["events"])
                num_events += counts["events"]
            rate = num_events / (time.monotonic() - begun)
    return taken, rate


@contextlib.asynccontextmanager
async def relaying(gateway: Gateway, tick_ms: float) -> AsyncIterator[tuple[int, int]]:
    """Port and process id of a gateway in front of a backend whose streams have an event per tick.
    Raises RuntimeError if it does not come to serve."""
    backend_port, port = free_tcp_port(), free_tcp_port()
    backend = (sys.executable, "-m", "bench.cost.backend", str(backend_port), str(tick_ms))
    async with child(*backend) as behind:
        await read_json(behind)
        command = gateway.command(port, [f"http://127.0.0.1:{backend_port}"])
        async with child(*command, silent=True) as process:
            await _serving(port, process)
            yield port, process.pid


async def _serving(port: int, process: PipedProcess) -> None:
    """Return once it relays a stream."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "stream": True}
    until = time.monotonic() + _START_S
    while True:
        if process.returncode is not None:
            raise RuntimeError(f"it ended with exit status {process.returncode}")
        with contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
            async with HttpClient("127.0.0.1", port) as client, asyncio.timeout(5.0):
                async for _ in client.events(body):
                    return
        if time.monotonic() > until:
            raise RuntimeError("it relayed nothing within a minute")
        await asyncio.sleep(0.25)
