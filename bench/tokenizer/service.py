"""One text of 50 MB through the tokenizer service: workers, deaths, identical ids.

The text is made of texts of this repository and of its tests' languages, in a random order that is
the same in every run. In the runs with deaths a worker is killed by SIGKILL every second.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.harness import Run, parser, start
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import AUTO, load_backend
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import token_block_from_proto
from services.tokenizer.app import serve
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.vocabularies import ServedVocabulary

ROOT = Path(__file__).parents[2]
TEXT_BYTES = 50_000_000
QUICK_BYTES = 4_000_000
PIECE_CHARS = 1 << 18
KILL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class TextResult:
    """One text through one service."""

    seconds: float
    ids: list[int]
    num_killed: int
    num_left: int
    """Worker processes that outlived the service."""


PLANS = [
    *((REFERENCE, workers, False) for workers in (1, 2)),
    *((AUTO, workers, False) for workers in (1, 2, 4)),
    *((AUTO, workers, True) for workers in (1, 2, 4)),
]
"""Backend, worker processes, whether they are killed."""


def measure(run: Run, backends: Mapping[str, FallbackBackend], vocabulary: Vocabulary) -> int:
    """Adds the table; returns how many runs differed from the reference, and how many processes
    outlived their service."""
    text = long_text(QUICK_BYTES if run.quick else TEXT_BYTES)
    expected = reference(vocabulary, text)
    size_mb = len(text.encode()) / 1e6
    title = f"One text of {size_mb:.0f} MB tokenized by the service's worker processes"
    table = run.table(
        title,
        "backend",
        "workers",
        "workers killed",
        "time, s",
        "MB/s",
        "ids",
        "ids are the reference's",
    )
    num_wrong = num_left = 0
    for name, workers, deaths in PLANS:
        served = ServedVocabulary.of(DEFAULT_MODEL.name, vocabulary, backends[name])
        made = asyncio.run(_one(served, text, workers, deaths=deaths))
        num_wrong += made.ids != expected
        num_left += made.num_left
        cells = made.num_killed, made.seconds, size_mb / made.seconds, len(made.ids)
        table.add(backends[name].name, workers, *cells, str(made.ids == expected))
    table.note(f"Worker processes that outlived their service: {num_left}.")
    return num_wrong + num_left


def long_text(num_bytes: int) -> str:
    """At least `num_bytes` of code, prose and many languages; the same in every run."""
    found = sorted([*ROOT.glob("**/*.md"), *ROOT.glob("bench/data/*/*.json"), *_sources()])
    texts = [path.read_text("utf-8") for path in found if ".venv" not in path.parts]
    rng = random.Random(50)
    made: list[str] = []
    size = 0
    while size < num_bytes:
        made.append(rng.choice(texts) + rng.choice("\n \t"))
        size += len(made[-1].encode())
    return "".join(made)


def _sources() -> list[Path]:
    return [path for folder in ("outrider", "tests") for path in (ROOT / folder).rglob("*.py")]


def reference(vocabulary: Vocabulary, text: str) -> list[int]:
    """The whole text's ids by the reference, in one call: nothing is cut."""
    return vocabulary.encode(text)


async def _one(served: ServedVocabulary, text: str, workers: int, *, deaths: bool) -> TextResult:
    coder = served.coder
    killed: list[int] = []
    async with _service(served, workers) as stub:
        async for _ in stub.Tokenize(_pieces("warm " * 200_000 * workers)):
            pass
        killer = asyncio.create_task(_kill_one_a_second(killed)) if deaths else None
        begun = perf_counter()
        blocks = [answer.ids async for answer in stub.Tokenize(_pieces(text))]
        seconds = perf_counter() - begun
        if killer is not None:
            killer.cancel()
    found = [coder.decode(token_block_from_proto(b), max_count=1 << 24) for b in blocks]
    ids = [i for block in found for i in block]
    return TextResult(seconds, ids, len(killed), len(_workers()))


async def _kill_one_a_second(killed: list[int]) -> None:
    while True:
        await asyncio.sleep(KILL_EVERY_S)
        victims = [pid for pid in _workers() if pid not in killed]
        if victims:
            os.kill(victims[0], signal.SIGKILL)
            killed.append(victims[0])


def _workers() -> list[int]:
    """Worker processes of this one."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split():
        with suppress(OSError):
            if b"services.tokenizer.long_texts" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


async def _pieces(text: str) -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
    for begin in range(0, len(text), PIECE_CHARS):
        yield tokenizer_pb2.TokenizeRequest(text=text[begin : begin + PIECE_CHARS])


@asynccontextmanager
async def _service(
    served: ServedVocabulary, workers: int
) -> AsyncIterator[tokenizer_pb2_grpc.TokenizerServiceAsyncStub]:
    config = TokenizerConfig(port=0, worker_processes=workers, log_level="critical")
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    vocabularies = [served]
    serving = asyncio.create_task(
        serve(config, ready=ports.set_result, stop=stop, vocabularies=vocabularies)
    )
    address = f"127.0.0.1:{(await ports).main}"
    async with make_channel(address) as channel:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        yield stub
    stop.set()
    await serving


def main() -> int:
    run = start("tokenizer_service", parser("tokenizer.service", __doc__ or "").parse_args())
    store = ModelStore(default_root())
    vocabulary = load_vocabulary(DEFAULT_MODEL, store)
    backends = {name: load_backend(store, vocabulary, name) for name in (REFERENCE, AUTO)}
    num_wrong = measure(run, backends, vocabulary)
    run.finish()
    return int(bool(num_wrong))


if __name__ == "__main__":
    sys.exit(main())
