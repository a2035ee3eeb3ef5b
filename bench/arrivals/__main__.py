"""Runs both parts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

import bench.arrivals
from bench import tuning
from bench.arrivals import open_loop, prefill
from bench.arrivals.requests import RequestFactory
from bench.harness import Run, parser, start
from bench.systems.lineup import (
    LLAMACPP_Q4_0,
    OPENVINO,
    OPENVINO_LOOKUP,
    OURS,
    OURS_DRAFTS,
    record_settings,
    start_all,
)
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

FULL = (OURS, OURS_DRAFTS, OPENVINO, OPENVINO_LOOKUP, LLAMACPP_Q4_0)
QUICK = (OURS_DRAFTS, OPENVINO, LLAMACPP_Q4_0)
FULL_SIZE = open_loop.Size(rounds=1, num_requests=120, num_capacity=64, shares=(0.5, 0.8, 0.95))
QUICK_SIZE = open_loop.Size(rounds=1, num_requests=12, num_capacity=16, shares=(0.5, 0.95))


def main() -> int:
    flags = parser("arrivals", bench.arrivals.__doc__ or "")
    flags.add_argument("--threads", type=int, help="of every engine; default: as tuned")
    arguments = flags.parse_args()
    run = start("arrivals", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    asyncio.run(_measure(run, arguments, vocabulary))
    run.finish()
    return 0


async def _measure(run: Run, arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    factory = RequestFactory(vocabulary)
    async with contextlib.AsyncExitStack() as stack:
        names = QUICK if run.quick else FULL
        setups = tuning.chosen("latency", arguments.threads)
        systems = await start_all(stack, vocabulary, names, setups)
        record_settings(run, systems)
        under_load = await open_loop.measure(
            systems, factory, QUICK_SIZE if run.quick else FULL_SIZE
        )
        open_loop.report(run, under_load)
        gaps = await prefill.measure(systems, factory, rounds=1 if run.quick else 4)
        prefill.report(run, gaps)


if __name__ == "__main__":
    sys.exit(main())
