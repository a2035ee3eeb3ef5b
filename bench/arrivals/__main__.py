"""Runs both parts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

import bench.arrivals
from bench.arrivals import loads, prefill
from bench.arrivals.asks import Asks
from bench.contenders import tuning
from bench.contenders.lineup import (
    LLAMA_BEST,
    OURS,
    OURS_SPEC,
    PEER,
    PEER_SPEC,
    record_settings,
    start_all,
)
from bench.harness.figures import Run, parser, start
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

FULL = (OURS, OURS_SPEC, PEER, PEER_SPEC, LLAMA_BEST)
QUICK = (OURS_SPEC, PEER, LLAMA_BEST)
FULL_SIZE = loads.Size(rounds=1, num_requests=120, num_capacity=64, shares=(0.5, 0.8, 0.95))
QUICK_SIZE = loads.Size(rounds=1, num_requests=12, num_capacity=16, shares=(0.5, 0.95))


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
    asks = Asks(vocabulary)
    async with contextlib.AsyncExitStack() as stack:
        names = QUICK if run.quick else FULL
        setups = tuning.chosen("latency", arguments.threads)
        contenders = await start_all(stack, vocabulary, names, setups)
        record_settings(run, contenders)
        under_load = await loads.measure(contenders, asks, QUICK_SIZE if run.quick else FULL_SIZE)
        loads.report(run, under_load)
        gaps = await prefill.measure(contenders, asks, rounds=1 if run.quick else 4)
        prefill.report(run, gaps)


if __name__ == "__main__":
    sys.exit(main())
