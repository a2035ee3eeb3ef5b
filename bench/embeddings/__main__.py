"""Vectors of texts: ours beside the naive pipeline and others, on one model and the same cores."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.embeddings.load import Measured, System, Vectors, closed_loop
from bench.embeddings.model import ModelForms, write_forms
from bench.embeddings.replicas import compare_engines, kill_replicas
from bench.embeddings.systems import (
    NAIVE,
    OURS,
    PEERS,
    REPLICA,
    REPLICA_BF16,
    Started,
    started,
)
from bench.embeddings.texts import KINDS, LONG, MIXED, SHORT, TINY, Texts, mean_tokens
from bench.harness import Run, median, parser, pooled, start
from bench.harness.replica import EngineTime
from bench.peers.lineup import record_settings, rotated
from outrider.cli.local.admin_page import read_page
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.telemetry import names
from services.router.embedding.calls import MAX_CALLS

_NUM_TEXTS: Final = 2048
_PACKED: Final = 8192
"""Requests at once, to our door alone."""
_NUM_COMPARED: Final = 12
_WRITTEN_S: Final = 0.6
"""After so long a replica's metrics tell what it has done."""
_BEGAN_S: Final = time.monotonic()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    seconds: float
    """Of one load."""
    loads: Mapping[str, Sequence[tuple[int, int]]]
    """By the kind of text: requests at a time, and inputs of each."""
    kill_s: float
    packed: int
    rounds: int
    """Of every load, another system first in each."""


_CORE: Final = {SHORT: ((1, 1), (64, 1), (8, 16)), MIXED: ((64, 1),), LONG: ((16, 1),)}
PLANS: Final = {
    "quick": Plan(0.5, {SHORT: ((1, 1), (16, 1)), MIXED: ((16, 1),), LONG: ((4, 1),)}, 5.0, 512, 1),
    "core": Plan(1.0, _CORE, 9.0, _PACKED, 3),
    "full": Plan(
        2.0,
        {
            SHORT: ((1, 1), (16, 1), (64, 1), (256, 1), (1024, 1), (1, 16), (16, 16)),
            MIXED: ((1, 1), (16, 1), (64, 1), (256, 1), (16, 16)),
            LONG: ((1, 1), (16, 1), (64, 1), (4, 16)),
        },
        *(30.0, _PACKED, 3),
    ),
}  # fmt: skip


def main() -> int:
    flags = parser("embeddings", __doc__ or "", core="fewer and shorter loads, within 8 minutes")
    flags.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    flags.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, metavar="PEER")
    arguments = flags.parse_args()
    run = start("embeddings", arguments)
    plan = PLANS["quick" if run.quick else run.plan]
    with tempfile.TemporaryDirectory() as home:
        _say("writing the model's forms")
        forms, model = write_forms(Path(home))
        asyncio.run(_measure(run, plan, forms, model, arguments.threads, arguments.peers))
    run.finish()
    return int(any(run.figures[name] for name in ("errors", "errors_packed", "lost_inputs")))


async def _measure(
    run: Run,
    plan: Plan,
    forms: ModelForms,
    model: EmbeddingFolder,
    threads: int,
    peers: Sequence[str],
) -> None:
    texts = Texts(model.tokenizer())
    supplies = {kind: texts.make(kind, _NUM_TEXTS) for kind in KINDS}
    async with started(forms, threads, peers, _say) as running:
        for kind, texts_of in supplies.items():
            run.setting("texts", **{kind: round(mean_tokens(model.tokenizer(), texts_of), 1)})
        _say("warming")
        await _warm(running, supplies)
        _say("comparing vectors")
        await _agreement(run, running, supplies)
        found = await _all_loads(run, plan, running, supplies)
        _over_best(run, found)
        _ratios(run, found, running)
        record_settings(run, running.systems)
    # Others take processor time when they have nothing to do.
    async with started(forms, threads, (), _say) as alone:
        _say("all at once")
        await _packed(run, plan, alone, texts.make(TINY, plan.packed))
    _say("one engine and two")
    await compare_engines(run, forms, supplies[SHORT], plan.seconds)
    _say("killing replicas")
    tiny = texts.make(TINY, _NUM_TEXTS)
    run.figures["lost_inputs"] = await kill_replicas(run, tiny, plan.kill_s)


async def _warm(running: Started, supplies: Mapping[str, Sequence[str]]) -> None:
    for system in running.systems.values():
        for texts in supplies.values():
            await system.embed(texts[:2])


async def _agreement(run: Run, running: Started, supplies: Mapping[str, Sequence[str]]) -> None:
    """How close everybody's vectors are to the naive one's, which computes a text by itself."""
    texts = [text for texts in supplies.values() for text in texts[-_NUM_COMPARED // 3 :]]
    expected = np.concatenate([await running.systems[NAIVE].embed([text]) for text in texts])
    table = run.table(
        f"Vectors of {len(texts)} texts beside those of each text by itself",
        *("system", "least cosine", "largest difference of a value"),
    )
    for name, system in running.systems.items():
        vectors = await system.embed(texts)
        least = _least_cosine(vectors, expected)
        table.add(name, round(least, 6), f"{np.abs(vectors - expected).max():.1e}")
        if name == OURS:
            run.figures["cosine_min"] = round(least, 6)
        if name == REPLICA_BF16:
            run.figures["cosine_min_bf16"] = round(least, 6)


def _least_cosine(one: Vectors, other: Vectors) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / lengths).min())


Loads = dict[tuple[str, str, int, int], list[Measured]]
"""Rounds, by system, kind of text, concurrency and inputs."""


async def _all_loads(
    run: Run, plan: Plan, running: Started, supplies: Mapping[str, Sequence[str]]
) -> Loads:
    found: Loads = {}
    before = _engine(running)
    chosen = [(kind, *load) for kind, of_kind in plan.loads.items() for load in of_kind]
    for turn, (kind, concurrency, inputs) in itertools.product(range(plan.rounds), chosen):
        _say(f"round {turn + 1}: {concurrency} x {inputs} texts of {kind}")
        for name in rotated(running.systems, turn):
            if concurrency > MAX_CALLS and name in (REPLICA, REPLICA_BF16):
                continue  # more than a router has under way at a replica
            one = await closed_loop(
                *(running.systems[name], supplies[kind]),
                concurrency=concurrency,
                inputs=inputs,
                seconds=plan.seconds,
            )
            found.setdefault((name, kind, concurrency, inputs), []).append(one)
    table = run.table(
        "Texts a second",
        *("texts", "at a time", "texts each", "system", "texts/s"),
        *("n", "p50 ms", "p95 ms", "p99 ms", "errors"),
    )
    table.note(f"texts/s: of {plan.rounds} rounds. n: requests.")
    for name, why in running.missing.items():
        table.note(f"{name} takes no part: {why}")
    for (name, kind, concurrency, inputs), rounds in sorted(
        found.items(), key=lambda it: chosen.index(it[0][1:])
    ):
        times = pooled([one.latencies_ms for one in rounds])
        tail = (table.quantile(times, share) for share in (0.95, 0.99))
        shown = (len(times), table.median(times), *tail)
        rates = table.median([one.texts_per_s for one in rounds])
        num_errors = sum(one.num_errors for one in rounds)
        table.add(kind, concurrency, inputs, name, rates, *shown, num_errors)
        run.samples(f"ms, {name}, {kind}, {concurrency} of {inputs}", times, unit="ms")
    run.figures["errors"] = sum(
        one.num_errors
        for (name, *_), rounds in found.items()
        if name in (OURS, REPLICA, REPLICA_BF16)
        for one in rounds
    )
    await _busy(run, running, supplies, max(plan.seconds, 2.0))
    after = _engine(running)
    padding, tokens = (after[1] - before[1], after[2] - before[2])
    run.figures["padding_share"] = round(padding / (padding + tokens), 4)
    return found


async def _busy(
    run: Run, running: Started, supplies: Mapping[str, Sequence[str]], seconds: float
) -> None:
    """Whether the engine waits for anything but texts, while the loop is full of requests."""
    table = run.table(
        "The engine under load with text",
        *(
            "asked",
            "computing, of the wall clock",
            "computing, of that and of waiting for tokenizers",
        ),
    )
    for name in (OURS, REPLICA):
        await asyncio.sleep(_WRITTEN_S)
        before = _engine(running)[0]
        wall = await closed_loop(
            running.systems[name], supplies[SHORT], concurrency=64, inputs=1, seconds=seconds
        )
        await asyncio.sleep(_WRITTEN_S)
        spent = _engine(running)[0].since(before)
        share = spent.busy_s / wall.seconds / running.num_engines
        table.add(name, f"{share:.1%}", f"{spent.busy_share:.1%}")
        if name == OURS:
            run.figures["busy_share"] = round(share, 4)
    table.note("64 requests of a text of 50 tokens at a time.")


def _over_best(run: Run, found: Loads) -> None:
    """Ours over the best of the others, load by load."""
    rates = {key: median([one.texts_per_s for one in rounds]) for key, rounds in found.items()}
    table = run.table(
        "Ours over the best peer's, load by load",
        *("texts", "at a time", "texts each", "best peer", "texts/s"),
        *("a mesh over HTTP, over it", "a replica over gRPC", "in bf16"),
    )
    mesh_ratios: list[float] = []
    for load in sorted({key[1:] for key in rates}):
        others = {name: rates[name, *load] for name in PEERS if (name, *load) in rates}
        if not others:
            continue
        best = max(others, key=others.__getitem__)
        ratios = {
            name: rates[name, *load] / others[best]
            for name in (OURS, REPLICA, REPLICA_BF16)
            if (name, *load) in rates
        }
        mesh_ratios.append(ratios[OURS])
        shown = (
            f"{ratios[name]:.2f}" if name in ratios else ""
            for name in (OURS, REPLICA, REPLICA_BF16)
        )
        table.add(*load, best, round(others[best], 1), *shown)
    if mesh_ratios:
        run.figures["over_best_peer_least"] = round(min(mesh_ratios), 3)
        run.figures["over_best_peer_median"] = round(median(mesh_ratios), 3)


def _ratios(run: Run, found: Loads, running: Started) -> None:
    """Of the best that each does with a kind of text: the load whose rounds have the highest
    median."""
    best: dict[tuple[str, str], float] = {}
    for (name, kind, _, _), rounds in found.items():
        rate = median([one.texts_per_s for one in rounds])
        best[name, kind] = max(best.get((name, kind), 0.0), rate)
    table = run.table(
        "The most texts a second, ours over others'",
        "texts",
        *("system", "texts/s", "ours over it"),
    )
    ours = {kind: best[OURS, kind] for kind in KINDS}
    peers: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for name in running.systems:
            ratio = ours[kind] / best[name, kind]
            table.add(kind, name, round(best[name, kind], 1), f"{ratio:.2f}")
            if name in PEERS:
                peers.setdefault(name, {})[kind] = round(ratio, 3)
    run.figures["vs_naive"] = {
        kind: round(best[REPLICA, kind] / best[NAIVE, kind], 3) for kind in KINDS
    }
    run.figures["vs_peers"] = peers
    table.note(
        "`vs_naive` of the last line is of our replica, which is asked over gRPC as the naive one "
        "is; both compute in f32, as all peers do."
    )
    if REPLICA_BF16 in running.systems:
        run.figures["vs_naive_bf16"] = {
            kind: round(best[REPLICA_BF16, kind] / best[NAIVE, kind], 3) for kind in KINDS
        }
        table.note("`vs_naive_bf16` is of the replica in bf16 over the naive one in f32.")


async def _packed(run: Run, plan: Plan, running: Started, texts: Sequence[str]) -> None:
    """All at once at our door."""
    system: System = running.systems[OURS]
    one = await closed_loop(system, texts, concurrency=plan.packed, inputs=1, seconds=0.0)
    table = run.table(
        f"{plan.packed:,} requests at once, over HTTP",
        *("answered", "errors", "texts/s", "p50 ms", "p99 ms"),
    )
    times = one.latencies_ms
    quantiles = (table.median(times), table.quantile(times, 0.99))
    table.add(one.num_texts, one.num_errors, one.texts_per_s, *quantiles)
    for error, count in one.errors.most_common(3):
        table.note(f"{count} requests: {error}")
    run.figures["errors_packed"] = one.num_errors


def _say(what: str) -> None:
    minutes, seconds = divmod(round(time.monotonic() - _BEGAN_S), 60)
    print(f"embeddings {minutes}:{seconds:02}: {what}", file=sys.stderr, flush=True)


def _engine(running: Started) -> tuple[EngineTime, float, float]:
    """What the replica's engine took so far; tokens of padding, and of texts."""
    (row,) = running.mesh.services("inference")
    page = read_page("127.0.0.1", row["admin_port"])
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)

    def of(family: str, label: str) -> float:
        return sum(v for k, v in found.items() if k.startswith(family) and f'="{label}"' in k)

    engine = EngineTime(
        0.0, 0.0, of(f"{names.ENGINE_TIME}_total", "busy"), of(f"{names.ENGINE_TIME}_total", "idle")
    )
    tokens = f"{names.EMBEDDING_TOKENS}_total"
    return engine, of(tokens, "padding"), of(tokens, "text")


if __name__ == "__main__":
    raise SystemExit(main())
