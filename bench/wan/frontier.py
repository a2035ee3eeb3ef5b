"""What provisional text costs and brings, by how bold it is.

An edge per setting, all of them at the same region, is asked the same chats in turns, one at a
time: how much of a reply stands on screen before it is final, and how much is taken back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from bench.harness.figures import Run, median, parser, start
from bench.harness.prompts import interleaved, load_prompts
from bench.wan.asking import ask_client, messages_of, sampling_of
from bench.wan.machines.bed import HOST, Bed, RegionEngine, running_bed
from bench.wan.plan import KINDS
from bench.wan.relay.lane import Conditions
from bench.wan.samples import Sample
from outrider.client import Client, connect
from outrider.telemetry.logs import configure_logging

SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "theta 0.3": {"theta": 0.3},
    "theta 0.4": {"theta": 0.4},
    "theta 0.5": {},
    "theta 0.6": {"theta": 0.6},
    "theta 0.7": {"theta": 0.7},
    "theta 0.5, every rewrite at its time": {"rewrite_interval_ms": 0.0},
    "theta 0.5, no two rewrites close together": {"rewrite_burst": 1},
    "theta 0.3, every rewrite at its time": {"theta": 0.3, "rewrite_interval_ms": 0.0},
}
_RTTS_MS = (0.0, 50.0, 250.0)
_TEMPERATURES = (0.0, 0.8)
_MAX_TOKENS = 60

_Cell = tuple[str, float]
"""Setting and temperature."""


def main() -> int:
    arguments = _flags().parse_args()
    run = start("frontier", arguments)
    configure_logging("bench", "error")
    samples = asyncio.run(_measure(2 if run.quick else arguments.prompts))
    _report(run, samples)
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = parser("frontier", __doc__ or "")
    flags.prog = "python -m bench.wan.frontier"
    flags.add_argument("--prompts", type=int, default=12, help="chats per setting and RTT")
    return flags


async def _measure(num_prompts: int) -> dict[_Cell, list[Sample]]:
    samples: dict[_Cell, list[Sample]] = defaultdict(list)
    async with contextlib.AsyncExitStack() as stack:
        bed = await stack.enter_async_context(running_bed(RegionEngine(), {}, SETTINGS))
        clients = {
            name: await stack.enter_async_context(
                connect(HOST, edge.port, ca=edge.ca, timeout_s=10.0)
            )
            for name, edge in bed.others.items()
        }
        for at, rtt_ms in enumerate(_RTTS_MS):
            await _set_rtt(bed, rtt_ms)
            for number in range(num_prompts):
                print(f"RTT {rtt_ms:g} ms, chat {number + 1} of {num_prompts}", file=sys.stderr)
                await _ask(clients, at * num_prompts + number, samples)
    return samples


async def _set_rtt(bed: Bed, rtt_ms: float) -> None:
    for name in bed.others:
        await bed.relay.set(f"{name} region", Conditions(rtt_ms / 2, 0.0, 0.0))


async def _ask(
    clients: Mapping[str, Client], number: int, samples: dict[_Cell, list[Sample]]
) -> None:
    """One prompt of all, the order changing with its number. Raises ValueError without a prompt."""
    prompts, names = interleaved(load_prompts(*KINDS)), list(clients)
    if number >= len(prompts):
        raise ValueError(f"there are {len(prompts)} prompts: ask for fewer")
    first = number % len(names)
    for temperature in _TEMPERATURES:
        sampling = sampling_of(temperature, number, _MAX_TOKENS)
        for name in names[first:] + names[:first]:
            samples[name, temperature].append(
                await ask_client(
                    clients[name], messages_of(prompts[number]), sampling, provisional=True
                )
            )


def _report(run: Run, samples: Mapping[_Cell, list[Sample]]) -> None:
    for temperature in _TEMPERATURES:
        how = "greedy" if temperature == 0 else f"T={temperature:g}"
        table = run.table(
            f"Provisional text by setting, all RTTs together, {how}",
            *("setting", "shown early", "erasure", "visible TTFT p50, ms"),
        )
        for name in SETTINGS:
            cell = samples[name, temperature]
            visible_ms = median([sample.visible_ms for sample in cell])
            table.add(name, *_shares(cell), visible_ms)
    run.figures["chats"] = len(samples[next(iter(SETTINGS)), 0.0])
    run.finish()


def _shares(samples: Iterable[Sample]) -> tuple[float, float]:
    """Shown early and taken back, of the final text."""
    chars = early = erased = 0
    for sample in samples:
        chars += sample.num_chars
        early += sample.early_chars
        erased += sample.erased_chars
    return early / max(1, chars), erased / max(1, chars)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
