"""A replica with the service's own scheduler and streams around an engine that only waits.

    python -m bench.cost.replica

Its settings are the inference service's, from the environment. It prints its port when it serves;
a line `{"tick_ms": T, "repetition": R}` on its input sets the duration of a call and how much of
the text repeats itself, and any line is answered with what its engine has done so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys

import uvloop

from bench.cost.engine import PacedEngine
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.config import load
from outrider.engines.fake import FakeOptions
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.process import settle
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.tls import Tls
from services.inference.app import LoadedModel, Replica, replies_in
from services.inference.config import InferenceConfig

CONTEXT_TOKENS = 8192
_BLOCK_TOKENS = 16
_NUM_BLOCKS = 400_000
"""They are numbers, and hold nothing."""


def ordinary_ids(vocabulary: Vocabulary) -> list[int]:
    """Of tokens that are plain letters, with a space before them or without. A vocabulary of merged
    pairs has the most frequent first."""
    return [
        token
        for token in range(vocabulary.size)
        if token not in vocabulary.stop_ids
        and (text := vocabulary.token_bytes(token)).isascii()
        and text.strip().isalpha()
    ]


def _engine(vocabulary: Vocabulary) -> PacedEngine:
    options = FakeOptions(
        vocabulary_size=vocabulary.size,
        block_tokens=_BLOCK_TOKENS,
        num_blocks=1,
        max_context_tokens=CONTEXT_TOKENS,
    )
    return PacedEngine(ordinary_ids(vocabulary), options, _NUM_BLOCKS)


async def _serve(config: InferenceConfig, vocabulary: Vocabulary, engine: PacedEngine) -> None:
    digest, tokens_digest = vocabulary.digest, vocabulary.tokens_digest
    model = LoadedModel(
        DEFAULT_MODEL.name,
        engine,
        TokenCoder(digest, vocabulary.size, shipped_table(tokens_digest)),
        digest,
        replies_in(vocabulary),
        engine.info.fingerprint,
        tokens_digest,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    replica = Replica(config, model, Metrics("inference"), tls=Tls.open(config.tls))
    await replica.start()
    settle()
    loop.add_reader(0, _answer, engine)
    print(json.dumps({"port": replica.port}), flush=True)
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(replica.stop(), 5.0)


def _answer(engine: PacedEngine) -> None:
    for line in os.read(0, 1 << 16).splitlines():
        told = json.loads(line)
        engine.tick_ms = told.get("tick_ms", engine.tick_ms)
        engine.repetition = told.get("repetition", engine.repetition)
        done = {
            "tokens": engine.num_tokens,
            "calls": engine.num_calls,
            "cpu_ns": engine.cpu_ns,
            "thread": engine.thread,
        }
        print(json.dumps(done), flush=True)


def main() -> int:
    config = load(InferenceConfig, "inference")
    configure_logging("inference", config.log_level)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, vocabulary, _engine(vocabulary)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
