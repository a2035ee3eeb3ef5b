"""A replica whose process is stopped (SIGSTOP): its connections stay open and say nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.children import PipedProcess, start_piped
from outrider.testing import leak_check
from outrider.v1 import router_pb2
from tests.router.replica import Replica, RouterUnderTest, running_router

_PROCESS = """
import asyncio
from tests.router.replica import Replica

async def main():
    replica = Replica("a")
    await replica.start()
    print(replica.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def replica_process() -> AsyncIterator[tuple[PipedProcess, Replica]]:
    """A replica in a process of its own, and what a router is told of it."""
    process = await start_piped((sys.executable, "-c", _PROCESS))
    replica = Replica("a")
    replica.address = f"127.0.0.1:{int(await process.stdout.readline())}"
    try:
        yield process, replica
    finally:
        process.kill()
        await process.finish()


async def metrics(router: RouterUnderTest) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports.admin)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = await reader.read()
    writer.close()
    return page.decode()


async def test_a_stopped_replica_is_suspect_then_down_and_back_when_it_goes_on() -> None:
    limits = {"heartbeat_ms": 50, "silence_s": 0.4, "probe_timeout_s": 0.3, "suspect_s": 0.3}
    async with (
        leak_check(),
        replica_process() as (process, replica),
        running_router(replica, **limits) as router,
    ):
        await router.state_of("a", router_pb2.REPLICA_STATE_READY)
        process.send_signal(signal.SIGSTOP)
        await router.state_of("a", router_pb2.REPLICA_STATE_DOWN)
        assert 'replica_transitions_total{state="suspect"}' in await metrics(router)
        process.send_signal(signal.SIGCONT)
        await router.state_of("a", router_pb2.REPLICA_STATE_READY)
