"""Tables of a run, for a terminal and in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from bench.harness.statistics import (
    MIN_FOR_INTERVAL,
    mean_ratio,
    median,
    median_interval,
    num_needed,
    told_quantile,
)

Cell: TypeAlias = str | int | float

TOO_FEW = "\N{EN DASH}"
FEW_SAMPLES = (
    f"{TOO_FEW}: too few samples. A quantile is printed if five samples or more lie beyond it: p95 "
    f"from n = {num_needed(0.95)} on, p99 from {num_needed(0.99)}."
)
INTERVALS = "In brackets: the 95 % interval of the median."
RANGES = f"In brackets, where n is below {MIN_FOR_INTERVAL}: lowest to highest."
_NUMBER = re.compile(rf"{TOO_FEW}|-?[\d,.]+( \(-?[\d,.]+ to (-?[\d,.]+|inf)\))?")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one table; floats are shown with three significant digits."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences that stand under the table."""

    def add(self, *cells: Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def note(self, sentence: str) -> None:
        """Have it stand under the table, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def quantile(self, samples: Sequence[float], share: float) -> Cell:
        """The cell of a quantile; a dash, and a note under the table, for too few samples."""
        told = told_quantile(samples, share)
        if told is None:
            self.note(FEW_SAMPLES)
            return TOO_FEW
        return told

    def median(self, samples: Sequence[float]) -> Cell:
        """The cell of a median with its interval; one sample alone, and a dash for none."""
        if len(samples) < 2:
            return samples[0] if samples else TOO_FEW
        self.note(INTERVALS if len(samples) >= MIN_FOR_INTERVAL else RANGES)
        return interval(median(samples), *median_interval(samples))

    def mean_ratio(self, ratios: Sequence[float]) -> Cell:
        """The cell of a geometric mean with its 95 % interval; a dash for no ratios."""
        if not ratios:
            return TOO_FEW
        self.note("Ratios: geometric mean, in brackets its 95 % interval (Student's t).")
        return interval(*mean_ratio(ratios))

    def markdown(self) -> str:
        """The table in Markdown, numbers right-aligned, and its notes."""
        numeric = [
            bool(self.rows) and all(_is_number(row[at]) for row in self.rows)
            for at in range(len(self.columns))
        ]
        rules = ["---:" if right else "---" for right in numeric]
        lines = [self.columns, rules, *([show(cell) for cell in row] for row in self.rows)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return "\n\n".join([table, *([" ".join(self.notes)] if self.notes else [])])

    def plain(self) -> str:
        """The table for a terminal."""
        cells = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(self.columns))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([self.title, *(line.rstrip() for line in lines), *self.notes])


def interval(middle: float, low: float, high: float) -> str:
    """Text of a figure with its interval."""
    return f"{show(middle)} ({show(low)} to {show(high)})"


def spread(values: Sequence[float]) -> Cell:
    """Mean, lowest and highest; the value itself, of one alone."""
    if len(values) == 1:
        return float(values[0])
    return interval(fmean(values), min(values), max(values))


def show(cell: Cell) -> str:
    """A cell as text."""
    if not isinstance(cell, float):
        return str(cell)
    if cell == 0 or not math.isfinite(cell):
        return f"{cell:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(cell))))
    return f"{cell:,.{decimals}f}"


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or _NUMBER.fullmatch(cell) is not None
