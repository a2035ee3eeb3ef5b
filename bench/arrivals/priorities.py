"""HIGH requests among LOW ones: the time to their first token while LOW ones arrive at 95 % of
capacity, over that of the same questions asked alone; the LOW replies are compared with the
reference. HIGH requests come on top, one a second, so LOW ones wait longer and longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from dataclasses import dataclass, field

from bench.arrivals.open_loop import capacity_work
from bench.arrivals.requests import RequestFactory, every, poisson
from bench.harness import Run, parser, pooled, quantile, start
from bench.systems.base import HIGH, LOW, Answer, Request, Setup, System, Work
from bench.systems.lineup import OURS_DRAFTS, record_settings, start_all
from bench.systems.replica import reference
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

LOW_SHARE = 0.95
"""Of the replica's capacity; the HIGH requests come on top."""
LOW_TOKENS = 48
HIGH_TOKENS = 8
HIGH_INTERVAL_S = 1.0
HIGH_BEGIN_S = 3.0
"""By then the LOW sessions have filled the replica."""


@dataclass(slots=True)
class Mixed:
    """What was measured; TTFT in ms, one list per run. Those alone are before and after each run
    under load: a shared machine is not as fast all the time."""

    alone_ms: list[list[float]] = field(default_factory=list)
    loaded_ms: list[list[float]] = field(default_factory=list)
    low: list[tuple[Request, Answer]] = field(default_factory=list)

    def ratio(self) -> float:
        """p95 under load over p95 alone."""
        loaded, alone = (pooled(part) for part in (self.loaded_ms, self.alone_ms))
        return quantile(loaded, 0.95) / quantile(alone, 0.95)


async def measure(
    system: System, factory: RequestFactory, capacity: float, *, rounds: int, num_low: int
) -> Mixed:
    """`capacity` in chats of LOW_TOKENS tokens per second. HIGH questions are the same ones in
    every round, as they are before and after it: a slow machine takes more of them in a round."""
    mixed = Mixed()
    questions: list[str] = []
    for turn in range(rounds):
        low_due_s = poisson(num_low, LOW_SHARE * capacity, seed=turn)
        due_s = every(HIGH_INTERVAL_S, HIGH_BEGIN_S, low_due_s[-1])
        if not due_s:
            raise RuntimeError("the LOW requests were over before the first HIGH one: ask for more")
        questions += factory.texts(max(0, len(due_s) - len(questions)))
        texts = questions[: len(due_s)]
        mixed.alone_ms.append(await _alone(system, factory, texts))
        low = factory.requests(factory.texts(num_low), low_due_s, LOW_TOKENS, LOW)
        high = factory.requests(texts, due_s, HIGH_TOKENS, HIGH)
        done = await system.run(Work((*low, *high)))
        mixed.loaded_ms.append([answer.ttft_ms for answer in done.answers[num_low:]])
        mixed.low += zip(low, done.answers[:num_low], strict=True)
        mixed.alone_ms.append(await _alone(system, factory, texts))
        print(f"round {turn + 1} of {rounds}: priorities", file=sys.stderr)
    return mixed


async def _alone(system: System, factory: RequestFactory, texts: list[str]) -> list[float]:
    """TTFT of HIGH requests one after the other."""
    requests = factory.requests(texts, [0.0] * len(texts), HIGH_TOKENS, HIGH)
    done = await system.run(Work(requests, concurrency=1))
    return [answer.ttft_ms for answer in done.answers]


def report(run: Run, mixed: Mixed, truth: list[tuple[int, ...]]) -> None:
    """`truth`: the reference's replies to the first LOW requests."""
    title = (
        "Time to first token of HIGH priority requests, ms: alone, and while LOW ones arrive at "
        f"{LOW_SHARE:.0%} of the replica's capacity"
    )
    table = run.table(title, "LOW requests", "n", "p50", "p95")
    for name, parts in (("none", mixed.alone_ms), (f"{LOW_SHARE:.0%}", mixed.loaded_ms)):
        sample = pooled(parts)
        table.add(name, len(sample), table.median(sample), table.quantile(sample, 0.95))
        run.samples(f"TTFT of HIGH, LOW load {name}", sample, unit="ms")
    equal = sum(a.ids == ids for (_, a), ids in zip(mixed.low, truth, strict=False))
    low_ms = [answer.ttft_ms for _, answer in mixed.low]
    run.samples("TTFT of LOW", low_ms, unit="ms")
    run.figures["high_ttft_ratio"] = round(mixed.ratio(), 3)
    run.figures["high_requests"] = sum(map(len, mixed.loaded_ms))
    run.figures["low_ttft_p95_ms"] = round(quantile(low_ms, 0.95), 1)
    run.figures["low_exact"] = f"{equal} of {len(truth)}"


def main() -> int:
    flags = parser("arrivals.priorities", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    run = start("priorities", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    mixed = asyncio.run(_measured(run, arguments, vocabulary))
    checked = [request for request, _ in mixed.low[: 6 if run.quick else 60]]
    truth = reference(vocabulary, Work(()), checked, arguments.threads)
    report(run, mixed, truth)
    run.finish()
    return 0 if run.figures["low_exact"] == f"{len(truth)} of {len(truth)}" else 1


async def _measured(run: Run, arguments: argparse.Namespace, vocabulary: Vocabulary) -> Mixed:
    factory = RequestFactory(vocabulary)
    async with contextlib.AsyncExitStack() as stack:
        setups = {OURS_DRAFTS: Setup(arguments.threads)}
        systems = await start_all(stack, vocabulary, (OURS_DRAFTS,), setups)
        record_settings(run, systems)
        ours = systems[OURS_DRAFTS]
        full = await ours.run(capacity_work(factory, 16 if arguments.quick else 64))
        rounds, num_low = (1, 40) if arguments.quick else (6, 160)
        return await measure(ours, factory, full.requests_per_s, rounds=rounds, num_low=num_low)


if __name__ == "__main__":
    sys.exit(main())
