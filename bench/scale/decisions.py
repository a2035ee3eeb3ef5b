"""How long a router takes to decide and to read a report: distributions that were measured.

    python -m bench.scale.decisions

measures it here and records it; the simulator draws from the last record. It runs short fleets of
the study's own sizes, whose routers are timed while they work: the service's registry, prefix index
and placement, with so many replicas, reports and cached prompts to think of. The time is CPU time
of the thread, which other work on the machine disturbs least. Decisions during the fleet's warm-up
are left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import RESULTS, median, parser, quantile, start
from bench.scale.demand import Ask
from bench.scale.routers import Report, Router, Site
from outrider.errors import OutriderError

SHARES = tuple(number / 100 for number in range(1, 100, 2))
"""Quantiles that are recorded, and drawn with equal chances."""


@dataclass(frozen=True, slots=True)
class RouterTimes:
    """Milliseconds of a router's one thread, for a fleet of some size."""

    decision_ms: Sequence[float]
    """Times at SHARES: to hash a prompt, look its blocks up, choose a replica and note it."""
    report_ms: float
    """Mean time to take in what one replica says once. Reading it off the wire is not in it."""

    def draw_ms(self, chance: float) -> float:
        """Of one decision; `chance`, 0 to 1, decides where in the distribution it falls."""
        return self.decision_ms[int(chance * len(self.decision_ms))]


def recorded(num_replicas: int, results: Path = RESULTS) -> RouterTimes:
    """Of the smallest recorded fleet with at least so many replicas, or else the largest. Raises
    FileNotFoundError."""
    figures = json.loads((results / "decisions.json").read_text(encoding="utf-8"))["figures"]
    sizes = sorted(map(int, figures["decision_ms"]))
    size = str(next((size for size in sizes if size >= num_replicas), sizes[-1]))
    return RouterTimes(figures["decision_ms"][size], figures["report_ms"][size])


@dataclass(slots=True)
class TimingLog:
    """Milliseconds of CPU time, from all routers of a fleet."""

    after_s: float
    """From when on they count, on the fleet's clock."""
    decisions: list[float] = field(default_factory=list)
    reports: list[float] = field(default_factory=list)
    """One sample for each batch of reports: its time over the replicas in it."""


class TimedRouter:
    """A router that is timed while it works. Implements routing.base.Router."""

    def __init__(self, router: Router, timings: TimingLog) -> None:
        self._router = router
        self._timings = timings

    def connect(self, site: Site, now: float) -> None:
        self._router.connect(site, now)

    def lose(self, name: str, now: float) -> None:
        self._router.lose(name, now)

    def report(self, reports: Sequence[Report], now: float) -> None:
        begin = time.thread_time_ns()
        self._router.report(reports, now)
        if reports and now >= self._timings.after_s:
            took_ms = (time.thread_time_ns() - begin) / 1e6
            self._timings.reports.append(took_ms / len(reports))

    def place(self, ask: Ask, now: float) -> str | None:
        begin = time.thread_time_ns()
        name = self._router.place(ask, now)
        if now >= self._timings.after_s:
            self._timings.decisions.append((time.thread_time_ns() - begin) / 1e6)
        return name

    def wake(self, now: float) -> Iterable[tuple[Ask, str | OutriderError]]:
        return self._router.wake(now)

    def release(self, ask: Ask, now: float) -> None:
        self._router.release(ask, now)


def main() -> int:
    # The study draws from what is measured here, so it is not needed to import this module.
    from bench.scale.study import NUM_REGIONS, time_routers

    flags = parser("scale.decisions", __doc__ or "")
    flags.add_argument("--max-replicas", type=int, default=1000, help="largest fleet")
    arguments = flags.parse_args()
    run = start("decisions", arguments)
    run.command = run.command.replace("bench.decisions", "bench.scale.decisions")
    most = 10 if run.quick else arguments.max_replicas
    table = run.table(
        "CPU time of a router's thread to place one request, and to read one replica's report, ms",
        "replicas",
        "regions",
        "requests placed",
        "p50",
        "p99",
        "mean",
        "report, mean",
    )
    decision_ms: dict[str, list[float]] = {}
    report_ms: dict[str, float] = {}
    for size, regions in NUM_REGIONS.items():
        if size > most:
            continue
        found = time_routers(size)
        decision_ms[str(size)] = [round(quantile(found.decisions, share), 4) for share in SHARES]
        report_ms[str(size)] = round(sum(found.reports) / len(found.reports), 4)
        table.add(
            size,
            regions,
            len(found.decisions),
            median(found.decisions),
            table.quantile(found.decisions, 0.99),
            sum(found.decisions) / len(found.decisions),
            report_ms[str(size)],
        )
        run.samples(f"decisions, {size} replicas", found.decisions, unit="ms")
        print(f"{size} replicas timed", file=sys.stderr)
    run.figures |= {"decision_ms": decision_ms, "report_ms": report_ms}
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
