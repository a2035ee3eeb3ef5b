"""KV in transit: frames of real KV, and prompts whose KV is in a Redis or on another replica."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.harness import Run, parser, start
from bench.harness.larger_models import CODER_05B, have_all
from bench.kv import first_token, frames
from bench.kv.first_token import Link
from outrider.codec.kv import Payload
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    num_prefixes: int
    """Whose KV is put into frames, in each precision."""
    num_of_larger: int
    """Prefixes of the larger model, likewise; 0: it is left out."""
    prompts: first_token.Size


THREADS = 1
"""Of a replica's engine."""
_LINKS = (
    *(Link(0.0), Link(10.0), Link(50.0)),
    *(Link(10.0, 1000.0), Link(10.0, 200.0), Link(10.0, 50.0)),
)
FULL = Size(
    num_prefixes=20,
    num_of_larger=7,
    prompts=first_token.Size(num_nearest=6, num_others=3, links=_LINKS),
)
CORE = Size(
    num_prefixes=7,
    num_of_larger=0,
    prompts=first_token.Size(num_nearest=3, num_others=1, links=_LINKS[:2]),
)
QUICK = Size(
    num_prefixes=1,
    num_of_larger=0,
    prompts=first_token.Size(num_nearest=1, num_others=1, links=_LINKS[:1]),
)


def main() -> int:
    smaller = "one model, fewer prompts, two links; a third of the time"
    flags = parser("kv", __doc__ or "", core=smaller)
    arguments = flags.parse_args()
    run = start("kv", arguments)
    size = QUICK if run.quick else CORE if run.core else FULL
    progress = _progress()
    store = ModelStore(default_root())
    vocabulary = load_vocabulary(DEFAULT_MODEL, store)
    packed = frames.measure(run, DEFAULT_MODEL, store, size.num_prefixes, progress)
    if size.num_of_larger:
        _of_larger(run, store, size.num_of_larger, progress)
    run.setting("replica", threads=THREADS)
    asked = asyncio.run(first_token.measure(vocabulary, size.prompts, THREADS, progress))
    first_token.report(run, asked)
    run.finish()
    num_equal = sum(it.payloads[Payload.EXACT].num_equal for it in packed)
    num_frames = len(packed) * size.num_prefixes
    return int(num_equal != num_frames or not first_token.is_exact(asked))


def _of_larger(run: Run, store: ModelStore, count: int, progress: Callable[[str], None]) -> None:
    """Frames of the KV of another model, where it can be had."""
    files, missing = have_all((CODER_05B,))
    run.setting("missing", **missing)
    for name, path in files.items():
        spec = ModelSpec(name, f"file:{path}", CODER_05B.sha256)
        frames.measure(run, spec, store, count, progress)


def _progress() -> Callable[[str], None]:
    """Says what has been done, and after how many seconds."""
    began = time.monotonic()

    def done(what: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {what}", file=sys.stderr, flush=True)

    return done


if __name__ == "__main__":
    raise SystemExit(main())
