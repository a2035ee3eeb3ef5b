"""Taking samples, and keeping them in a record: raw while they are few, else as a histogram."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

MAX_RAW = 2000
"""Samples of one name that a record holds one by one."""
BUCKETS_PER_DECADE = 40
"""Bucket i holds 10**(i/40) to 10**((i+1)/40): 6 % wide."""
DIGITS = 4
"""Significant ones that are kept."""


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


def packed(values: Sequence[float], unit: str) -> dict[str, Any]:
    """The form that a record keeps: all values if they are few, else a summary and a histogram."""
    if len(values) <= MAX_RAW:
        return {"unit": unit, "n": len(values), "values": [rounded(value) for value in values]}
    counts = Counter(_bucket(value) for value in values)
    return {
        "unit": unit,
        "n": len(values),
        "mean": rounded(math.fsum(values) / len(values)),
        "lowest": rounded(min(values)),
        "highest": rounded(max(values)),
        "buckets_per_decade": BUCKETS_PER_DECADE,
        "counts": {name: counts[name] for name in sorted(counts)},
    }


def rounded(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _bucket(value: float) -> str:
    """The value's sign and its bucket's number: "+7" holds 1.50 to 1.58, "-7" -1.50 to -1.58, "+-7"
    0.668 to 0.708."""
    if not value:
        return "zero"
    number = math.floor(round(BUCKETS_PER_DECADE * math.log10(abs(value)), 9))
    return f"{'-' if value < 0 else '+'}{number}"
