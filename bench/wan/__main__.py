"""Starts everything, measures, compares with the reference, reports."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import bench.wan
from bench.harness import Run, parser, start
from bench.harness.load import Request, Work
from bench.harness.replica import reference
from bench.wan import pair
from bench.wan.measure import Measured, measure
from bench.wan.plan import CORE, FULL, QUICK, Size, seed_of
from bench.wan.report import add_tables, keep_samples, keep_settings
from bench.wan.results import Results
from bench.wan.samples import Batch, messages_of
from bench.wan.testbed import RegionEngine, running_testbed
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.telemetry.logs import configure_logging

Truth = Mapping[tuple[int, float, int], tuple[int, ...]]
"""The reference's ids by round, temperature and number of the prompt."""


def main() -> int:
    core = "(a), (b) and (f) at four RTTs, 60 greedy and 30 sampled chats a cell, one at a time"
    flags = parser("wan", bench.wan.__doc__ or "", core=core)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument(
        "--pair",
        action="store_true",
        help="a slow target and a draft model of its family (bench.wan.pair); no --core",
    )
    arguments = flags.parse_args()
    if arguments.pair:
        return pair.main(arguments)
    run = start("wan", arguments)
    configure_logging("bench", "error")  # the reference's engine would log between the tables
    cores = os.sched_getaffinity(0)
    size = QUICK if run.quick else CORE if run.core else FULL
    measured = asyncio.run(_measure(size))
    os.sched_setaffinity(0, cores)
    print("the reference replies", file=sys.stderr)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    truth = _reference(vocabulary, size, measured.batches, len(cores))
    results = Results(measured.batches)
    keep_samples(run, results)
    keep_settings(run, size, measured)
    return _report(run, results, measured, truth)


async def _measure(size: Size) -> Measured:
    engine = RegionEngine(max_fixed_rows=size.max_fixed_rows)
    async with running_testbed(engine, size.schemes) as bed:
        return await measure(bed, size, 60 * size.minutes)


def _reference(vocabulary: Vocabulary, size: Size, batches: Sequence[Batch], threads: int) -> Truth:
    truth = {}
    for temperature in sorted({batch.cell.temperature for batch in batches}):
        asked = sorted({a for b in batches if b.cell.temperature == temperature for a in b.asked})
        prompts = {turn: size.prompts(turn) for turn, _ in asked}
        requests = [
            Request(
                tuple(vocabulary.encode_chat(messages_of(prompts[turn][number]))),
                size.max_tokens,
                seed=seed_of(turn, number),
            )
            for turn, number in asked
        ]
        replies = reference(vocabulary, Work((), temperature=temperature), requests, threads)
        for (turn, number), ids in zip(asked, replies, strict=True):
            truth[turn, temperature, number] = ids
    return truth


def _report(run: Run, results: Results, measured: Measured, truth: Truth) -> int:
    counts = {s.name: results.num_exact(s, truth) for s in results.schemes()}
    exact = {name: f"{right} of {count}" for name, (right, count) in counts.items()}
    add_tables(run, results, measured, exact)
    run.figures["exact"] = exact
    run.finish()
    return int(any(right != count for right, count in counts.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
