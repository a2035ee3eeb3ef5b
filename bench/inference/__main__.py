"""Runs the comparison."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Mapping

import bench.inference
from bench.contenders import tuning
from bench.contenders.lineup import record_settings, rotated, start_all
from bench.contenders.replica import Replica
from bench.contenders.work import Contender, Outcome, Work
from bench.harness.figures import Run, parser, start
from bench.inference import plan
from bench.inference.plan import Cell, Prompts
from bench.inference.report import Outcomes, report
from bench.workload.supply import KINDS
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

OVERHEAD_SESSIONS = 16


def main() -> int:
    arguments = _flags().parse_args()
    run = start("inference", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    report(run, asyncio.run(_compete(run, arguments, vocabulary)))
    run.finish()
    return 0 if run.figures["exact"] else 1


def _flags() -> argparse.ArgumentParser:
    core = f"chats alone, greedy, {plan.CORE_ROUNDS} rounds at 1, 8 and 32 sessions"
    flags = parser("inference", bench.inference.__doc__ or "", core=core)
    flags.add_argument("--threads", type=int, help="of every engine; default: as tuned")
    flags.add_argument("--rounds", type=int, help=f"of every kind; default {plan.ROUNDS}, quick 1")
    flags.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    flags.add_argument("--temperatures", nargs="+", type=float, default=plan.TEMPERATURES)
    flags.add_argument("--sessions", nargs="+", type=int, default=plan.CONCURRENCIES)
    return flags


async def _compete(run: Run, arguments: argparse.Namespace, vocabulary: Vocabulary) -> Outcomes:
    rounds = plan.rounds(arguments)
    outcomes = Outcomes()
    prompts = Prompts(vocabulary, plan.QUICK_REQUESTS if arguments.quick else plan.MIN_REQUESTS)
    async with contextlib.AsyncExitStack() as stack:
        names = plan.lineup(arguments)
        setups = tuning.chosen("throughput", arguments.threads)
        contenders = await start_all(stack, vocabulary, names, setups)
        record_settings(run, contenders)
        warm_up = prompts.work(Cell("chat", 0.0, 8))
        for contender in contenders.values():
            await contender.run(warm_up)
        for turn, cells in enumerate(rounds):
            for cell in cells:
                measured = await _measure(contenders, cell, prompts.work(cell), turn, outcomes)
                outcomes.by_round[turn, cell] = measured
                print(f"round {turn + 1} of {len(rounds)}: {cell}", file=sys.stderr)
    return outcomes


async def _measure(
    contenders: Mapping[str, Contender], cell: Cell, work: Work, turn: int, outcomes: Outcomes
) -> dict[str, Outcome]:
    """The same work for one contender after the other."""
    measured = {}
    for name in rotated(contenders, turn):
        contender = contenders[name]
        if not plan.takes_part(name, cell):
            continue
        if cell.concurrency != OVERHEAD_SESSIONS or not isinstance(contender, Replica):
            measured[name] = await contender.run(work)
            continue
        ticks, ms = await contender.tick_overhead()
        measured[name] = await contender.run(work)
        more_ticks, more_ms = await contender.tick_overhead()
        overhead_ms = (more_ms - ms) / (more_ticks - ticks)
        outcomes.overhead_ms.setdefault(name, []).append(overhead_ms)
    return measured


if __name__ == "__main__":
    sys.exit(main())
