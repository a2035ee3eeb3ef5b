"""What every bench shares: spreads, tables, and the record of a run.

A bench prints its tables and, last, one line of JSON. A full run also writes
`bench/results/NAME.json`, from which `bench.harness.readme` makes the README's tables; a `--quick`
run writes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter_ns
from typing import TypeAlias

from bench.harness.machine import Facts, machine_facts

RESULTS = Path(__file__).parents[1] / "results"

Cell: TypeAlias = str | int | float
Figure: TypeAlias = str | int | float | bool | Sequence["Figure"] | Mapping[str, "Figure"] | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Order statistics of a sample, in the sample's unit."""

    count: int
    p50: float
    p95: float
    p99: float
    low: float
    high: float


def quantile(samples: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman and Fan, 1996, type 7)."""
    ranked = sorted(samples)
    at = share * (len(ranked) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (at - below)


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


_STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
"""Two-sided 95 % quantiles, by degrees of freedom from 1 on (Student, 1908)..."""
_NORMAL = 2.0
"""...and what more come to, rounded up."""


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive ratios, and its 95 % interval (Student's t, over logarithms);
    everything, for one ratio alone. Raises statistics.StatisticsError for none."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, free = fmean(logs), len(logs) - 1
    factor = _STUDENT_T[free - 1] if free <= len(_STUDENT_T) else _NORMAL
    error = factor * stdev(logs) / math.sqrt(len(logs)) if free else math.inf
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def pooled(parts: Iterable[Sequence[float]]) -> list[float]:
    """The samples of all rounds together."""
    return list(itertools.chain.from_iterable(parts))


def spread(samples: Sequence[float]) -> Spread:
    """Raises ValueError for an empty sample: nothing measured is no result."""
    if not samples:
        raise ValueError("no samples were measured")
    p50, p95, p99 = (quantile(samples, share) for share in (0.5, 0.95, 0.99))
    return Spread(len(samples), p50, p95, p99, min(samples), max(samples))


def time_us(call: Callable[[], object], *, repeats: int, calls: int = 1) -> list[float]:
    """Microseconds per call, one sample per repeat of `calls` calls, after one to warm up."""
    call()
    samples = []
    for _ in range(repeats):
        begin = perf_counter_ns()
        for _ in range(calls):
            call()
        samples.append((perf_counter_ns() - begin) / calls / 1000)
    return samples


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one table; floats are shown with three significant digits."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def markdown(self) -> str:
        """The table in Markdown, numbers right-aligned."""
        numeric = [
            bool(self.rows) and all(not isinstance(row[at], str) for row in self.rows)
            for at in range(len(self.columns))
        ]
        rules = ["---:" if right else "---" for right in numeric]
        lines = [self.columns, rules, *([show(cell) for cell in row] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def plain(self) -> str:
        """The table for a terminal."""
        cells = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(self.columns))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([self.title, *(line.rstrip() for line in lines)])


def show(cell: Cell) -> str:
    """A cell as text."""
    if not isinstance(cell, float):
        return str(cell)
    if cell == 0 or not math.isfinite(cell):
        return f"{cell:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(cell))))
    return f"{cell:,.{decimals}f}"


@dataclass(slots=True)
class Run:
    """One run of a bench."""

    name: str
    quick: bool
    command: str
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)

    def table(self, title: str, *columns: str) -> Table:
        table = Table(title, columns)
        self.tables.append(table)
        return table

    def finish(self, results: Path = RESULTS) -> None:
        """Print everything, and record a full run."""
        for table in self.tables:
            print(table.plain(), end="\n\n")
        if not self.quick:
            results.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self._record(machine_facts()), ensure_ascii=False, indent=1)
            part = results / f"{self.name}.json.part"
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(results / f"{self.name}.json")  # never half a record
        print(json.dumps({"bench": self.name, "quick": self.quick, **self.figures}), flush=True)

    def _record(self, facts: Facts) -> dict[str, object]:
        return {
            "name": self.name,
            "command": self.command,
            "machine": asdict(facts),
            "tables": [asdict(table) for table in self.tables],
            "figures": self.figures,
        }


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """An argument parser with the flags that every bench has."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    made.add_argument("--quick", action="store_true", help="fewer rounds; nothing is recorded")
    return made


def start(name: str, arguments: argparse.Namespace) -> Run:
    """The run that these parsed arguments ask for. From now on SIGTERM ends this process as an
    exception does, so that what it started is stopped too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else f"bench.{name}"
    command = " ".join(["python -m", module, *sys.argv[1:]])
    return Run(name=name, quick=bool(arguments.quick), command=command)
