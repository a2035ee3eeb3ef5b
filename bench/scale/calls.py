"""How long an engine call takes, by its rows: a distribution that was measured.

    python -m bench.scale.calls

measures it here and records it; the simulator draws from the last record. Sizes are called in
turn, eight sequences share the larger ones, and the time is the process's CPU time with one
thread, which other work on the machine disturbs least. Drafts are off.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.harness import RESULTS, median, parser, quantile, start
from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine

SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
SHARES = tuple(number / 100 for number in range(5, 100, 10))
"""Quantiles that are recorded, and drawn with equal chances."""
_CONTEXT = 400
_SEQUENCES = 8
_MOST_ROWS = 640


class CallTimes:
    """Milliseconds of an engine call and of the Python around it."""

    def __init__(self, quantiles: Mapping[int, Sequence[float]], session_ms: float) -> None:
        """`quantiles`: times at SHARES by rows, rows ascending; `session_ms`: the scheduler's own
        time for each session of a call."""
        sizes = list(quantiles)
        rows = np.arange(_MOST_ROWS + 1)
        columns = zip(*quantiles.values(), strict=True)
        table = [_interpolated(rows, sizes, column) for column in columns]
        self._ms: list[list[float]] = np.stack(table, axis=1).tolist()
        self._session_ms = session_ms

    def ms(self, rows: int, sessions: int, chance: float) -> float:
        """Of a call of so many rows and sessions; `chance`, 0 to 1, decides where in the
        distribution it falls."""
        times = self._ms[rows]
        return times[int(chance * len(times))] + self._session_ms * sessions

    def mean_ms(self, rows: int, sessions: int) -> float:
        """On average."""
        times = self._ms[rows]
        return sum(times) / len(times) + self._session_ms * sessions


def _interpolated(
    rows: np.ndarray[tuple[int], np.dtype[np.int64]], sizes: Sequence[int], ms: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Beyond the largest size the last slope goes on."""
    slope = (ms[-1] - ms[-2]) / (sizes[-1] - sizes[-2])
    beyond = np.maximum(rows - sizes[-1], 0) * slope
    times: np.ndarray[tuple[int], np.dtype[np.float64]]
    times = np.interp(rows, np.array(sizes), np.array(ms)) + beyond
    return times


def recorded(results: Path = RESULTS) -> CallTimes:
    """From the last records of this bench and of `bench.tick`. Raises FileNotFoundError."""
    calls = json.loads((results / "calls.json").read_text(encoding="utf-8"))["figures"]
    tick = json.loads((results / "tick.json").read_text(encoding="utf-8"))["figures"]
    quantiles = {int(rows): times for rows, times in calls["quantiles_ms"].items()}
    return CallTimes(quantiles, tick["drafts_off_ms"] / _TICK_SESSIONS)


_TICK_SESSIONS = 16
"""Sessions of a tick in `bench.tick`."""


def measure(engine: Engine, repeats: int) -> dict[int, list[float]]:
    """CPU milliseconds of calls by rows."""
    blocks_each = -(-(_CONTEXT + SIZES[-1]) // engine.info.block_tokens) + 1
    for sequence in range(_SEQUENCES):
        ids = np.arange(1000, 1000 + _CONTEXT, dtype=np.int32) + sequence
        engine.open(sequence, ids)
        engine.step([SequenceSlice(sequence, ids, 0, _blocks(sequence, blocks_each), 1)])
    samples: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(repeats + 1):
        for size, times in samples.items():
            slices = _slices(size, blocks_each)
            begin = time.process_time()
            engine.step(slices)
            times += [(time.process_time() - begin) * 1e3] if turn else []
    return samples


def _blocks(sequence: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(sequence * count, (sequence + 1) * count, dtype=np.int32)


def _slices(num_rows: int, blocks_each: int) -> list[SequenceSlice]:
    """Replies in small calls; in large ones one of the sequences is a prompt."""
    count = min(num_rows // 2, _SEQUENCES)
    first = num_rows - 2 * (count - 1)
    return [
        SequenceSlice(
            sequence,
            np.arange(500, 500 + (2 if sequence else first), dtype=np.int32),
            _CONTEXT,
            _blocks(sequence, blocks_each),
            1,
        )
        for sequence in range(count)
    ]


def main() -> int:
    arguments = parser("scale.calls", __doc__ or "").parse_args()
    run = start("calls", arguments)
    run.command = run.command.replace("bench.calls", "bench.scale.calls")
    engine = create_engine(EngineConfig(max_fixed_rows=64, prepare_first=True))
    try:
        samples = measure(engine, 10 if run.quick else 100)
    finally:
        engine.close()
    table = run.table(
        "CPU time of an engine call by rows, ms: one thread, drafts off",
        "rows",
        "p5",
        "median",
        "p95",
    )
    for rows, times in samples.items():
        table.add(rows, table.quantile(times, 0.05), median(times), table.quantile(times, 0.95))
        run.samples(f"{rows} rows", times, unit="ms")
    run.figures["quantiles_ms"] = {
        str(rows): [round(quantile(times, share), 3) for share in SHARES]
        for rows, times in samples.items()
    }
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
