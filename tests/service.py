"""One service of the mesh in the test's own process, through its own `serve`, and what it says of a
file that it follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from outrider.cli.local.admin_page import read_page
from outrider.process import Ports


@asynccontextmanager
async def running_service(
    serve: Callable[..., Awaitable[None]], config: Any, **options: Any
) -> AsyncIterator[Ports]:
    """`serve(config, **options)` of a `services.*.app`, from when it is ready until it has drained.

    Yields the ports that it bound. Raises what `serve` raises, also when it does not start.
    """
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def run() -> None:
        await serve(config, ready=ports.set_result, stop=stop, **options)

    serving = asyncio.create_task(run())
    serving.add_done_callback(lambda _: ports.cancel())
    try:
        await asyncio.wait([ports])
        if ports.cancelled():
            await serving
            raise AssertionError("it ended before it was ready")
        yield ports.result()
    finally:
        stop.set()
        await serving


async def refusal(ports: Ports, file: Path) -> str:
    """Why a service refuses what its file holds now, once it has read that."""
    digest = sha256(await asyncio.to_thread(file.read_bytes)).hexdigest()
    async with asyncio.timeout(60):
        while True:
            page = await asyncio.to_thread(read_page, "127.0.0.1", ports.admin, "/config")
            if page.startswith("{") and (told := json.loads(page))["sha256"] == digest:
                return str(told["refused"])
            await asyncio.sleep(0.02)
