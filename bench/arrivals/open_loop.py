"""Open-loop load: chats arrive as a Poisson process at a share of each system's capacity, whether
earlier ones have ended or not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.arrivals.requests import RequestFactory
from bench.harness import Cell, Run, median, quantile
from bench.harness.load import System, Work, WorkResult, poisson
from bench.peers.lineup import INEXACT, INEXACT_DRAFTS, OPENVINO, OURS, OURS_DRAFTS, rotated

MAX_TOKENS = 48
CAPACITY_SESSIONS = 16
EQUAL = f"80 % of the {OPENVINO}'s"
LATENCY_TAILS = {"TTFT": (0.95,), "ITL": (0.95, 0.99)}
"""Quantiles that are shown beside the median."""
_COMPARED = {"ttft_p50": ("TTFT", 0.5), "ttft_p95": ("TTFT", 0.95), "itl_p95": ("ITL", 0.95)}
"""What is compared with the best peer at the equal rate."""
_OURS = (OURS, OURS_DRAFTS, INEXACT, INEXACT_DRAFTS)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    num_requests: int
    """Of each load in each round."""
    num_capacity: int
    """Requests to measure the capacity with, in each round."""
    shares: tuple[float, ...]
    """Of each system's own capacity."""


@dataclass(slots=True)
class Loads:
    """What was measured. Rates in requests per second."""

    capacities: dict[str, list[float]] = field(default_factory=dict)
    """Of each round."""
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    """By load and system."""
    outcomes: dict[tuple[str, str], list[WorkResult]] = field(default_factory=dict)

    @property
    def capacity(self) -> dict[str, float]:
        """The median of rounds."""
        return {name: median(found) for name, found in self.capacities.items()}

    def latency(self, load: str, name: str) -> tuple[list[float], list[float]]:
        """All times to the first token, and all gaps between arrivals, ms."""
        answers = [a for outcome in self.outcomes[load, name] for a in outcome.answers]
        return [a.ttft_ms for a in answers], [gap for a in answers for gap in a.gaps_ms()]


async def measure(systems: Mapping[str, System], factory: RequestFactory, size: Size) -> Loads:
    """All loads, round by round, after a warm-up; another system begins each time."""
    loads = Loads()
    warm_up = Work(factory.chats([0.0] * 8, 8))
    for system in systems.values():
        await system.run(warm_up)
    for turn in range(size.rounds):
        full = Work(factory.chats([0.0] * size.num_capacity, MAX_TOKENS), CAPACITY_SESSIONS)
        for name in rotated(systems, turn):
            rate = (await systems[name].run(full)).requests_per_s
            loads.capacities.setdefault(name, []).append(rate)
            print(f"{name}: {rate:.2f} requests/s", file=sys.stderr)
    all_rates = _rates(loads.capacity, size.shares)
    loads.rates = {
        (load, name): rate for load, of in all_rates.items() for name, rate in of.items()
    }
    for turn in range(size.rounds):
        for load, rates in all_rates.items():
            texts = factory.texts(size.num_requests)
            for name in rotated(systems, turn):
                due_s = poisson(size.num_requests, rates[name], seed=turn)
                done = await systems[name].run(Work(factory.requests(texts, due_s, MAX_TOKENS)))
                loads.outcomes.setdefault((load, name), []).append(done)
            print(f"round {turn + 1} of {size.rounds}: {load}", file=sys.stderr)
    return loads


def _rates(
    capacity: Mapping[str, float], shares: tuple[float, ...]
) -> dict[str, Mapping[str, float]]:
    """Requests per second by load and system."""
    rates: dict[str, Mapping[str, float]] = {
        f"{share:.0%} of its own": {name: share * most for name, most in capacity.items()}
        for share in shares
    }
    return rates | {EQUAL: dict.fromkeys(capacity, 0.8 * capacity[OPENVINO])}


def report(run: Run, loads: Loads) -> None:
    """The table of latencies, and the capacities behind it."""
    columns = []
    for kind, tail in LATENCY_TAILS.items():
        columns += [f"n, {kind}", *(f"{kind} p{share:.0%}"[:-1] for share in (0.5, *tail))]
    title = "Latency of chats that arrive as a Poisson process, ms, by rate of arrival and system"
    table = run.table(title, "rate: share of capacity", "system", "requests/s", *columns)
    for (load, name), rate in loads.rates.items():
        cells: list[Cell] = []
        for kind, sample in zip(LATENCY_TAILS, loads.latency(load, name), strict=True):
            tail_cells = (table.quantile(sample, share) for share in LATENCY_TAILS[kind])
            cells += [len(sample), table.median(sample), *tail_cells]
            run.samples(f"{kind}, {load}, {name}", sample, unit="ms")
        table.add(load, name, rate, *cells)
    for name, found in loads.capacities.items():
        run.samples(f"capacity, {name}", found, unit="requests/s")
    run.figures.update(against_best_peer(loads))


def against_best_peer(loads: Loads) -> dict[str, dict[str, float]]:
    """Each of our systems' figures at the equal rate over the least of any peer's: below 1, no peer
    is as early. No entry without peers."""
    figures: dict[str, dict[str, float]] = {}
    for figure, (kind, share) in _COMPARED.items():
        at = list(LATENCY_TAILS).index(kind)
        found = {
            name: quantile(loads.latency(load, name)[at], share)
            for load, name in loads.outcomes
            if load == EQUAL
        }
        best = min((value for name, value in found.items() if name not in _OURS), default=None)
        if best:
            figures[f"{figure}_vs_best_peer"] = {
                name: round(value / best, 3) for name, value in found.items() if name in _OURS
            }
    return figures
