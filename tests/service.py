"""One service of the mesh in the test's own process, through its own `serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

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
