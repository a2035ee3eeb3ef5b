"""An engine in a process of its own, alone: `python -m bench.models.engine_worker`.

It reads one JSON object per line. The first says how the engine is made; each further one is work:
`generate` a reply as the reference does, or `decode` one that is known, with drafts that are right.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from bench.harness.processes import child, read_json, write_json
from outrider.engines.base import Engine, Ids, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.engines.huge_pages import with_huge_pages
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry.logs import configure_logging
from services.inference.reference import generate

_SEQUENCE: Final = 1
_KV_BYTES: Final = 64 << 20


class EngineWorker:
    """The parent's side."""

    def __init__(self, process: Any) -> None:
        self._process = process

    async def ask(self, **job: Any) -> dict[str, Any]:
        """Raises RuntimeError if the worker ended."""
        write_json(self._process, job)
        return await read_json(self._process)


@contextlib.asynccontextmanager
async def engine_worker(model: str, **settings: Any) -> AsyncIterator[EngineWorker]:
    """A worker whose engine is ready; `settings` are fields of EngineConfig."""
    command = (sys.executable, "-m", "bench.models.engine_worker")
    async with child(*command, environ=with_huge_pages(os.environ)) as process:
        worker = EngineWorker(process)
        await worker.ask(model=model, **settings)
        yield worker


def decode(
    engine: Engine, prompt: Sequence[int], reply: Sequence[int], drafts: Sequence[int]
) -> dict[str, Any]:
    """Compute `reply` once more, call by call, each with the next number of `drafts`, in turn, of
    tokens that are guessed, and guessed right. Says how long it took without the prompt, how many
    tokens came, and whether all are the likeliest ones, as they are in a greedy reply."""
    ids = np.array([*prompt, *reply], np.int32)
    end = len(ids) + engine.info.scratch_tokens
    blocks: Ids = np.arange(-(-end // engine.info.block_tokens), dtype=np.int32)
    engine.open(_SEQUENCE, ids[: len(prompt)])
    try:
        past = len(prompt) - 1
        engine.step([SequenceSlice(_SEQUENCE, ids[:past], 0, blocks, 0)])
        begin, cpu_begin, chosen = time.perf_counter(), time.process_time(), list[int]()
        for count in _in_turn(drafts):
            tokens = ids[past : min(past + 1 + count, len(ids) - 1)]
            if not len(tokens):
                break
            rows = engine.step([SequenceSlice(_SEQUENCE, tokens, past, blocks, len(tokens))])[0]
            chosen += [int(best) for best in rows.logits.argmax(-1)]
            past += len(tokens)
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    finally:
        engine.close_sequence(_SEQUENCE)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens": len(chosen),
        "equal": chosen == list(reply),
    }


def _in_turn(drafts: Sequence[int]) -> Iterator[int]:
    while True:
        yield from drafts


def _generated(engine: Engine, job: Mapping[str, Any], model: str) -> dict[str, Any]:
    vocabulary = load_vocabulary(lookup(model), ModelStore(default_root()))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    reply = generate(engine, job["prompt"], SamplingParams(**job["sampling"]), new_reply)
    return {"ids": reply.ids, "text": reply.text}


def _work(engine: Engine, model: str) -> None:
    for line in sys.stdin:
        job = json.loads(line)
        kind = job.pop("kind")
        answer = decode(engine, **job) if kind == "decode" else _generated(engine, job, model)
        print(json.dumps(answer), flush=True)


def main() -> int:
    configure_logging("bench", "error")
    settings = json.loads(sys.stdin.readline())
    spec = lookup(settings["model"])
    own = {"kv_bytes": _KV_BYTES, "prepare_first": True}
    engine = create_engine(EngineConfig(**own | spec.engine_settings() | settings))
    try:
        print(json.dumps({"precision": engine.info.precision}), flush=True)
        _work(engine, settings["model"])
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
