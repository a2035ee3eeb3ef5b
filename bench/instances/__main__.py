"""Runs the comparison."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from dataclasses import replace

import bench.instances
from bench.contenders.lineup import rotated
from bench.contenders.replica import Replica
from bench.contenders.replica import replica as start_replica
from bench.contenders.work import Outcome, Work
from bench.harness.figures import Run, median, parser, start
from bench.inference.plan import Cell, Prompts
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
    flags = parser("instances", bench.instances.__doc__ or "")
    flags.add_argument("--cores", type=int, default=2, help="threads of all instances together")
    flags.add_argument("--instances", type=int, default=2, help="instances that share them")
    flags.add_argument("--rounds", type=int, help="default 5, quick 1")
    return flags


Outcomes = dict[int, list[dict[str, Outcome]]]
"""By number of sessions, round by round, what each contender made of the same work."""


async def _compete(
    run: Run, vocabulary: Vocabulary, shapes: list[tuple[int, int]], rounds: int
) -> Outcomes:
    prompts, outcomes = Prompts(vocabulary), Outcomes()
    async with contextlib.AsyncExitStack() as stack:
        contenders: dict[str, Replica] = {}
        for instances, threads in shapes:
            settings = {"instances": instances, "prepare_first": "true"}
            made = start_replica(vocabulary, threads=threads, speculate=False, settings=settings)
            name = _name(instances, threads)
            contenders[name] = await stack.enter_async_context(made)
            run.setting(name, **contenders[name].settings)
        await _measure(contenders, prompts.work(WARM_UP), 0)
        for turn in range(rounds):
            for sessions in SESSIONS:
                work = replace(prompts.work(Cell("chat", 0.0, sessions)), ignore_eos=True)
                measured = await _measure(contenders, work, turn)
                outcomes.setdefault(sessions, []).append(measured)
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return outcomes


def _name(instances: int, threads: int) -> str:
    return f"{instances} x {threads} threads" if threads > 1 else f"{instances} x 1 thread"


async def _measure(contenders: dict[str, Replica], work: Work, turn: int) -> dict[str, Outcome]:
    """The same work for one contender after the other."""
    return {name: await contenders[name].run(work) for name in rotated(contenders, turn)}


def report(run: Run, outcomes: Outcomes) -> None:
    """Medians over the rounds; ratios are of one round each."""
    alone, several = outcomes[SESSIONS[0]][0]
    columns = ("sessions", "n", alone, several, "ratio")
    table = run.table("Tokens per second, greedy, drafts off", *columns)
    waits = run.table("Time to first token, all asked at once, ms", *columns)
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


def _ttft_ms(outcome: Outcome) -> float:
    return median([answer.ttft_ms for answer in outcome.answers])


if __name__ == "__main__":
    sys.exit(main())
