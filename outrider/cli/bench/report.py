"""Results of a load test: percentiles, throughput, errors, goodput. Pure.

Times count from a request's planned arrival. They include waiting in a generator that is late or
behind --max-concurrency; otherwise the slowest requests would hide each other (coordinated
omission).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from outrider.cli.columns import columns

MAX_GAPS: Final = 5_000_000
"""Inter-token times kept, 40 MB; those after them are not."""
_SHARES: Final = (0.5, 0.9, 0.95, 0.99)
GOALS: Final = ("ttft", "tpot", "e2e")
"""Times that --goodput can bound."""


@dataclass(slots=True)
class Reply:
    """One request as it went. Times in seconds on the test's clock, which starts with the test."""

    planned_s: float
    started_s: float = 0.0
    """When the generator came to it."""
    sent_s: float = 0.0
    shown_s: float | None = None
    """When the first text was shown, provisional text included."""
    text_s: list[float] = field(default_factory=list)
    """When final text came."""
    num_tokens: int = 0
    ended_s: float = 0.0
    error: str = ""
    """Reason; "": it went well."""


@dataclass(slots=True)
class Measured:
    """Results of all requests so far. Bounded: numbers only, and at most MAX_GAPS inter-token
    times."""

    num_sent: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    by_name: dict[str, array[float]] = field(default_factory=dict)
    """Milliseconds, by name of the quantity."""
    num_good: int = 0
    last_s: float = 0.0

    def add(self, reply: Reply, goals_ms: Mapping[str, float]) -> None:
        """A request has ended."""
        self.num_sent += 1
        self.last_s = max(self.last_s, reply.ended_s)
        self._note("generator late", reply.started_s - reply.planned_s)
        self._note("waited to be sent", reply.sent_s - reply.started_s)
        if reply.error:
            self.errors[reply.error] += 1
            return
        if not reply.text_s:
            self.errors["NO_TEXT"] += 1
            return
        self.num_tokens += reply.num_tokens
        found = _times(reply)
        for name, seconds in found.items():
            self._note(name, seconds)
        if reply.shown_s is not None:
            self._note("first shown", reply.shown_s - reply.planned_s)
        for before, after in zip(reply.text_s, reply.text_s[1:], strict=False):
            self._note("itl", after - before)
        # A reply of one token has no tpot, and meets any goal of it.
        self.num_good += all(
            found.get(name, 0.0) * 1e3 <= limit for name, limit in goals_ms.items()
        )

    @property
    def num_well(self) -> int:
        """Requests with a reply."""
        return self.num_sent - self.errors.total()

    def _note(self, name: str, seconds: float) -> None:
        values = self.by_name.setdefault(name, array("d"))
        if len(values) < MAX_GAPS:
            values.append(seconds * 1e3)


def _times(reply: Reply) -> dict[str, float]:
    found = {"ttft": reply.text_s[0] - reply.planned_s, "e2e": reply.ended_s - reply.planned_s}
    if reply.num_tokens > 1:
        found["tpot"] = (reply.text_s[-1] - reply.text_s[0]) / (reply.num_tokens - 1)
    return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least this share does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


_ROWS: Final = ("ttft", "first shown", "itl", "tpot", "e2e", "generator late", "waited to be sent")
_TITLES: Final = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "end to end"}


def as_dict(measured: Measured, goals_ms: Mapping[str, float]) -> dict[str, Any]:
    """The object that --json prints. Times in milliseconds."""
    seconds = max(measured.last_s, 1e-9)
    found: dict[str, Any] = {
        "requests": measured.num_sent,
        "well": measured.num_well,
        "errors": dict(measured.errors.most_common()),
        "seconds": round(measured.last_s, 3),
        "requests_per_s": round(measured.num_well / seconds, 3),
        "output_tokens": measured.num_tokens,
        "output_tokens_per_s": round(measured.num_tokens / seconds, 2),
    }
    for name in _ROWS:
        if values := sorted(measured.by_name.get(name, ())):
            row = {"n": len(values), "mean": sum(values) / len(values)}
            row |= {f"p{share * 100:g}": percentile(values, share) for share in _SHARES}
            found[f"{name.replace(' ', '_')}_ms"] = {
                key: round(value, 3) for key, value in row.items()
            }
    if goals_ms:
        found["goodput"] = {
            "goals_ms": dict(goals_ms),
            "requests": measured.num_good,
            "requests_per_s": round(measured.num_good / seconds, 3),
        }
    return found


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{told['requests']} requests in {told['seconds']:.1f} s, {told['well']} well"
    for reason, count in told["errors"].items():
        yield f"  {count} x {reason}"
    yield (
        f"{told['requests_per_s']:.2f} requests/s, {told['output_tokens_per_s']:.1f} tokens/s, "
        f"{told['output_tokens']} tokens"
    )
    if goodput := told.get("goodput"):
        goals = ", ".join(f"{name} {ms:g} ms" for name, ms in goodput["goals_ms"].items())
        share = goodput["requests"] / max(1, told["requests"])
        yield f"goodput {goodput['requests_per_s']:.2f} requests/s, {share:.0%} within {goals}"
    yield ""
    head = ("ms", "n", "mean", *(f"p{share * 100:g}" for share in _SHARES))
    rows = [
        (_TITLES.get(name, name), str(row["n"]), *(f"{row[key]:.1f}" for key in head[2:]))
        for name in _ROWS
        if (row := told.get(f"{name.replace(' ', '_')}_ms"))
    ]
    yield from columns([head, *rows], num_names=1)
