"""Starts everything, measures, compares with the reference, reports."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from time import monotonic

import bench.wan
from bench.harness import Run, parser, start
from bench.systems.base import Request, Work
from bench.systems.replica import reference
from bench.wan import pair
from bench.wan.analysis import figures_of, model_of
from bench.wan.chats import messages_of
from bench.wan.draft_source import drafting
from bench.wan.measure import Links, Measured, measure
from bench.wan.plan import (
    CORE,
    CORE_MINUTES,
    FULL,
    FULL_MINUTES,
    PAIR_MINUTES,
    QUICK,
    Size,
    seed_of,
)
from bench.wan.results import Results
from bench.wan.samples import Batch
from bench.wan.tables import add_tables, keep_samples, keep_settings
from bench.wan.testbed import RegionEngine, running_testbed
from outrider.config import load
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.telemetry.logs import configure_logging
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterSettings

_ROLES = ("edge", "router", "inference")


def main() -> int:
    began = monotonic()
    arguments = _flags().parse_args()
    if arguments.pair:
        return pair.main(arguments)
    run = start("wan", arguments)
    configure_logging("bench", "error")  # the reference's engine would log between the tables
    cores = os.sched_getaffinity(0)
    size = QUICK if run.quick else CORE if run.core else FULL
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    measured = asyncio.run(_measure(arguments, vocabulary, size, began))
    os.sched_setaffinity(0, cores)
    print("the reference replies", file=sys.stderr)
    truth = _reference(vocabulary, size, measured.batches, len(cores))
    results = Results(measured.batches)
    keep_samples(run, results)
    keep_settings(run, size, _links(arguments), measured, arguments.set)
    return _report(run, results, measured, truth)


def _flags() -> argparse.ArgumentParser:
    core = "(a), (b) and (f) at four RTTs, 60 greedy and 30 sampled chats a cell, one at a time"
    flags = parser("wan", bench.wan.__doc__ or "", core=core)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument(
        "--pair",
        action="store_true",
        help="a slow target and a draft model of its family (bench.wan.pair); no --core",
    )
    flags.add_argument("--threads", type=int, default=1, help="threads of the region's engines")
    flags.add_argument(
        "--client-rtt-ms",
        type=float,
        default=10.0,
        help="round trip of the client's last mile, in every scheme",
    )
    flags.add_argument("--jitter-ms", type=float, default=0.0, help="per packet, at most, one way")
    flags.add_argument("--loss", type=float, default=0.0, help="share of QUIC's datagrams")
    flags.add_argument(
        "--minutes",
        type=float,
        help="no round begins that would end the run later than this "
        f"({CORE_MINUTES:g} with --core, {PAIR_MINUTES:g} with --pair, otherwise "
        f"{FULL_MINUTES:g})",
    )
    flags.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ROLE.KEY=VALUE",
        help="a setting of every service of a role",
    )
    return flags


async def _measure(
    arguments: argparse.Namespace, vocabulary: Vocabulary, size: Size, began: float
) -> Measured:
    settings = {
        role: [s.removeprefix(f"{role}.") for s in arguments.set if s.startswith(f"{role}.")]
        for role in _ROLES
    }
    engine = RegionEngine(threads=arguments.threads, max_fixed_rows=size.max_fixed_rows)
    waits = any(scheme.policy is not None for scheme in size.schemes)
    async with (
        running_testbed(engine, settings, size.schemes) as bed,
        drafting(_drafter(settings["edge"]) if waits else None, vocabulary) as sources,
    ):
        minutes = arguments.minutes or (CORE_MINUTES if arguments.core else FULL_MINUTES)
        limit_s = 60 * minutes - (monotonic() - began)
        return await measure(bed, vocabulary, size, _links(arguments), sources, limit_s)


def _links(arguments: argparse.Namespace) -> Links:
    return Links(arguments.jitter_ms, arguments.loss, arguments.client_rtt_ms)


def _drafter(settings: list[str]) -> DrafterSettings | None:
    """What an edge with these settings, KEY=VALUE, would start."""
    flags = {key: value for key, _, value in (text.partition("=") for text in settings)}
    fixed = {"log_level": "error", "trust": "chat"}
    config = load(EdgeConfig, "edge", flags={**fixed, **flags})
    draft = config.drafter.model
    return config.drafter_settings(DEFAULT_MODEL.name, draft) if draft != NO_DRAFT_MODEL else None


def _reference(
    vocabulary: Vocabulary, size: Size, batches: Sequence[Batch], threads: int
) -> dict[tuple[int, float, int], tuple[int, ...]]:
    """The ids of every reply that was asked for, by round, temperature and number of the
    prompt."""
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
        work = Work((), temperature=temperature)
        replies = reference(vocabulary, work, requests, threads)
        for (turn, number), ids in zip(asked, replies, strict=True):
            truth[turn, temperature, number] = ids
    return truth


def _report(
    run: Run,
    results: Results,
    measured: Measured,
    truth: dict[tuple[int, float, int], tuple[int, ...]],
) -> int:
    counts = {s.name: results.num_exact(s, truth) for s in results.schemes()}
    exact = {name: f"{right} of {count}" for name, (right, count) in counts.items()}
    model = model_of(results)
    add_tables(run, results, measured, model, exact)
    run.figures.update(figures_of(results, measured, model, exact))
    run.finish()
    return int(any(right != count for right, count in counts.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
