"""`python -m services.tokenizer.parts HOST:PORT`: a worker of that tokenizer service."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys

from outrider.telemetry.logs import configure_logging
from services.tokenizer.parts.worker import stay, work


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.tokenizer.parts", description=__doc__)
    parser.add_argument("address", help="the tokenizer service's HOST:PORT")
    parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--once", action="store_true", help="end when the service is lost")
    arguments = parser.parse_args()
    # Its service logs what becomes of a worker that is its own.
    configure_logging("tokenizer-worker", "warning" if arguments.once else "info")
    run = work if arguments.once else stay
    asyncio.run(run(arguments.address, arguments.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
