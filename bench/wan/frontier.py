"""What provisional text brings and costs, by how bold it is: for choosing its thresholds.

Asked are the prompts of `bench/data/tuning` alone, on which no speed is published, so that what is
chosen here is not chosen on the prompts by which it is judged. An edge per setting, all of them at
one region, is asked the same chats in turns, one at a time, and plain streaming too. Settings are
all combinations of the values that `--sweep KEY=VALUE,VALUE` gives for keys of an edge's
configuration (`services.edge.config`); what all have in common comes from `--set KEY=VALUE`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from bench.harness import TOO_FEW, Cell, Run, parser, start
from bench.harness.prompts import interleaved, load_prompts
from bench.peers.lineup import rotated
from bench.wan.first_words import how, right_cell
from bench.wan.measure import connected
from bench.wan.plan import CLIENT_RTT_MS, KINDS, OURS, PLAIN
from bench.wan.results import mean, ratio, share
from bench.wan.samples import Sample, Word, ask
from bench.wan.testbed import RegionEngine, running_testbed
from outrider.client import Client
from outrider.telemetry.logs import configure_logging

_RTTS_MS = (0.0, 50.0, 250.0)
_TEMPERATURES = (0.0, 0.8)
_MAX_TOKENS = 48
_SWEEPS = ("display.threshold=0.4,0.5,0.6", "display.first_threshold=0.3,0.5,0.7")
_GATEWAY = "far"
"""The name of plain streaming's edge among the settings' names."""

Chats = dict[tuple[str, float], list[Sample]]
"""By setting (`_GATEWAY`: plain streaming) and temperature; entry n is of chat n in all of them."""


def main() -> int:
    arguments = _flags().parse_args()
    run = start("frontier", arguments)
    configure_logging("bench", "error")
    settings = combinations(arguments.sweep or _SWEEPS)
    num_prompts = 2 if run.quick else arguments.prompts
    chats = asyncio.run(ask_all(settings, num_prompts, arguments.set))
    _keep(run, settings, chats, arguments.set)
    _report(run, list(settings), chats)
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = parser("frontier", __doc__ or "")
    flags.prog = "python -m bench.wan.frontier"
    flags.add_argument("--prompts", type=int, default=12, help="chats per setting and RTT")
    flags.add_argument(
        "--sweep",
        action="append",
        metavar="KEY=VALUE,VALUE",
        help=f"values that a setting of the edges takes; by default {' '.join(_SWEEPS)}",
    )
    flags.add_argument(
        *("--set", "-s"), action="append", default=[], metavar="KEY=VALUE", help="of every edge"
    )
    return flags


def combinations(sweeps: Sequence[str]) -> dict[str, dict[str, object]]:
    """The settings of each edge, by what they are called; a sweep is KEY=VALUE,VALUE. Raises
    ValueError for a value that is no number."""
    parts = [sweep.partition("=") for sweep in sweeps]
    values = [[(key, float(value)) for value in given.split(",")] for key, _, given in parts]
    return {
        ", ".join(f"{key} {value:g}" for key, value in chosen): dict(chosen)
        for chosen in itertools.product(*values)
    }


async def ask_all(
    settings: Mapping[str, Mapping[str, object]],
    num_prompts: int,
    edge_settings: Sequence[str],
    engine: RegionEngine | None = None,
) -> Chats:
    """The chats of every edge and of plain streaming: as many prompts at every RTT, greedy and
    sampled."""
    chats: Chats = defaultdict(list)
    opened = running_testbed(engine or RegionEngine(), (PLAIN,), settings, edge_settings)
    async with opened as bed, connected(bed) as clients:
        # An edge of each setting stands where ours does.
        schemes = (PLAIN, *(replace(OURS, gateway=name) for name in settings))
        for at, rtt_ms in enumerate(_RTTS_MS):
            await bed.set_distance(schemes, rtt_ms)
            for number in range(num_prompts):
                print(f"RTT {rtt_ms:g} ms, chat {number + 1} of {num_prompts}", file=sys.stderr)
                await _ask(clients, at * num_prompts + number, chats)
    return chats


async def _ask(clients: Mapping[str, Client], number: int, chats: Chats) -> None:
    """One prompt of all, the order changing with its number; after the last comes the first, with
    another seed."""
    prompts = interleaved(load_prompts(*KINDS, split="tuning"))
    prompt = prompts[number % len(prompts)]
    for temperature in _TEMPERATURES:
        for name in rotated(clients, number):
            scheme = PLAIN if name == _GATEWAY else OURS
            asked = ask(clients[name], scheme, prompt, temperature, number, _MAX_TOKENS)
            chats[name, temperature].append(await asked)


def _keep(
    run: Run,
    settings: Mapping[str, Mapping[str, object]],
    chats: Chats,
    edge_settings: Sequence[str],
) -> None:
    """For the record: how everybody was set up, and the chats one by one."""
    run.setting(
        "all",
        prompts="bench/data/tuning",
        max_tokens=_MAX_TOKENS,
        client_rtt_ms=CLIENT_RTT_MS,
        rtts_ms=_RTTS_MS,
        edges=list(edge_settings),
    )
    for name, values in settings.items():
        run.setting(name, **values)
    for (name, temperature), samples in chats.items():
        words = [sample.word for sample in samples if sample.word is not None]
        cell = f"{name}, {how(temperature)}"
        for told, values_ms in (
            ("first word shown", [word.shown_ms for word in words]),
            ("first word that stays", [word.staying_ms for word in words]),
        ):
            run.samples(f"{cell}: {told}", values_ms, unit="ms")
        for told, counts in (
            ("first word shown early", [word.is_early for word in words]),
            ("first word shown was right", [word.is_right for word in words]),
            ("characters shown early", [sample.early_chars for sample in samples]),
            ("characters taken back", [sample.erased_chars for sample in samples]),
        ):
            run.samples(f"{cell}: {told}", [float(count) for count in counts], unit="")


def _report(run: Run, settings: Sequence[str], chats: Chats) -> None:
    for temperature in _TEMPERATURES:
        table = run.table(
            "Text shown before its commit, by setting of the edge: tuning prompts, all RTTs "
            f"together, {how(temperature)}",
            "setting",
            "chats",
            "first word shown before its commit",
            "of those: right",
            "of provisional characters: taken back",
            "of committed characters: shown before",
            "first word shown, ms",
            "first word that stays, ms",
            "stays: over plain",
        )
        for name in settings:
            cell = chats[name, temperature]
            table.add(name, len(cell), *_cells(cell, chats[_GATEWAY, temperature]))
    run.finish()


def _cells(samples: Sequence[Sample], plain: Sequence[Sample]) -> Iterator[Cell]:
    pairs: list[tuple[Word, Word]] = [
        (ours.word, theirs.word)
        for ours, theirs in zip(samples, plain, strict=True)
        if ours.word is not None and theirs.word is not None
    ]
    words = [word for word, _ in pairs]
    yield str(share(fmean(word.is_early for word in words), len(words)))
    yield right_cell([[sample] for sample in samples])
    provisional = [float(sample.provisional_chars) for sample in samples]
    erased = [float(sample.erased_chars) for sample in samples]
    yield str(ratio(erased, provisional)) if sum(provisional) else TOO_FEW
    early = [float(sample.early_chars) for sample in samples]
    yield str(ratio(early, [float(sample.num_chars) for sample in samples]))
    yield str(mean([word.shown_ms for word in words]))
    yield str(mean([word.staying_ms for word in words]))
    base = [theirs.staying_ms for _, theirs in pairs]
    yield str(ratio([word.staying_ms for word in words], base))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
