"""`python -m services.tokenizer.long_texts.local_worker ADDRESS NAME`: a worker process of the
tokenizer service of this node, which starts it, until that is lost or SIGTERM comes."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

import uvloop

from outrider.errors import OutriderError
from outrider.telemetry.logs import configure_logging
from services.tokenizer.long_texts.worker import PartWorker


async def run(address: str, name: str) -> None:
    """Work for a service until it is lost or SIGTERM comes."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    worker = PartWorker(name)
    try:
        with suppress(OutriderError):
            await worker.work(address, stopping, drain_s=0.0)
    finally:
        worker.close()


def main() -> int:
    address, name = sys.argv[1:]
    # The service logs joins and losses of its own workers itself.
    configure_logging("tokenizer-worker", "warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(address, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
