"""Tools of every benchmark: a run and its record, tables, statistics, prompts, started meshes.

A benchmark is one file (or folder) with a `main` that makes a `parser`, calls `start`, fills
tables, samples and figures of the `Run`, and ends with `run.finish()`; and one row in `benches.py`.
"""

from bench.harness.record import RESULTS, Figure, Run, parser, start
from bench.harness.samples import time_us
from bench.harness.statistics import (
    mean_ratio,
    median,
    median_interval,
    pooled,
    quantile,
    share_interval,
    told_quantile,
)
from bench.harness.tables import TOO_FEW, Cell, Table, interval, show, spread

__all__ = [
    "RESULTS",
    "TOO_FEW",
    "Cell",
    "Figure",
    "Run",
    "Table",
    "interval",
    "mean_ratio",
    "median",
    "median_interval",
    "parser",
    "pooled",
    "quantile",
    "share_interval",
    "show",
    "spread",
    "start",
    "time_us",
    "told_quantile",
]
