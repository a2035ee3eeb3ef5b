"""The process of one worker: a job, then shards, over a pipe that it was started with."""

from __future__ import annotations

import contextlib
import sys
from multiprocessing.connection import Connection

from outrider.bulk.plan.results import ShardResult
from outrider.bulk.plan.shards import Shard
from outrider.bulk.work.worker import Worker
from outrider.errors import OutriderError
from outrider.telemetry.logs import configure_logging


def main() -> None:
    """Work until the other side closes, or ends this process."""
    configure_logging("tokenize", "warning")
    with contextlib.suppress(EOFError, BrokenPipeError), Connection(int(sys.argv[1])) as connection:
        worker = Worker(connection.recv())
        while True:
            connection.send(_result(worker, connection.recv()))


def _result(worker: Worker, shard: Shard) -> ShardResult | OutriderError:
    try:
        return worker.run(shard)
    except OSError as error:
        return OutriderError(f"shard {shard.number} cannot be written: {error}")


if __name__ == "__main__":
    main()
