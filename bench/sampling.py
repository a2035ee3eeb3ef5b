"""Microseconds to choose one token, by kind of sampling and shape of the row.

Replicas draw the noise of sampled tokens while the engine computes their rows: "noise drawn before"
is what is left then. Where noise alone decides they choose from all rows of a call together: "of 16
together" is a sixteenth of what that takes. Each of these rows is another one, as a call's are, and
in no cache that a core has for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.harness import Run, Table, median, parser, start, time_us
from outrider.sampling import whole_rows
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler

VOCABULARY = 49_152
CASES = {
    "greedy": SamplingParams(),
    "T=0.8": SamplingParams(temperature=0.8),
    "T=0.8, top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "T=0.8, top_k 50": SamplingParams(temperature=0.8, top_k=50),
    "T=0.8, min_p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "T=0.8, repetition penalty 1.1": SamplingParams(temperature=0.8, repetition_penalty=1.1),
    "greedy, frequency penalty 0.5": SamplingParams(frequency_penalty=0.5),
}
DRAWN_BEFORE = ("T=0.8", "T=0.8, top_p 0.95")
TOGETHER = 16
SPREADS = {"flat": 1.0, "usual": 3.0, "peaked": 6.0}
"""Standard deviation of the row's logits."""


def main() -> int:
    arguments = parser("sampling", __doc__ or "").parse_args()
    run = start("sampling", arguments)
    repeats = 100 if run.quick else 1000
    table = run.table(
        f"Time to choose one token from {VOCABULARY:,} logits, us",
        "sampling",
        "logits",
        "n",
        "p50",
        "p95",
    )
    rows = _rows()
    for name, params in CASES.items():
        for shape, row in rows.items():
            _enter(run, table, name, shape, _measure(params, row, repeats))
    for name in DRAWN_BEFORE:
        drawn = _measure(CASES[name], rows["usual"], repeats, prepared=True)
        _enter(run, table, f"{name}, noise drawn before", "usual", drawn)
    name = f"T=0.8, noise drawn before, of {TOGETHER} together"
    _enter(run, table, name, "usual", _measure_together(repeats))
    candidates = _measure(CASES["T=0.8"], rows["usual"], repeats, num_candidates=64)
    _enter(run, table, "T=0.8, 64 candidates", "usual", candidates)
    run.finish()
    return 0


def _enter(run: Run, table: Table, name: str, shape: str, times: list[float]) -> None:
    table.add(name, shape, len(times), table.median(times), table.quantile(times, 0.95))
    run.samples(f"{name}, {shape}", times, unit="us")
    if shape == "usual":
        run.figures[f"{name} us"] = round(median(times), 1)


def _rows() -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    return {
        name: (rng.standard_normal(VOCABULARY) * spread_).astype(np.float32)
        for name, spread_ in SPREADS.items()
    }


def _measure_together(repeats: int) -> list[float]:
    """Of sessions with a seed each."""
    chance = np.random.default_rng(1)
    rows = chance.standard_normal((TOGETHER, VOCABULARY), dtype=np.float32) * SPREADS["usual"]
    samplers = [
        Sampler(replace(CASES["T=0.8"], seed=seed), VOCABULARY, []) for seed in range(TOGETHER)
    ]
    for sampler in samplers:
        sampler.prepare(500, repeats + 1)
    positions = iter(range(500, 500 + repeats + 1))

    def choose() -> None:
        at = next(positions)
        found = [sampler.rivals(row, at) for sampler, row in zip(samplers, rows, strict=True)]
        whole_rows.choose([rivals for rivals in found if rivals is not None])

    return [time / TOGETHER for time in time_us(choose, repeats=repeats)]


def _measure(
    params: SamplingParams,
    row: npt.NDArray[np.float32],
    repeats: int,
    num_candidates: int | None = None,
    *,
    prepared: bool = False,
) -> list[float]:
    """A session with a prompt of 500 tokens, each choice at another position."""
    prompt: Sequence[int] = range(0, 20_000, 40)
    sampler = Sampler(params, VOCABULARY, prompt)
    ids = None
    if num_candidates is not None:
        ids = np.argsort(-row)[:num_candidates].astype(np.int32)
        row = row[ids]
    positions = iter(range(500, 500 + repeats + 1))
    if prepared:
        sampler.prepare(500, repeats + 1)
    return time_us(lambda: sampler.choose(row, next(positions), ids), repeats=repeats)


if __name__ == "__main__":
    sys.exit(main())
