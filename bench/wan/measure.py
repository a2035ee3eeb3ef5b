"""Runs every scheme under every condition, in turns."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from bench.contenders.processes import read_json, write_json
from bench.harness.prompts import Prompt
from bench.harness.region_client import RegionClient
from bench.wan.asking import Asker, Connections
from bench.wan.machines.bed import HOST, Bed, Edge
from bench.wan.machines.cpu import cpu_s, pin
from bench.wan.plan import SCHEMES, Cell, Scheme, Size
from bench.wan.relay.lane import Conditions, Traffic
from bench.wan.samples import Batch
from bench.wan.waiting.costs import Costs
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
    seconds: float = 0.0


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


async def measure(bed: Bed, vocabulary: Vocabulary, size: Size, rough: Rough) -> Measured:
    """Round by round; within one, RTT by RTT; at each, condition by condition, all schemes."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.digest))
    measured, began = Measured(drafter=bed.near.drafter.name.lower()), monotonic()
    for turn in range(size.rounds):
        prompts = size.prompts(turn)
        for rtt_ms in _rotated(size.rtts_ms, turn):
            for link in sorted({scheme.long_link for scheme in SCHEMES}):
                await bed.relay.set(link, rough.conditions(link, rtt_ms))
            async with _connections(bed, coder) as connections:
                asker = Asker(connections, vocabulary, coder, size.max_tokens)
                await _warm_up(asker)
                for cell in size.cells(rtt_ms):
                    await _cell(measured, bed, asker, cell, turn, _share(cell, size, prompts))
            print(f"round {turn + 1} of {size.rounds}: RTT {rtt_ms:g} ms", file=sys.stderr)
    measured.seconds = monotonic() - began
    return measured


def _share(cell: Cell, size: Size, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    return prompts[: size.num_alone if cell.sessions == 1 else cell.sessions]


async def _cell(
    measured: Measured,
    bed: Bed,
    asker: Asker,
    cell: Cell,
    turn: int,
    prompts: tuple[Prompt, ...],
) -> None:
    """All schemes; another one begins each time."""
    done = len(measured.batches) // len(SCHEMES)
    for scheme in _rotated(SCHEMES, done):
        pin(bed.far.pid, bed.region_cores if scheme.drafts_in_region else bed.edge_cores)
        await bed.relay.passage()  # what came before is not this batch's
        meter = await _Meter.start(bed, scheme)
        samples = await asker.ask_all(scheme, cell, prompts)
        passage = await bed.relay.passage()
        up, down = passage.links[scheme.long_link]
        region_s, edge_s, costs = await meter.stop()
        measured.batches.append(
            Batch(scheme, cell, turn, samples, region_s, edge_s, up, down, costs)
        )
        measured.relay_cpu_s = passage.cpu_s
        for way in (up, down) if cell.rtt_ms else ():
            measured.relay.add(way)


@dataclass(frozen=True, slots=True)
class _Meter:
    """CPU time of region and edge, and the waiting verifier's calls, from start to stop."""

    bed: Bed
    scheme: Scheme
    before: tuple[float, float, Costs]

    @classmethod
    async def start(cls, bed: Bed, scheme: Scheme) -> _Meter:
        return cls(bed, scheme, await _reading(bed, scheme))

    async def stop(self) -> tuple[float, float, Costs]:
        region_s, edge_s, costs = await _reading(self.bed, self.scheme)
        return region_s - self.before[0], edge_s - self.before[1], costs.since(self.before[2])


async def _reading(bed: Bed, scheme: Scheme) -> tuple[float, float, Costs]:
    if scheme.policy is not None:
        write_json(bed.verifier, {})
        costs = Costs(**await read_json(bed.verifier))
        return cpu_s(bed.verifier.pid), 0.0, costs
    edge_s = cpu_s((bed.near if scheme.gateway == "near" else bed.far).pid)
    region_s = cpu_s(bed.replica.pid) + (edge_s if scheme.drafts_in_region else 0.0)
    return region_s, edge_s, Costs()


@contextlib.asynccontextmanager
async def _connections(bed: Bed, coder: TokenCoder) -> AsyncIterator[Connections]:
    """New ones at every RTT: what a connection has learnt of its path holds."""
    async with (
        _client(bed.near) as near,
        _client(bed.far) as far,
        RegionClient(coder, bed.waiting_address, via_router=False) as waiting,
    ):
        yield Connections(near, far, waiting)


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
