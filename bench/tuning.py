"""How each system is best set up on this machine: tokens that one step computes, and threads.

The best setup depends on the machine, and other benchmarks refuse what was recorded on another one.
Each system is measured with every chunk of a declared list on one thread, and with two threads at
the chunk that was fastest; setups take turns. The work is eight running chats, and two prompts of
about 1,500 tokens that arrive among them. Two choices come of it:
`throughput`, the setup that finished all soonest, which `bench.inference` uses; and `latency`,
which `bench.arrivals` uses: of the setups that took at most a tenth longer, the one with the lowest
p99 of the time between a chat's tokens. Our own replicas size their chunks themselves and are
measured with one and two threads. The two quantisations of llama.cpp share the setup of the faster
one, as do the OpenVINO pipeline with prompt lookup and without, and our replicas.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.arrivals.requests import RequestFactory
from bench.harness import Run, median, parser, pooled, quantile, start
from bench.harness.load import WHOLE_TOKENS, Setup, Work, WorkResult
from bench.harness.provenance import machine_facts
from bench.harness.record import load
from bench.peers.lineup import (
    LLAMACPP_Q4_0,
    LLAMACPP_Q4_1,
    LLAMACPP_SPECULATION,
    NAMES,
    OPENVINO,
    OPENVINO_LOOKUP,
    OURS,
    needed_by,
    rotated,
    started,
)
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

CHUNKS = (64, 128, 256, 512, WHOLE_TOKENS)
THREADS = (1, 2)
CHATS = 8
CHAT_TOKENS = 64
DOCUMENTS_S = (0.4, 1.2)
DOCUMENT_TOKENS = 8
SLACK = 1.1
"""So many times the least duration may what is best for latency take."""
_PASSING = ("date", "loop_us", "memory_gib")
"""Facts of a machine that may change without another setup being the best one."""
LEADERS = {
    OPENVINO_LOOKUP: OPENVINO,
    LLAMACPP_Q4_1: LLAMACPP_Q4_0,
    **dict.fromkeys(LLAMACPP_SPECULATION, LLAMACPP_Q4_0),
}
"""Systems that use the setup of another one; the remaining ones of ours use that of OURS."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one setup."""

    setup: Setup
    seconds: list[float]
    """Of the whole work, round by round."""
    gaps_ms: list[float]
    """Between the arrivals of a chat's tokens, all chats and rounds."""

    @property
    def p99_ms(self) -> float:
        return quantile(self.gaps_ms, 0.99)


def leader(name: str) -> str:
    """The system whose setup this one uses."""
    return LEADERS.get(name, name if name in (OPENVINO, LLAMACPP_Q4_0) else OURS)


def chosen(purpose: str, *, must_be_recorded: bool = True) -> dict[str, Setup]:
    """Every system's setup, as recorded on this machine. Raises RuntimeError where nothing is, or
    it was another machine; all have the least setup then, unless it `must_be_recorded`."""
    record = load("tuning")
    figures = record["figures"]["chosen"][purpose] if record and _is_here(record) else {}
    if not figures:
        why = "peers are not tuned on this machine: `python -m bench.tuning` does it"
        if must_be_recorded:
            raise RuntimeError(why)
        print(why, file=sys.stderr)
    return {name: Setup(**figures.get(leader(name), {})) for name in NAMES}


def _is_here(record: Mapping[str, Any]) -> bool:
    """Whether it was made on a machine like this one, with the packages that are here."""
    here, there = json.loads(json.dumps(asdict(machine_facts()))), record["machine"]
    return all(there.get(name) == here[name] for name in here if name not in _PASSING)


def for_throughput(measured: Sequence[Measured]) -> Setup:
    """The setup that finished all soonest."""
    return min(measured, key=lambda one: median(one.seconds)).setup


def for_latency(measured: Sequence[Measured]) -> Setup:
    """The setup with the lowest p99 gap, among those that finished about as soon as any."""
    limit = SLACK * min(median(one.seconds) for one in measured)
    quick = [one for one in measured if median(one.seconds) <= limit]
    return min(quick, key=lambda one: one.p99_ms).setup


def main() -> int:
    flags = parser("tuning", __doc__ or "", core="two rounds of each setup")
    arguments = flags.parse_args()
    run = start("tuning", arguments)
    rounds = 1 if run.quick else 2 if run.core else 3
    report(run, asyncio.run(_measure(rounds, CHUNKS[2:3] if run.quick else CHUNKS)))
    run.finish()
    return 0


async def _measure(rounds: int, chunks: Sequence[int]) -> dict[str, list[Measured]]:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    factory = RequestFactory(vocabulary)
    works = [_work(factory) for _ in range(rounds)]
    warm_up = Work(factory.chats([0.0] * CHATS, 8))
    names = []
    for name in (OURS, OPENVINO, LLAMACPP_Q4_0):
        if missing := [peer for peer in needed_by(name) if not peer.is_installed()]:
            print(f"{name}: {missing[0].hint}", file=sys.stderr)
        else:
            names.append(name)
    tried = {
        name: [Setup(1, chunk) for chunk in (chunks if name != OURS else (Setup().chunk_tokens,))]
        for name in names
    }
    done: dict[str, list[Measured]] = {name: [] for name in names}
    for _ in range(2):
        found = await _rounds(vocabulary, tried, warm_up, works)
        for name, measured in found.items():
            done[name] += measured
        # The second time more threads, with the chunk that was the fastest.
        tried = {
            name: [Setup(count, for_throughput(measured).chunk_tokens) for count in THREADS[1:]]
            for name, measured in done.items()
        }
    return done


async def _rounds(
    vocabulary: Vocabulary,
    tried: Mapping[str, Sequence[Setup]],
    warm_up: Work,
    works: Sequence[Work],
) -> dict[str, list[Measured]]:
    """Every setup in every round, started anew; another one begins each."""
    found = {(name, setup): Measured(setup, [], []) for name in tried for setup in tried[name]}
    for turn, work in enumerate(works):
        for name, setup in rotated(found, turn):
            async with started(name, vocabulary, setup) as system:
                await system.run(warm_up)
                done = await system.run(work)
            found[name, setup].seconds.append(done.seconds)
            found[name, setup].gaps_ms.extend(_gaps_ms(done))
            print(f"{name}: {setup}: {done.seconds:.1f} s", file=sys.stderr)
    return {name: [found[name, setup] for setup in tried[name]] for name in tried}


def _work(factory: RequestFactory) -> Work:
    chats = factory.chats([0.0] * CHATS, CHAT_TOKENS)
    return Work((*chats, *factory.documents(DOCUMENTS_S, DOCUMENT_TOKENS)), ignore_eos=True)


def _gaps_ms(done: WorkResult) -> list[float]:
    return pooled(chat.gaps_ms() for chat in done.answers[:CHATS])


def report(run: Run, measured: Mapping[str, Sequence[Measured]]) -> None:
    """The table, and what is chosen by purpose and system."""
    title = (
        f"Setups tried for each system: {CHATS} running chats while {len(DOCUMENTS_S)} prompts of "
        "about 1,500 tokens arrive; time until all have ended, and inter-token latency of the "
        "chats"
    )
    columns = ("system", "threads", "tokens per step", "time, s", "n", "ITL p50, ms", "ITL p99, ms")
    table = run.table(title, *columns, "chosen for")
    choices: dict[str, dict[str, dict[str, int]]] = {"throughput": {}, "latency": {}}
    for name, done in measured.items():
        best = {"throughput": for_throughput(done), "latency": for_latency(done)}
        for purpose, setup in best.items():
            choices[purpose][name] = setup.to_json()
        for one in done:
            threads = one.setup.threads
            chunk = one.setup.chunk_tokens if name != OURS else "its own choice"
            itl = (table.median(one.gaps_ms), table.quantile(one.gaps_ms, 0.99))
            taken = ", ".join(purpose for purpose, setup in best.items() if setup == one.setup)
            seconds = table.median(one.seconds)
            table.add(name, threads, chunk, seconds, len(one.gaps_ms), *itl, taken)
            run.samples(f"seconds, {name}, {one.setup}", one.seconds, unit="s")
            run.samples(f"ITL, {name}, {one.setup}", one.gaps_ms, unit="ms")
    run.figures["chosen"] = choices


if __name__ == "__main__":
    sys.exit(main())
