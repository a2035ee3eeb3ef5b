"""Tokens per second of the inference service next to other systems on the same model.

Every system runs in a process of its own and answers the same prompts under the same limits,
with the threads and the chunk size that were found fastest for it here (`bench.tuning`;
our replicas size their chunks themselves): our replica with drafts off and on, exact and not;
openvino_genai's ContinuousBatchingPipeline on the same IR, prefix caching on, without and with its
prompt lookup; llama.cpp's server on the same GGUF and on its fastest quantisation, if it is
installed. Rounds are interleaved and ratios are those within a round: on a shared machine a short
run next to another says more than a long one. A cell has one ratio for each round and kind of
prompt. `--core` has five rounds of chats with 1, 8 and 32 sessions, greedy, and leaves the inexact
replicas and llama.cpp's own drafts out. `--documents` asks about long prompts alone, at the numbers
of sessions where they crowd each other, and of the exact replicas and the pipeline alone; it makes
a record of its own.

What is shared: all requests of a system come from one tenant, and the requests of a cell have
one system message. No user message comes twice in a run, so a replica that drafts from earlier
replies, or a prefix cache, finds only what users' different questions have in common.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench import tuning
from bench.harness import Cell as Shown
from bench.harness import Run, parser, start
from bench.harness.load import Request, System, Work, WorkResult
from bench.harness.prompts import KINDS, PromptSupply
from bench.harness.replica import Replica
from bench.peers.lineup import (
    INEXACT,
    INEXACT_DRAFTS,
    LLAMACPP,
    LLAMACPP_SPECULATION,
    NAMES,
    OPENVINO,
    OURS,
    OURS_DRAFTS,
    record_settings,
    rotated,
    start_all,
)
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.0, 0.8)
MAX_TOKENS = 64
MIN_REQUESTS = {"chat": 12, "code": 12, "document": 2}
QUICK_REQUESTS = {"chat": 4, "code": 4, "document": 2}
"""Requests of a cell are as many as its sessions, and no fewer than this: a cell ends with its
slowest reply, and the fewer there are the more that counts."""
ROUNDS = {"chat": 5, "code": 2, "document": 2}
CORE_CONCURRENCIES = (1, 8, 32)
CORE_ROUNDS = 5
DOCUMENT_CONCURRENCIES = (8, 16, 32)
DOCUMENT_ROUNDS = 3
DOCUMENT_SYSTEMS = (OURS, OURS_DRAFTS, OPENVINO)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement of every system."""

    kind: str
    temperature: float
    concurrency: int

    @property
    def sampling(self) -> str:
        return f"T={self.temperature:g}" if self.temperature else "greedy"

    def __str__(self) -> str:
        return f"{self.kind}, {self.sampling}, {self.concurrency} sessions"


def planned_cells(arguments: argparse.Namespace) -> list[Cell]:
    """Those that the flags ask for."""
    if arguments.quick:
        few = [Cell(kind, 0.0, concurrency) for kind in KINDS for concurrency in (1, 8)]
        return [*few, Cell("chat", 0.0, 16), Cell("chat", 0.8, 8)]
    if arguments.core:
        return [Cell("chat", 0.0, concurrency) for concurrency in CORE_CONCURRENCIES]
    if arguments.documents:
        return [Cell("document", 0.0, concurrency) for concurrency in DOCUMENT_CONCURRENCIES]
    return [
        Cell(kind, temperature, concurrency)
        for temperature in TEMPERATURES
        for kind in arguments.kinds
        for concurrency in CONCURRENCIES
    ]


def planned_rounds(arguments: argparse.Namespace) -> list[list[Cell]]:
    """The cells of each round."""
    asked = planned_cells(arguments)
    usual = CORE_ROUNDS if arguments.core else DOCUMENT_ROUNDS if arguments.documents else 0
    count = 1 if arguments.quick else usual
    turns = {cell: count or ROUNDS[cell.kind] for cell in asked}
    return [[c for c in asked if turn < turns[c]] for turn in range(max(turns.values()))]


def system_names(arguments: argparse.Namespace) -> list[str]:
    """The systems a run starts; a quick or a core one leaves the inexact replicas and
    llama.cpp's own drafts out."""
    if arguments.documents:
        return list(DOCUMENT_SYSTEMS)
    small = arguments.quick or arguments.core
    left_out = (INEXACT, INEXACT_DRAFTS, *LLAMACPP_SPECULATION)
    return [n for n in NAMES if not (small and n in left_out)]


def takes_part(name: str, cell: Cell) -> bool:
    """The inexact replicas are measured greedily alone: exactness costs the same at every T."""
    return not (cell.temperature and name in (INEXACT, INEXACT_DRAFTS))


class Prompts:
    """Makes the work of each cell from prompts not asked before."""

    def __init__(
        self, vocabulary: Vocabulary, min_requests: Mapping[str, int] = MIN_REQUESTS
    ) -> None:
        self._vocabulary = vocabulary
        self._min_requests = min_requests
        self._supplies: Mapping[str, PromptSupply] = {kind: PromptSupply(kind) for kind in KINDS}
        self._num_works = 0

    def work(self, cell: Cell) -> Work:
        """Raises RuntimeError when there are no more prompts of the kind."""
        self._num_works += 1
        count = max(cell.concurrency, self._min_requests[cell.kind])
        texts = self._supplies[cell.kind].take(count)
        system = Message("system", f"Work {self._num_works:04d}. You are a helpful assistant.")
        return Work(
            tuple(
                Request(tuple(self._ids([system, Message("user", text)])), MAX_TOKENS, seed=seed)
                for seed, text in enumerate(texts, self._num_works * 1000)
            ),
            cell.concurrency,
            cell.temperature,
        )

    def _ids(self, chat: Sequence[Message]) -> list[int]:
        return self._vocabulary.encode_chat(list(chat))


ABSENT = "not installed"
_TTFT_COLUMNS = (("n, ", ""), ("", " p50"), ("", " p90"), ("", " p95"))

Round = tuple[int, Cell]
"""Number of the round, and what was measured in it."""


@dataclass(slots=True)
class Outcomes:
    """Everything that was measured."""

    asked: Sequence[str] = NAMES
    """The systems of the run, whether or not they are installed."""
    by_round: dict[Round, Mapping[str, WorkResult]] = field(default_factory=dict)
    overhead_ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """CPU time per tick outside the engine in each cell of 16 sessions, by sampling and system."""
    busy_shares: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """Of a replica's engine in each cell, by sampling, system and sessions."""

    def ratios(self, name: str, peer: str, wanted: Callable[[Cell], bool]) -> list[float]:
        """Tokens per second of `name` over those of `peer`, round by round."""
        return [
            by_name[name].tokens_per_s / by_name[peer].tokens_per_s
            for (_, cell), by_name in self.by_round.items()
            if wanted(cell) and name in by_name and peer in by_name
        ]

    def of(self, name: str, wanted: Callable[[Cell], bool]) -> list[WorkResult]:
        """What a system made of the wanted cells."""
        return [
            by_name[name]
            for (_, cell), by_name in self.by_round.items()
            if wanted(cell) and name in by_name
        ]

    def took_part(self, name: str) -> bool:
        """Whether a system was there at all."""
        return any(name in by_name for by_name in self.by_round.values())

    def values(self, attribute: str) -> list[object]:
        """The different values of an attribute of the cells, in the order of measuring."""
        return list(dict.fromkeys(getattr(cell, attribute) for _, cell in self.by_round))


def report(run: Run, outcomes: Outcomes) -> None:
    """Fill the run's tables."""
    for sampling in outcomes.values("sampling"):
        _ratios(run, outcomes, str(sampling))
    _drafts(run, outcomes)
    _speeds(run, outcomes)
    _first_tokens(run, outcomes)
    _overhead(run, outcomes)
    _busy_shares(run, outcomes)
    _exactness(run, outcomes)


def _ratios(run: Run, outcomes: Outcomes, sampling: str) -> None:
    """Ratios over all kinds of prompt."""
    sessions = sorted({c.concurrency for _, c in outcomes.by_round if c.sampling == sampling})
    columns = [f"{concurrency} at once" for concurrency in sessions]
    title = (
        f"Throughput as a multiple of the {OPENVINO}'s, by requests at once: {sampling}, "
        "the same model, prompts and machine"
    )
    table = run.table(title, "system", "n", *columns)
    for name in NAMES:
        ratios = [outcomes.ratios(name, OPENVINO, _at(sampling, c)) for c in sessions]
        if any(ratios):
            table.add(name, _count(ratios), *(table.median(sample) for sample in ratios))
        elif name in outcomes.asked and name in LLAMACPP and not outcomes.took_part(name):
            table.add(name, 0, *(ABSENT for _ in sessions))
    table.note("n: ratios of each cell, one for every round and kind of prompt.")


def _drafts(run: Run, outcomes: Outcomes) -> None:
    """What drafts bring, on and off one after the other."""
    sessions = sorted({cell.concurrency for _, cell in outcomes.by_round})
    columns = [f"{concurrency} at once" for concurrency in sessions]
    title = "Throughput with drafts on as a multiple of that with drafts off, by requests at once"
    table = run.table(title, "sampling", "n", *columns)
    for sampling in map(str, outcomes.values("sampling")):
        ratios = [outcomes.ratios(OURS_DRAFTS, OURS, _at(sampling, c)) for c in sessions]
        table.add(sampling, _count(ratios), *(table.median(sample) for sample in ratios))


def _at(sampling: str, concurrency: int, kind: str | None = None) -> Callable[[Cell], bool]:
    return lambda cell: (
        cell.sampling == sampling and cell.concurrency == concurrency and kind in (None, cell.kind)
    )


def _count(samples: Sequence[Sequence[float]]) -> Shown:
    """How many there are in each cell of a row."""
    counts = sorted({len(sample) for sample in samples if sample})
    return counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _speeds(run: Run, outcomes: Outcomes) -> None:
    sessions = sorted({cell.concurrency for _, cell in outcomes.by_round})
    columns = ("prompts", "sampling", "system", "n", *(f"{count} at once" for count in sessions))
    table = run.table("Throughput, tokens per second, by requests at once: medians", *columns)
    table.note("n: rounds. A speed counts every token of a round's replies, until the last ended.")
    rows = dict.fromkeys((cell.kind, cell.sampling) for _, cell in outcomes.by_round)
    for (kind, sampling), name in itertools.product(rows, NAMES):
        cells = (_at(sampling, concurrency, kind) for concurrency in sessions)
        samples = [[o.tokens_per_s for o in outcomes.of(name, wanted)] for wanted in cells]
        if not any(samples):
            continue
        table.add(kind, sampling, name, _count(samples), *(table.median(s) for s in samples))
        for count, sample in zip(sessions, samples, strict=True):
            where = f"{kind}, {sampling}, {count} sessions, {name}"
            run.samples(f"tokens/s, {where}", sample, unit="tokens/s")


def _first_tokens(run: Run, outcomes: Outcomes) -> None:
    """Time to the first token with one request at a time, where that was measured."""
    alone = {cell.kind for _, cell in outcomes.by_round if _at("greedy", 1)(cell)}
    kinds = [kind for kind in ("chat", "document") if kind in alone]
    if not kinds:
        return
    columns = [f"{part}{kind}{of}" for kind in kinds for part, of in _TTFT_COLUMNS]
    table = run.table("Time to first token, ms: one request at a time, greedy", "system", *columns)
    for name in dict.fromkeys(itertools.chain.from_iterable(outcomes.by_round.values())):
        cells: list[Shown] = []
        for kind in kinds:
            sample = _ttft(outcomes, name, kind)
            cells += [len(sample), table.median(sample)]
            cells += [table.quantile(sample, share) for share in (0.9, 0.95)]
            run.samples(f"TTFT, {kind}, {name}", sample, unit="ms")
        table.add(name, *cells)


def _ttft(outcomes: Outcomes, name: str, kind: str) -> list[float]:
    done = outcomes.of(name, _at("greedy", 1, kind))
    return [answer.ttft_ms for outcome in done for answer in outcome.answers]


def _overhead(run: Run, outcomes: Outcomes) -> None:
    """Mean CPU time per tick in each cell."""
    if not outcomes.overhead_ms:
        return
    title = "CPU time that the scheduler adds to an engine call, ms: 16 requests at once"
    table = run.table(title, "sampling", "system", "n", "median", "lowest", "highest")
    for (sampling, name), sample in outcomes.overhead_ms.items():
        table.add(sampling, name, len(sample), table.median(sample), min(sample), max(sample))
        run.samples(f"CPU time outside the engine, {sampling}, {name}", sample, unit="ms")


def _busy_shares(run: Run, outcomes: Outcomes) -> None:
    """How much of the time with sessions to serve the engine computes."""
    if not outcomes.busy_shares:
        return
    sessions = sorted({count for *_, count in outcomes.busy_shares})
    title = (
        "Share of the time with sessions to serve in which the engine computed, by requests at once"
    )
    columns = [f"{count} at once" for count in sessions]
    table = run.table(title, "sampling", "system", "n", *columns)
    table.note("n: measurements of each cell. The rest is Python's: scheduling, sampling, frames.")
    for sampling, name in dict.fromkeys(key[:2] for key in outcomes.busy_shares):
        samples = [outcomes.busy_shares.get((sampling, name, count), []) for count in sessions]
        table.add(sampling, name, _count(samples), *(table.median(sample) for sample in samples))
        for count, sample in zip(sessions, samples, strict=True):
            where = f"{sampling}, {count} sessions, {name}"
            run.samples(f"busy share of the engine, {where}", sample, unit="1")


def _exactness(run: Run, outcomes: Outcomes) -> None:
    """Whether the exact replicas reply the same, drafts on and off."""
    run.figures["exact"] = all(
        by_name[OURS].replies == by_name[OURS_DRAFTS].replies
        for by_name in outcomes.by_round.values()
    )


OVERHEAD_SESSIONS = 16


def main() -> int:
    arguments = _flags().parse_args()
    run = start("inference_documents" if arguments.documents else "inference", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    outcomes, systems = asyncio.run(_compete(arguments, vocabulary))
    report(run, outcomes)
    record_settings(run, systems)
    run.finish()
    return 0 if run.figures["exact"] else 1


def _flags() -> argparse.ArgumentParser:
    core = f"chats alone, greedy, {CORE_ROUNDS} rounds at 1, 8 and 32 sessions"
    flags = parser("inference", __doc__ or "", core=core)
    flags.add_argument(
        "--documents",
        action="store_true",
        help=f"documents alone, greedy, {DOCUMENT_ROUNDS} rounds at 8, 16 and 32 sessions: our "
        "exact replicas and the pipeline; recorded as inference_documents",
    )
    flags.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of prompts")
    return flags


async def _compete(
    arguments: argparse.Namespace, vocabulary: Vocabulary
) -> tuple[Outcomes, dict[str, System]]:
    rounds = planned_rounds(arguments)
    names = system_names(arguments)
    outcomes = Outcomes(names)
    prompts = Prompts(vocabulary, QUICK_REQUESTS if arguments.quick else MIN_REQUESTS)
    async with contextlib.AsyncExitStack() as stack:
        setups = tuning.chosen("throughput", must_be_recorded=not arguments.quick)
        systems = await start_all(stack, vocabulary, names, setups)
        warm_up = prompts.work(Cell("chat", 0.0, 8))
        for system in systems.values():
            await system.run(warm_up)
        for turn, cells in enumerate(rounds):
            for cell in cells:
                measured = await _measure(systems, cell, prompts.work(cell), turn, outcomes)
                outcomes.by_round[turn, cell] = measured
                print(f"round {turn + 1} of {len(rounds)}: {cell}", file=sys.stderr)
    return outcomes, systems


async def _measure(
    systems: Mapping[str, System], cell: Cell, work: Work, turn: int, outcomes: Outcomes
) -> dict[str, WorkResult]:
    """The same work for one system after the other."""
    measured = {}
    for name in rotated(systems, turn):
        system = systems[name]
        if not takes_part(name, cell):
            continue
        if not isinstance(system, Replica):
            measured[name] = await system.run(work)
            continue
        before = await system.engine_time()
        measured[name] = await system.run(work)
        time = (await system.engine_time()).since(before)
        key = cell.sampling, name, cell.concurrency
        shares = outcomes.busy_shares.setdefault(key, [])
        shares.append(time.busy_share)
        if cell.concurrency == OVERHEAD_SESSIONS:
            overheads = outcomes.overhead_ms.setdefault((cell.sampling, name), [])
            overheads.append(time.overhead_ms / time.num_ticks)
    return measured


if __name__ == "__main__":
    sys.exit(main())
