"""How each system is best set up on this machine: tokens that one step computes, and threads.

The best setup depends on the machine, so each system is measured with every chunk of a declared
list on one thread, and with two threads at the chunk that was fastest. The work is eight running
chats, and two prompts of about 1,500 tokens that arrive among them. Two choices come of it:
`throughput`, the setup that finished all soonest, which `bench.inference` uses; and `latency`,
which `bench.arrivals` uses: of the setups that took at most a tenth longer, the one with the lowest
p99 of the time between a chat's tokens. Our own replicas size their chunks themselves and are
measured with one and two threads. The two quantisations of llama.cpp share the setup of the faster
one, and its fork too, as do the OpenVINO pipeline with prompt lookup and without, and our replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.arrivals.requests import RequestFactory
from bench.harness import Run, median, parser, pooled, quantile, start
from bench.harness.record import load
from bench.peers import llamacpp
from bench.systems.base import WHOLE_TOKENS, Setup, Work, WorkResult
from bench.systems.lineup import (
    IK_LLAMACPP,
    LLAMACPP_Q4_0,
    LLAMACPP_Q4_1,
    LLAMACPP_SPECULATION,
    NAMES,
    OPENVINO,
    OPENVINO_LOOKUP,
    OURS,
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
LEADERS = {
    OPENVINO_LOOKUP: OPENVINO,
    LLAMACPP_Q4_1: LLAMACPP_Q4_0,
    **dict.fromkeys((*LLAMACPP_SPECULATION, IK_LLAMACPP), LLAMACPP_Q4_0),
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


def chosen(purpose: str, threads: int | None = None) -> dict[str, Setup]:
    """Every system's setup, as recorded; the least one before anything is recorded. `threads`,
    if told, is capacity_work's."""
    record = load("tuning")
    figures = record["figures"]["chosen"][purpose] if record else {}
    if not figures:
        print("peers are not tuned: `python -m bench.tuning` does it", file=sys.stderr)
    setups = {name: Setup(**figures.get(leader(name), {})) for name in NAMES}
    if threads is None:
        return setups
    return {name: Setup(threads, setup.chunk_tokens) for name, setup in setups.items()}


def for_throughput(measured: Sequence[Measured]) -> Setup:
    """The setup that finished all soonest."""
    return min(measured, key=lambda one: median(one.seconds)).setup


def for_latency(measured: Sequence[Measured]) -> Setup:
    """The setup with the lowest p99 gap, among those that finished about as soon as any."""
    limit = SLACK * min(median(one.seconds) for one in measured)
    quick = [one for one in measured if median(one.seconds) <= limit]
    return min(quick, key=lambda one: one.p99_ms).setup


def main() -> int:
    flags = parser("systems.tuning", __doc__ or "", core="one round of each setup")
    arguments = flags.parse_args()
    run = start("tuning", arguments)
    rounds = 1 if arguments.quick or arguments.core else 3
    report(run, asyncio.run(_measure(arguments, rounds)))
    run.finish()
    return 0


async def _measure(arguments: argparse.Namespace, rounds: int) -> dict[str, list[Measured]]:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    factory = RequestFactory(vocabulary)
    works = [_work(factory) for _ in range(rounds)]
    warm_up = Work(factory.chats([0.0] * CHATS, 8))
    chunks = CHUNKS[2:3] if arguments.quick else CHUNKS
    measured: dict[str, list[Measured]] = {}
    for name in (OURS, OPENVINO, LLAMACPP_Q4_0):
        if name == LLAMACPP_Q4_0 and not llamacpp.installed():
            print(f"{name}: not installed; {llamacpp.INSTALL}", file=sys.stderr)
            continue
        done = measured.setdefault(name, [])
        for chunk in chunks if name != OURS else (Setup().chunk_tokens,):
            done.append(await _one(name, vocabulary, Setup(1, chunk), warm_up, works))
        fastest = for_throughput(done).chunk_tokens
        for threads in THREADS[1:]:
            done.append(await _one(name, vocabulary, Setup(threads, fastest), warm_up, works))
    return measured


def _work(factory: RequestFactory) -> Work:
    chats = factory.chats([0.0] * CHATS, CHAT_TOKENS)
    return Work((*chats, *factory.documents(DOCUMENTS_S, DOCUMENT_TOKENS)), ignore_eos=True)


async def _one(
    name: str, vocabulary: Vocabulary, setup: Setup, warm_up: Work, works: Sequence[Work]
) -> Measured:
    async with started(name, vocabulary, setup) as system:
        await system.run(warm_up)
        done = [await system.run(work) for work in works]
    print(f"{name}: {setup}: {done[0].seconds:.1f} s", file=sys.stderr)
    return Measured(setup, [one.seconds for one in done], pooled(map(_gaps_ms, done)))


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
