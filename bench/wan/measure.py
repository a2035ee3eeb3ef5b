"""Runs every scheme under every condition, in turns."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypeVar

from bench.harness import median
from bench.harness.prompts import Prompt
from bench.harness.region_client import RegionClient
from bench.relay.lane import Conditions, Traffic
from bench.wan.chats import Asker, Connections
from bench.wan.draft_source import Sources
from bench.wan.meter import Meter
from bench.wan.plan import PLAIN, Cell, CellGroup, Progress, Scheme, Size
from bench.wan.samples import Batch
from bench.wan.testbed import HOST, Placement, Testbed
from outrider.client import Client, connect
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary

T = TypeVar("T")

_WARM_UP = Prompt("warm-up", "", "Say a few words about the weather.")
_WARM_UP_TOKENS = 6
_HANDSHAKE_S = 10.0


@dataclass(slots=True)
class Measured:
    """Everything that was measured."""

    batches: list[Batch] = field(default_factory=list)
    relay: Traffic = field(default_factory=Traffic)
    """Traffic of all long links together, to know how much delay the relay itself added."""
    relay_cpu_s: float = 0.0
    drafter: str = ""
    """State of the near edge's: whether a model drafted."""
    waiting_drafter: str = ""
    """What drafted in the schemes that wait."""
    num_rounds: int = 0
    seconds: float = 0.0
    placements: tuple[Placement, ...] = ()
    """Which process computed on which cores."""

    def take(self, batch: Batch, relay_cpu_s: float) -> None:
        """Add a batch; `relay_cpu_s` is the relay's CPU time so far."""
        self.batches.append(batch)
        self.relay_cpu_s = relay_cpu_s
        for way in (batch.up, batch.down) if batch.cell.rtt_ms else ():
            self.relay.add(way)


@dataclass(frozen=True, slots=True)
class Links:
    """What the links do to packets besides the RTT of the long one."""

    jitter_ms: float = 0.0
    """Of the link that has the RTT to the region."""
    loss: float = 0.0
    """Of datagrams only, between clients and their gateways."""
    client_rtt_ms: float = 0.0
    """Of a client's last mile: to an edge beside it, or to the beginning of the long way."""

    def conditions(self, schemes: Collection[Scheme], rtt_ms: float) -> dict[str, Conditions]:
        """Of one direction of each relayed link, by name."""
        found = {}
        for scheme in schemes:
            for link, link_rtt_ms in scheme.rtts_ms(rtt_ms, self.client_rtt_ms).items():
                jitter_ms = self.jitter_ms if link == scheme.long_link else 0.0
                loss = self.loss if link.endswith("client") else 0.0
                found[link] = Conditions(link_rtt_ms / 2, jitter_ms, loss)
        return found


async def measure(
    bed: Testbed,
    vocabulary: Vocabulary,
    size: Size,
    links: Links,
    sources: Sources,
    limit_s: float = math.inf,
) -> Measured:
    """Round by round, as long as another one fits the limit, but at least one; within one, RTT by
    RTT; at each, condition by condition, all schemes in turns."""
    measured = Measured(
        drafter=bed.edges["near"].drafter.name.lower(),
        waiting_drafter=sources.name,
        placements=bed.placements,
    )
    work = _Work(bed, vocabulary, size, links, sources, measured, Progress(size, limit_s))
    while work.progress.num_rounds(measured.num_rounds, work.now_s) > measured.num_rounds:
        await work.round(measured.num_rounds)
        measured.num_rounds += 1
    measured.seconds = work.now_s
    return measured


@dataclass(slots=True)
class _Work:
    """One run."""

    bed: Testbed
    vocabulary: Vocabulary
    size: Size
    links: Links
    sources: Sources
    measured: Measured
    progress: Progress
    began: float = field(default_factory=monotonic)

    @property
    def now_s(self) -> float:
        return monotonic() - self.began

    async def round(self, turn: int) -> None:
        coder = TokenCoder(
            self.vocabulary.digest,
            self.vocabulary.size,
            shipped_table(self.vocabulary.tokens_digest),
        )
        prompts, steps = self.size.prompts(turn), self.progress.steps(turn)
        for rtt_ms, at_rtt in itertools.groupby(enumerate(steps, 1), lambda step: step[1][0]):
            began = self.now_s
            for link, conditions in self.links.conditions(self.size.schemes, rtt_ms).items():
                await self.bed.relay.set(link, conditions)
            async with _connections(self.bed, self.size, coder, self.sources) as connections:
                asker = Asker(
                    connections,
                    self.vocabulary,
                    coder,
                    self.size.max_tokens,
                    client_rtt_ms=self.links.client_rtt_ms,
                )
                await _warm_up(asker, self.size.schemes)
                for done, (_, number) in at_rtt:
                    await self._part(asker, self.size.parts[number], rtt_ms, turn, prompts)
                    self.progress.took(rtt_ms, number, self.now_s - began)
                    began = self.now_s
                    self._say(turn, done, len(steps), rtt_ms)
        plain = (b for b in self.measured.batches if b.scheme == PLAIN and b.cell.sessions == 1)
        times_s = [sample.whole_ms / 1000 for batch in plain for sample in batch.samples]
        self.progress.reply_s = median(times_s)

    async def _part(
        self, asker: Asker, part: CellGroup, rtt_ms: float, turn: int, prompts: tuple[Prompt, ...]
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
        await bed.relay.take_traffic()  # what came before is not this batch's
        self.sources.take_calls_ms()
        link = self.sources.link
        meter = await Meter.start(bed, scheme, link.pid if link else None)
        samples = await asker.ask_all(scheme, cell, prompts, turn, first)
        traffic, spent = await bed.relay.take_traffic(), await meter.stop()
        calls_ms = tuple(self.sources.take_calls_ms())
        ways = traffic.links[scheme.long_link]
        batch = Batch(scheme, cell, turn, first, samples, spent, *ways, calls_ms)
        self.measured.take(batch, traffic.cpu_s)

    def _say(self, turn: int, done: int, steps: int, rtt_ms: float) -> None:
        left_s = self.progress.left_s(turn, done, self.now_s)
        more = " for what was timed so far" if not turn else ""
        print(
            f"round {turn + 1}, step {done} of {steps}, RTT {rtt_ms:g} ms: "
            f"{self.now_s:.0f} s, {left_s:.0f} s left{more}",
            file=sys.stderr,
        )


@contextlib.asynccontextmanager
async def _connections(
    bed: Testbed, size: Size, coder: TokenCoder, sources: Sources
) -> AsyncIterator[Connections]:
    """New ones at every RTT: what a connection has learnt of its path holds."""
    asked = {scheme.gateway for scheme in size.schemes}
    async with contextlib.AsyncExitStack() as stack:
        gateways: dict[str, Client] = {
            name: await stack.enter_async_context(
                connect(HOST, edge.port, ca=edge.ca, timeout_s=_HANDSHAKE_S)
            )
            for name, edge in bed.edges.items()
            if name in asked
        }
        waiting = None
        if bed.verifier is not None:
            client = RegionClient(coder, bed.verifier.address, via_router=False)
            waiting = await stack.enter_async_context(client)
        yield Connections(gateways, waiting, sources)


async def _warm_up(asker: Asker, schemes: Sequence[Scheme]) -> None:
    """One short chat each, so that every connection of the way is up and knows its RTT."""
    short = replace(asker, max_tokens=_WARM_UP_TOKENS)
    for scheme in schemes:
        await short.ask_all(scheme, Cell(0.0, 1, 0.0), [_WARM_UP])


def _rotated(items: tuple[T, ...], turn: int) -> tuple[T, ...]:
    first = turn % len(items)
    return items[first:] + items[:first]
