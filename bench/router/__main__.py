"""What a router costs (see the package)."""

from __future__ import annotations

import argparse
import asyncio
from statistics import fmean

from bench.harness import Run, median, parser, quantile, start
from bench.harness.local_mesh import local_mesh
from bench.router import decisions, hop, loop_lag
from bench.router.decisions import DecisionTimings, Size
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary

SIZES = (Size(64, 10_000), Size(1000, 100_000))
QUICK = (Size(8, 200), Size(64, 2000))


def decided(run: Run) -> None:
    """Decisions by size."""
    table = run.table(
        "Time to place a prompt of 1,000 tokens, 960 of them cached on some replica, ms",
        "replicas x known prefixes",
        "part",
        "n",
        "mean",
        "p50",
        "p99",
    )
    memory = run.table(
        "Memory of the router's prefix index",
        "replicas x known prefixes",
        "blocks",
        "bytes per block",
    )
    means: dict[str, float] = {}
    p99s: dict[str, float] = {}
    for size in QUICK if run.quick else SIZES:
        timings = decisions.measure(size, 200 if run.quick else 2000)
        for part, times in _parts(timings).items():
            p50, p99 = table.median(times), table.quantile(times, 0.99)
            table.add(str(size), part, len(times), fmean(times), p50, p99)
            run.samples(f"{part}, {size}", times, unit="ms")
        memory.add(str(size), timings.num_blocks, round(timings.bytes_per_block))
        means[str(size)] = round(fmean(timings.decide), 4)
        p99s[str(size)] = round(quantile(timings.decide, 0.99), 4)
    run.figures["decision_ms_mean"], run.figures["decision_ms_p99"] = means, p99s


def _parts(timings: DecisionTimings) -> dict[str, list[float]]:
    return {
        "decision, prompt not seen before": timings.decide,
        "decision, prompt seen lately": timings.again,
        "of it: look-up in the prefix index": timings.match,
        "noting it afterwards": timings.put,
    }


def hopped(run: Run) -> None:
    """A router between client and replica."""
    table = run.table(
        "Time to first token with and without a router in between, ms: loopback, fake engine",
        "way",
        "n",
        "p50",
        "p95",
        "p99",
    )
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    with local_mesh(engine="fake", regions="us-east") as mesh:
        pairs = 100 if run.quick else 1000
        direct, routed = asyncio.run(hop.added_ms(mesh, vocabulary, pairs))
        per_token_us = asyncio.run(hop.relay_us(mesh, vocabulary, 2 if run.quick else 8))
    added = [b - a for a, b in zip(direct, routed, strict=True)]
    for way, times in (("straight", direct), ("through the router", routed), ("added", added)):
        tail = (table.quantile(times, share) for share in (0.95, 0.99))
        table.add(way, len(times), table.median(times), *tail)
        run.samples(f"hop, {way}", times, unit="ms")
    run.figures["hop_ms_p50"] = round(median(added), 3)
    run.figures["relay_us_per_token"] = round(median(per_token_us), 1)
    costs = run.table("CPU time of a router to relay a token, us", "n", "CPU time per token")
    costs.add(len(per_token_us), costs.median(per_token_us))
    run.samples("relaying a token", per_token_us, unit="us")


def lagged(run: Run) -> None:
    """Long prompts and the event loop."""
    table = run.table(
        "Event loop lag of a router while prompts of 100,000 tokens arrive, ms",
        "prompts per second",
        "n",
        "p50",
        "p99",
        "max",
    )
    per_s, count = 5.0, 20 if run.quick else 100
    late, answered = asyncio.run(loop_lag.measure(per_s, count))
    if answered != count:
        raise RuntimeError(f"only {answered} of {count} sessions were answered")
    table.add(per_s, len(late), table.median(late), table.quantile(late, 0.99), max(late))
    run.samples("loop lag", late, unit="ms")
    run.figures["loop_lag_ms_p99"] = round(quantile(late, 0.99), 3)


def main() -> int:
    made = parser("router", __doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    run = start("router", made.parse_args())
    decided(run)
    hopped(run)
    lagged(run)
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
