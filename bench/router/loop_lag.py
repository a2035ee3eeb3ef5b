"""How late a router's event loop is while prompts of 100,000 tokens arrive."""

from __future__ import annotations

import asyncio
import sys
import time

from outrider.process import Ports
from services.router.app import serve
from services.router.config import ReplicaConfig, RouterConfig

_STEP_S = 0.001


async def measure(per_s: float, count: int) -> tuple[list[float], int]:
    """Milliseconds by which wake-ups a millisecond apart came late, and sessions answered."""
    arguments = (sys.executable, "-m", "bench.router.far_side", str(per_s), str(count))
    pipe = asyncio.subprocess.PIPE
    far_side = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe)
    assert far_side.stdin is not None and far_side.stdout is not None
    address = (await far_side.stdout.readline()).decode().strip()
    replicas = (ReplicaConfig("far-side", "local", address, "m"),)
    config = RouterConfig(replicas=replicas, default_model="m", log_level="error", drain_s=0.0)
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(config, ready=ports.set_result, stop=stop))
    try:
        far_side.stdin.write(f"127.0.0.1:{(await ports).main}\n".encode())
        answered = asyncio.create_task(far_side.stdout.readline())
        late_ms = await _late_ms(answered)
        return late_ms, int(await answered)
    finally:
        stop.set()
        await serving
        await far_side.wait()


async def _late_ms(until: asyncio.Task[bytes]) -> list[float]:
    late = []
    while not until.done():
        began = time.perf_counter()
        await asyncio.sleep(_STEP_S)
        late.append((time.perf_counter() - began - _STEP_S) * 1e3)
    return late
