"""Milliseconds of one engine call, by sessions and rows (docs/decisions/0002 and 0004).

Everything goes through the engine seam (`create_engine`, `SequenceSlice`). Every variant is called
once unmeasured, then all are measured in random order within a round; process CPU time, which on a
shared machine says nearly the same every time. Sequences have 100 tokens of context.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.harness import Run, parser, start
from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine

CONTEXT = 100
SHAPES = (
    *((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 1)),
    *((1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 64), (1, 128)),
    *((4, 4), (8, 2), (8, 4), (16, 2)),
)
"""Sessions, and rows of each."""
ORDERS: dict[str, tuple[int, ...]] = {
    "always 1": (1,),
    "always 4": (4,),
    "always 8": (8,),
    "1 and 4 in turn": (1, 4),
    "1, 2, 3, 4 in turn": (1, 2, 3, 4),
    "4 and 8 in turn": (4, 8),
}
"""Rows of one session, call after call."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sequences of an engine, each with its context computed and blocks of its own."""

    engine: Engine
    blocks_each: int

    def slices(self, count: int, rows: int) -> list[SequenceSlice]:
        """The next `rows` tokens of `count` sequences, all rows wanted."""
        tokens = np.arange(500, 500 + rows, dtype=np.int32)
        return [SequenceSlice(s, tokens, CONTEXT, self._blocks(s), rows) for s in range(count)]

    def prefill(self, count: int) -> None:
        """Open `count` sequences and compute their contexts."""
        for sequence in range(count):
            ids = np.random.default_rng(sequence).integers(1000, 40_000, CONTEXT, dtype=np.int32)
            self.engine.open(sequence, ids)
            self.engine.step([SequenceSlice(sequence, ids, 0, self._blocks(sequence), 1)])

    def _blocks(self, sequence: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        first = sequence * self.blocks_each
        return np.arange(first, first + self.blocks_each, dtype=np.int32)


@contextmanager
def sessions(*, exact: bool, threads: int, count: int) -> Iterator[Sessions]:
    """An engine with `count` sequences ready."""
    engine = create_engine(EngineConfig(exact=exact, threads=threads, prepare_first=True))
    try:
        most = CONTEXT + max(rows for _, rows in SHAPES) + engine.info.scratch_tokens
        ready = Sessions(engine, -(-most // engine.info.block_tokens))
        ready.prefill(count)
        yield ready
    finally:
        engine.close()


def cpu_ms(engine: Engine, slices: Sequence[SequenceSlice]) -> float:
    """Of all threads of this process."""
    begin = time.process_time()
    engine.step(slices)
    return (time.process_time() - begin) * 1000


def by_shape(run: Run, exact: Sessions, fast: Sessions, repeats: int) -> None:
    """Calls of one shape after the other."""
    variants = [(shape, ready) for shape in SHAPES for ready in (exact, fast)]
    samples: dict[tuple[tuple[int, int], bool], list[float]] = {}
    rng = random.Random(1)
    for _ in range(repeats):
        for shape, ready in rng.sample(variants, len(variants)):
            slices = ready.slices(*shape)
            ready.engine.step(slices)
            ms = cpu_ms(ready.engine, slices)
            samples.setdefault((shape, ready is exact), []).append(ms)
    columns = ("sessions x rows", "n", "exact", "lowest", "exact = false", "lowest ", "ratio")
    title = "CPU time of one engine call by sessions and rows of each, ms: median and lowest"
    table = run.table(title, *columns)
    for shape in SHAPES:
        ours, other = samples[shape, True], samples[shape, False]
        name = f"{shape[0]} x {shape[1]}"
        ratios = [a / b for a, b in zip(ours, other, strict=True)]
        exact_ms, other_ms, ratio = (table.median(s) for s in (ours, other, ratios))
        table.add(name, len(ours), exact_ms, min(ours), other_ms, min(other), ratio)
        run.samples(f"exact, {name}", ours, unit="ms")
        run.samples(f"exact = false, {name}", other, unit="ms")


def by_order(run: Run, ready: Sessions, repeats: int) -> None:
    """Calls whose size changes: the time of one call, by the size it had."""
    title = "CPU time of an engine call of one session whose number of rows changes, ms"
    table = run.table(title, "rows", "n", "median")
    for name, sizes in ORDERS.items():
        samples: list[float] = []
        for turn in range((repeats + 1) * 8):
            slices = ready.slices(1, sizes[turn % len(sizes)])
            ms = cpu_ms(ready.engine, slices)
            samples += [ms] if turn >= 8 else []
        table.add(name, len(samples), table.median(samples))
        run.samples(name, samples, unit="ms")


def main() -> int:
    flags = parser("engine", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of a call")
    arguments: argparse.Namespace = flags.parse_args()
    run = start("engine", arguments)
    repeats = 3 if run.quick else 30
    most = max(count for count, _ in SHAPES)
    run.setting("engine", threads=arguments.threads, context_tokens=CONTEXT)
    with sessions(exact=True, threads=arguments.threads, count=most) as exact:
        with sessions(exact=False, threads=arguments.threads, count=most) as fast:
            by_shape(run, exact, fast, repeats)
        by_order(run, exact, repeats)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
