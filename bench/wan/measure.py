"""Runs every scheme under every condition, in turns."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from bench.harness.figures import median
from bench.harness.prompts import Prompt
from bench.harness.region_client import RegionClient
from bench.wan.asking import Asker, Connections
from bench.wan.machines.bed import HOST, Bed, Edge
from bench.wan.machines.cpu import pin
from bench.wan.meter import Meter
from bench.wan.plan import PLAIN, SCHEMES, Cell, Part, Scheme, Size
from bench.wan.progress import Progress
from bench.wan.relay.lane import Conditions, Traffic
from bench.wan.samples import Batch
from bench.wan.waiting.source import Sources
from outrider.client import Client, connect
from outrider.codec.ranks import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary

T = TypeVar("T")

_WARM_UP = Prompt("warm-up", "", "Say a few words about the weather.")
_WARM_UP_TOKENS = 6
_HANDSHAKE_S = 10.0


@dataclass(slots=True)
class Measured:
    """Everything a run has seen."""

    batches: list[Batch] = field(default_factory=list)
    relay: Traffic = field(default_factory=Traffic)
    """All that the long links held back, to know what the relay itself adds."""
    relay_cpu_s: float = 0.0
    drafter: str = ""
    """State of the near edge's: whether a model drafted."""
    waiting_drafter: str = ""
    """What drafted in the schemes that wait."""
    num_rounds: int = 0
    seconds: float = 0.0

    def take(self, batch: Batch, relay_cpu_s: float) -> None:
        """A batch is done, after the relay has used so much."""
        self.batches.append(batch)
        self.relay_cpu_s = relay_cpu_s
        for way in (batch.up, batch.down) if batch.cell.rtt_ms else ():
            self.relay.add(way)


@dataclass(frozen=True, slots=True)
class Rough:
    """What else the long link does to packets."""

    jitter_ms: float = 0.0
    loss: float = 0.0
    """Of datagrams only."""

    def conditions(self, link: str, rtt_ms: float) -> Conditions:
        """Of one direction of a link of the relay, by name."""
        loss = self.loss if link.endswith("client") else 0.0
        return Conditions(rtt_ms / 2, self.jitter_ms, loss)


async def measure(
    bed: Bed,
    vocabulary: Vocabulary,
    size: Size,
    rough: Rough,
    sources: Sources,
    limit_s: float = math.inf,
) -> Measured:
    """Round by round, as long as another one fits the limit, but at least one; within one, RTT by
    RTT; at each, condition by condition, all schemes in turns."""
    measured = Measured(drafter=bed.near.drafter.name.lower(), waiting_drafter=sources.name)
    work = _Work(bed, vocabulary, size, rough, sources, measured, Progress(size, limit_s))
    while work.progress.num_rounds(measured.num_rounds, work.now_s) > measured.num_rounds:
        await work.round(measured.num_rounds)
        measured.num_rounds += 1
    measured.seconds = work.now_s
    return measured


@dataclass(slots=True)
class _Work:
    """One run."""

    bed: Bed
    vocabulary: Vocabulary
    size: Size
    rough: Rough
    sources: Sources
    measured: Measured
    progress: Progress
    began: float = field(default_factory=monotonic)

    @property
    def now_s(self) -> float:
        return monotonic() - self.began

    async def round(self, turn: int) -> None:
        coder = TokenCoder(
            self.vocabulary.digest, self.vocabulary.size, shipped_table(self.vocabulary.digest)
        )
        prompts, steps = self.size.prompts(turn), self.progress.steps(turn)
        for rtt_ms, at_rtt in itertools.groupby(enumerate(steps, 1), lambda step: step[1][0]):
            began = self.now_s
            for link in sorted({scheme.long_link for scheme in SCHEMES}):
                await self.bed.relay.set(link, self.rough.conditions(link, rtt_ms))
            async with _connections(self.bed, coder, self.sources) as connections:
                asker = Asker(connections, self.vocabulary, coder, self.size.max_tokens)
                await _warm_up(asker)
                for done, (_, number) in at_rtt:
                    await self._part(asker, self.size.parts[number], rtt_ms, turn, prompts)
                    self.progress.took(rtt_ms, number, self.now_s - began)
                    began = self.now_s
                    self._say(turn, done, len(steps), rtt_ms)
        plain = (b for b in self.measured.batches if b.scheme == PLAIN and b.cell.sessions == 1)
        times_s = [sample.whole_ms / 1000 for batch in plain for sample in batch.samples]
        self.progress.reply_s = median(times_s)

    async def _part(
        self, asker: Asker, part: Part, rtt_ms: float, turn: int, prompts: tuple[Prompt, ...]
    ) -> None:
        cell = Cell(rtt_ms, part.sessions, part.temperature)
        if part.sessions > 1:
            for scheme in _rotated(tuple(part.chats), turn):
                await self._batch(scheme, asker, cell, turn, prompts[: part.chats[scheme]], 0)
            return
        shift = turn + self.size.rtts_ms.index(rtt_ms)
        for number in range(part.num_prompts):
            schemes = tuple(scheme for scheme, count in part.chats.items() if number < count)
            for scheme in _rotated(schemes, number + shift):
                await self._batch(scheme, asker, cell, turn, (prompts[number],), number)

    async def _batch(
        self,
        scheme: Scheme,
        asker: Asker,
        cell: Cell,
        turn: int,
        prompts: tuple[Prompt, ...],
        first: int,
    ) -> None:
        bed = self.bed
        pin(bed.far.pid, bed.region_cores if scheme.drafts_in_region else bed.edge_cores)
        await bed.relay.passage()  # what came before is not this batch's
        self.sources.take_calls_ms()
        meter = await Meter.start(bed, scheme)
        samples = await asker.ask_all(scheme, cell, prompts, first)
        passage, spent = await bed.relay.passage(), await meter.stop()
        calls_ms = tuple(self.sources.take_calls_ms())
        ways = passage.links[scheme.long_link]
        batch = Batch(scheme, cell, turn, first, samples, spent, *ways, calls_ms)
        self.measured.take(batch, passage.cpu_s)

    def _say(self, turn: int, done: int, steps: int, rtt_ms: float) -> None:
        left_s = self.progress.left_s(turn, done, self.now_s)
        more = " for what was timed so far" if not turn else ""
        print(
            f"round {turn + 1}, step {done} of {steps}, RTT {rtt_ms:g} ms: "
            f"{self.now_s:.0f} s, {left_s:.0f} s left{more}",
            file=sys.stderr,
        )


@contextlib.asynccontextmanager
async def _connections(bed: Bed, coder: TokenCoder, sources: Sources) -> AsyncIterator[Connections]:
    """New ones at every RTT: what a connection has learnt of its path holds."""
    async with (
        _client(bed.near) as near,
        _client(bed.far) as far,
        _client(bed.quiet) as quiet,
        RegionClient(coder, bed.waiting_address, via_router=False) as waiting,
    ):
        gateways = {"near": near, "far": far, "quiet": quiet}
        yield Connections(gateways, waiting, sources)


@contextlib.asynccontextmanager
async def _client(edge: Edge) -> AsyncIterator[Client]:
    async with connect(HOST, edge.port, ca=edge.ca, timeout_s=_HANDSHAKE_S) as client:
        yield client


async def _warm_up(asker: Asker) -> None:
    """One short chat each, so that every connection of the way is up and knows its RTT."""
    short = Asker(asker.connections, asker.vocabulary, asker.coder, _WARM_UP_TOKENS)
    for scheme in SCHEMES:
        await short.ask_all(scheme, Cell(0.0, 1, 0.0), [_WARM_UP])


def _rotated(items: tuple[T, ...], turn: int) -> tuple[T, ...]:
    first = turn % len(items)
    return items[first:] + items[:first]
