"""A replica with the service's own scheduler, KV pool and streams around an engine that only waits.

    python -m bench.harness.paced_replica --config FILE --ready-file FILE --control PORT

With `--replies FILE` it gives the replies recorded there (bench.harness.recorded_engine). Its other
settings are the inference service's. At the control port it takes lines of JSON: what they name of
`fixed_ms`, `row_ms` and `repetition` is set, and each is answered with what the engine has done so
far; with `calls` N, once N more of its calls have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from bench.harness.paced_engine import PacedEngine
from bench.harness.recorded_engine import RecordedEngine, read_replies
from bench.harness.replica import coder_of
from outrider.config import load
from outrider.engines.fake import FakeOptions
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.process import Ports, settle, write_ports
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.tls import Tls
from services.inference.app import Replica
from services.inference.config import InferenceConfig
from services.inference.model import LoadedModel, replies_in

CONTEXT_TOKENS = 8192
_NUM_BLOCKS = 400_000
"""Unless the settings say how many. They are numbers, and hold nothing."""


def program(control_port: int, **flags: float | Path) -> tuple[str, ...]:
    """Command to run in place of `outrider serve inference` (bench.harness.mesh.Service)."""
    given = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
    module = ("-m", "bench.harness.paced_replica")
    return (sys.executable, *module, "--control", str(control_port), *given)


class Control:
    """A connection to the control port of one. Use as an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Control:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, **settings: float) -> dict[str, Any]:
        """Apply settings to the engine; returns what it has done so far."""
        self._writer.write(json.dumps(settings).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._reader.readline())
        return answer


def ordinary_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids of tokens that are plain letters, with or without a space before them. A vocabulary of
    merged pairs has the most frequent first."""
    return [
        token
        for token in range(vocabulary.size)
        if token not in vocabulary.stop_ids
        and (text := vocabulary.token_bytes(token)).isascii()
        and text.strip().isalpha()
    ]


class _Answers:
    """Answers at the control port."""

    def __init__(self, engine: PacedEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, asyncio.Event]] = []
        engine.call_ended = self._tell

    def _tell(self) -> None:
        if self._waiting:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for until, event in self._waiting:
            if self._engine.num_calls >= until:
                event.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = self._engine
        while line := await reader.readline():
            told = json.loads(line)
            until = engine.num_calls + told.pop("calls", 0)
            for name in ("fixed_ms", "row_ms", "repetition"):
                setattr(engine, name, told.pop(name, getattr(engine, name)))
            assert not told, told
            if until > engine.num_calls:
                waiting = (until, asyncio.Event())
                self._waiting.append(waiting)
                await waiting[1].wait()
                self._waiting.remove(waiting)
            done = {
                "tokens": engine.num_tokens,
                "calls": engine.num_calls,
                "busy_ms": engine.busy_ms,
                "cpu_ns": engine.cpu_ns,
                "thread": engine.thread,
            }
            writer.write(json.dumps(done).encode() + b"\n")


async def _serve(
    config: InferenceConfig, vocabulary: Vocabulary, engine: PacedEngine, ready: Path, control: int
) -> None:
    model = LoadedModel(
        DEFAULT_MODEL.name,
        engine,
        coder_of(vocabulary),
        vocabulary.digest,
        replies_in(vocabulary),
        engine.info.fingerprint,
        vocabulary.tokens_digest,
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    replica = Replica(config, model, Metrics("inference"), tls=Tls.open(config.tls))
    await replica.start()
    async with await asyncio.start_server(_Answers(engine).serve, "127.0.0.1", control):
        settle()
        write_ports(ready, Ports(replica.port, 0))
        await stop.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(replica.stop(), 5.0)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--config", type=Path, required=True)
    flags.add_argument("--ready-file", type=Path, required=True)
    flags.add_argument("--control", type=int, required=True)
    flags.add_argument("--fixed-ms", type=float, default=1.0)
    flags.add_argument("--row-ms", type=float, default=0.0)
    flags.add_argument("--block-tokens", type=int, default=16)
    flags.add_argument("--min-rows", type=int, default=1)
    flags.add_argument("--replies", type=Path)
    given = flags.parse_args()
    config = load(InferenceConfig, "inference", file=given.config)
    configure_logging("inference", config.log_level)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    options = FakeOptions(
        vocabulary_size=vocabulary.size,
        block_tokens=given.block_tokens,
        num_blocks=1,
        max_context_tokens=CONTEXT_TOKENS,
        min_rows=given.min_rows,
    )
    num_blocks = config.num_blocks or _NUM_BLOCKS
    ordinary = ordinary_ids(vocabulary)
    engine = (
        RecordedEngine(read_replies(given.replies), ordinary, options, num_blocks)
        if given.replies
        else PacedEngine(ordinary, options, num_blocks)
    )
    engine.fixed_ms, engine.row_ms = given.fixed_ms, given.row_ms
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, vocabulary, engine, given.ready_file, given.control))
    return 0


if __name__ == "__main__":
    sys.exit(main())
