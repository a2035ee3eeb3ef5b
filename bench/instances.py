"""One engine on all cores against several that share them: tokens per second by sessions.

One replica each, alternating on the same chats: greedy, drafts off, replies of full length, so
both compute the same tokens. Their replies have to be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from dataclasses import replace

from bench.harness import Run, median, parser, start
from bench.inference import Cell, Prompts
from bench.systems.base import Work, WorkResult
from bench.systems.lineup import rotated
from bench.systems.replica import Replica
from bench.systems.replica import replica as start_replica
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

SESSIONS = (1, 4, 16, 32)
WARM_UP = Cell("chat", 0.0, 16)


def main() -> int:
    arguments = _flags().parse_args()
    run = start("instances", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    shapes = [(1, arguments.cores), (arguments.instances, arguments.cores // arguments.instances)]
    rounds = arguments.rounds or (1 if run.quick else 5)
    outcomes = asyncio.run(_compete(run, vocabulary, shapes, rounds))
    report(run, outcomes)
    run.finish()
    return 0 if run.figures["exact"] else 1


def _flags() -> argparse.ArgumentParser:
    flags = parser("instances", __doc__ or "")
    flags.add_argument("--cores", type=int, default=2, help="threads of all instances together")
    flags.add_argument("--instances", type=int, default=2, help="instances that share them")
    flags.add_argument("--rounds", type=int, help="default 5, quick 1")
    return flags


Outcomes = dict[int, list[dict[str, WorkResult]]]
"""By number of sessions, round by round, what each system made of the same work."""


async def _compete(
    run: Run, vocabulary: Vocabulary, shapes: list[tuple[int, int]], rounds: int
) -> Outcomes:
    prompts, outcomes = Prompts(vocabulary), Outcomes()
    async with contextlib.AsyncExitStack() as stack:
        systems: dict[str, Replica] = {}
        for instances, threads in shapes:
            settings = {"instances": instances, "prepare_first": "true"}
            made = start_replica(vocabulary, threads=threads, speculate=False, settings=settings)
            name = _name(instances, threads)
            systems[name] = await stack.enter_async_context(made)
            run.setting(name, **systems[name].settings)
        await _measure(systems, prompts.work(WARM_UP), 0)
        for turn in range(rounds):
            for sessions in SESSIONS:
                work = replace(prompts.work(Cell("chat", 0.0, sessions)), ignore_eos=True)
                measured = await _measure(systems, work, turn)
                outcomes.setdefault(sessions, []).append(measured)
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return outcomes


def _name(instances: int, threads: int) -> str:
    return f"{instances} x {threads} threads" if threads > 1 else f"{instances} x 1 thread"


async def _measure(systems: dict[str, Replica], work: Work, turn: int) -> dict[str, WorkResult]:
    """The same work for one system after the other."""
    return {name: await systems[name].run(work) for name in rotated(systems, turn)}


def report(run: Run, outcomes: Outcomes) -> None:
    """Medians over the rounds; ratios are of one round each."""
    alone, several = outcomes[SESSIONS[0]][0]
    columns = ("chats at once", "n", alone, several, "ratio")
    table = run.table(
        "Throughput, tokens per second: one engine with all threads against several that share "
        "them",
        *columns,
    )
    waits = run.table(
        "Time to first token when all are asked at once, ms: one engine against several", *columns
    )
    for one_table in (table, waits):
        one_table.note("n: rounds. A round's time to first token is the median of its sessions.")
    speedups = {}
    for sessions, rounds in outcomes.items():
        one, other = ([r[name].tokens_per_s for r in rounds] for name in (alone, several))
        ratios = [b / a for a, b in zip(one, other, strict=True)]
        speedups[str(sessions)] = round(median(ratios), 3)
        table.add(sessions, len(rounds), *(table.median(s) for s in (one, other, ratios)))
        first, second = ([_ttft_ms(r[name]) for r in rounds] for name in (alone, several))
        ttft_ratios = [b / a for a, b in zip(first, second, strict=True)]
        waits.add(sessions, len(rounds), *(waits.median(s) for s in (first, second, ttft_ratios)))
        for name, speeds, waited in ((alone, one, first), (several, other, second)):
            run.samples(f"tokens/s, {name}, {sessions} sessions", speeds, unit="tokens/s")
            run.samples(f"TTFT, {name}, {sessions} sessions", waited, unit="ms")
    works = [measured for rounds in outcomes.values() for measured in rounds]
    run.figures["instances_speedup"] = speedups
    run.figures["exact"] = all(w[alone].replies == w[several].replies for w in works)


def _ttft_ms(outcome: WorkResult) -> float:
    return median([answer.ttft_ms for answer in outcome.answers])


if __name__ == "__main__":
    sys.exit(main())
