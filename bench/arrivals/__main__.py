"""Runs both parts."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import bench.arrivals
from bench import tuning
from bench.arrivals import open_loop, prefill
from bench.arrivals.requests import RequestFactory
from bench.harness import Run, parser, start
from bench.peers.lineup import (
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
FULL_SIZE = open_loop.Size(rounds=3, num_requests=60, num_capacity=48, shares=(0.5, 0.8, 0.95))
QUICK_SIZE = open_loop.Size(rounds=1, num_requests=12, num_capacity=16, shares=(0.5, 0.95))


def main() -> int:
    run = start("arrivals", parser("arrivals", bench.arrivals.__doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    asyncio.run(_measure(run, vocabulary))
    run.finish()
    return 0


async def _measure(run: Run, vocabulary: Vocabulary) -> None:
    factory = RequestFactory(vocabulary)
    async with contextlib.AsyncExitStack() as stack:
        names = QUICK if run.quick else FULL
        setups = tuning.chosen("latency", must_be_recorded=not run.quick)
        systems = await start_all(stack, vocabulary, names, setups)
        under_load = await open_loop.measure(
            systems, factory, QUICK_SIZE if run.quick else FULL_SIZE
        )
        open_loop.report(run, under_load)
        gaps = await prefill.measure(systems, factory, rounds=1 if run.quick else 4)
        prefill.report(run, gaps)
        record_settings(run, systems)


if __name__ == "__main__":
    sys.exit(main())
