"""A replica with the service's own scheduler, KV pool and streams, and an engine that takes time.

    python -m bench.peers.routing.replica HTTP_PORT FIXED_MS ROW_MS

Its other settings are the inference service's, from the environment. HTTP_PORT is that of the
OpenAI-compatible shell; a call of the engine takes FIXED_MS + ROW_MS x rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence

from bench.peers.routing.shell import Shell
from outrider.codec.tokens import TokenCoder
from outrider.config import load
from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply, ReplyEnd
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from services.inference.app import LoadedModel, Replica
from services.inference.config import InferenceConfig

MODEL = "paced"
DIGEST = b"the vocabulary of the paced one."
VOCABULARY_SIZE = 64
BLOCK_TOKENS = 32
NUM_BLOCKS = 640
"""Of a replica whose settings say nothing: thirty shared beginnings beside sixteen sessions."""


class PacedEngine(FakeEngine):
    """The fake engine; a call takes as long as it says."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        begin = time.monotonic()
        rows = super().step(slices, overlapped_work)
        time.sleep(max(0.0, begin + self.step_ms / 1e3 - time.monotonic()))
        return rows


def coder() -> TokenCoder:
    """Of the ids that this model speaks."""
    return TokenCoder(DIGEST, VOCABULARY_SIZE, None)


def _model(fixed_ms: float, row_ms: float, num_blocks: int) -> LoadedModel:
    options = FakeOptions(
        vocabulary_size=VOCABULARY_SIZE,
        block_tokens=BLOCK_TOKENS,
        num_blocks=num_blocks,
        min_rows=2,
        fixed_ms=fixed_ms,
        row_ms=row_ms,
    )

    def new_reply(params: SamplingParams) -> Reply:
        return ReplyEnd(params, ())

    return LoadedModel(MODEL, (PacedEngine(options),), coder(), DIGEST, new_reply)


async def _serve(config: InferenceConfig, http_port: int, model: LoadedModel) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    configure_logging("inference", config.log_level)
    replica = Replica(config, model, Metrics("inference"))
    await replica.start()
    try:
        async with Shell(http_port, f"127.0.0.1:{config.port}", coder(), DIGEST, MODEL):
            print("{}", flush=True)
            await stop.wait()
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(replica.stop(), 5.0)


def main() -> int:
    http_port, fixed_ms, row_ms = (float(word) for word in sys.argv[1:4])
    config = load(InferenceConfig, "inference")
    model = _model(fixed_ms, row_ms, config.num_blocks or NUM_BLOCKS)
    asyncio.run(_serve(config, int(http_port), model))
    return 0


if __name__ == "__main__":
    sys.exit(main())
