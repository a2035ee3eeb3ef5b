"""Runs every scheme under every condition, in turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from bench.harness.mesh import HOST
from bench.harness.prompts import Prompt
from bench.peers.lineup import rotated
from bench.relay.lane import Traffic
from bench.wan.plan import Cell, CellGroup, Scheme, Size, seed_of
from bench.wan.samples import Batch, CpuSpent, ask
from bench.wan.testbed import Placement, Testbed
from outrider.client import Client, connect

WARM_UP = Prompt("warm-up", "", "Say a few words about the weather.")
"""Asked before what is measured: every connection of the way is up then."""
_WARM_UP_TOKENS = 6
_HANDSHAKE_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Measured:
    """Everything that was measured."""

    batches: list[Batch] = field(default_factory=list)
    relay: Traffic = field(default_factory=Traffic)
    """Traffic of all long links together, to know how much delay the relay itself added."""
    relay_cpu_s: float = 0.0
    drafter: str = ""
    """State of the near edge's: whether a model drafted."""
    num_rounds: int = 0
    seconds: float = 0.0
    placements: tuple[Placement, ...] = ()
    """Which process computed on which cores."""


async def measure(bed: Testbed, size: Size, limit_s: float) -> Measured:
    """Round by round, as long as another one as long as the longest fits the limit, but at least
    one; within one, RTT by RTT; at each, condition by condition, all schemes in turns."""
    drafter = bed.edges["near"].drafter.name.lower()
    measured = Measured(drafter=drafter, placements=bed.placements)
    began, longest_s = monotonic(), 0.0
    for turn in range(size.rounds):
        at = monotonic()
        if turn and at - began + longest_s > limit_s:
            break
        await _round(bed, size, turn, measured)
        longest_s = max(longest_s, monotonic() - at)
        measured.num_rounds += 1
        measured.seconds = monotonic() - began
        print(f"round {turn + 1}: {measured.seconds:.0f} s", file=sys.stderr)
    return measured


async def _round(bed: Testbed, size: Size, turn: int, measured: Measured) -> None:
    prompts = size.prompts(turn)
    for rtt_ms, steps in itertools.groupby(size.steps(turn), lambda step: step[0]):
        await bed.set_distance(size.schemes, rtt_ms)
        async with connected(bed, size.schemes) as clients:
            for scheme in size.schemes:  # every connection of the way is up and knows its RTT
                await ask(clients[scheme.gateway], scheme, WARM_UP, 0.0, 0, _WARM_UP_TOKENS)
            for _, part in steps:
                shift = turn + size.rtts_ms.index(rtt_ms)
                for scheme, first, count in _asked(part, shift):
                    cell = Cell(rtt_ms, part.sessions, part.temperature)
                    chosen = prompts[first : first + count]
                    client = clients[scheme.gateway]
                    await _batch(bed, client, scheme, cell, turn, first, chosen, size, measured)
        print(f"round {turn + 1}: RTT {rtt_ms:g} ms", file=sys.stderr)


def _asked(part: CellGroup, shift: int) -> Iterator[tuple[Scheme, int, int]]:
    """Scheme, number of the first prompt and how many of them at once, in turns."""
    if part.sessions > 1:
        for scheme in rotated(part.chats, shift):
            yield scheme, 0, part.chats[scheme]
        return
    for number in range(part.num_prompts):
        schemes = [scheme for scheme, count in part.chats.items() if number < count]
        for scheme in rotated(schemes, number + shift):
            yield scheme, number, 1


async def _batch(
    bed: Testbed,
    client: Client,
    scheme: Scheme,
    cell: Cell,
    turn: int,
    first: int,
    prompts: Sequence[Prompt],
    size: Size,
    measured: Measured,
) -> None:
    await bed.relay.take_traffic()  # what came before is not this batch's
    before = _spent(bed, scheme)
    chats = (
        ask(client, scheme, prompt, cell.temperature, seed_of(turn, number), size.max_tokens)
        for number, prompt in enumerate(prompts, first)
    )
    samples = tuple(await asyncio.gather(*chats))
    after, traffic = _spent(bed, scheme), await bed.relay.take_traffic()
    spent = CpuSpent(
        after.region_s - before.region_s,
        after.draft_s - before.draft_s,
        after.edge_s - before.edge_s,
    )
    ways = traffic.links[scheme.long_link]
    measured.batches.append(Batch(scheme, cell, turn, first, samples, spent, *ways))
    measured.relay_cpu_s = traffic.cpu_s
    for way in ways if cell.rtt_ms else ():
        measured.relay.add(way)


@contextlib.asynccontextmanager
async def connected(
    bed: Testbed, schemes: Sequence[Scheme] = ()
) -> AsyncIterator[Mapping[str, Client]]:
    """To the gateways of these schemes, without any to all, by name. New ones at every RTT: what a
    connection has learnt of its path holds."""
    asked = {scheme.gateway for scheme in schemes}
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                connect(HOST, edge.port, ca=edge.ca, timeout_s=_HANDSHAKE_S)
            )
            for name, edge in bed.edges.items()
            if name in asked or not asked
        }


def _spent(bed: Testbed, scheme: Scheme) -> CpuSpent:
    """CPU time so far of what the scheme needs."""
    edge = bed.edges[scheme.gateway]
    region_s = cpu_s(edge.region.replica.pid) + cpu_s(edge.region.router.pid)
    own_s, all_s = own_cpu_s(edge.pid), cpu_s(edge.pid)
    if scheme.drafts_in_region:
        return CpuSpent(region_s + all_s - own_s, all_s - own_s, own_s)
    return CpuSpent(region_s, 0.0, all_s)


def tree(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))


def cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants so far (proc(5): utime and stime)."""
    return sum(own_cpu_s(process) for process in list(tree(pid)))


def own_cpu_s(pid: int) -> float:
    """The same without descendants; 0 if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
