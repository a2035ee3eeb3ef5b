"""CPU time that region and edge spend on a batch of chats, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness.processes import read_json, write_json
from bench.wan.plan import Scheme
from bench.wan.samples import CpuSpent
from bench.wan.testbed import Testbed
from bench.wan.waiting_verifier import Costs


@dataclass(frozen=True, slots=True)
class Meter:
    """From `start` to `stop`."""

    bed: Testbed
    scheme: Scheme
    drafter_pid: int | None
    """The bench's own, which drafts for the schemes where the bench is the edge."""
    before: CpuSpent

    @classmethod
    async def start(cls, bed: Testbed, scheme: Scheme, drafter_pid: int | None) -> Meter:
        """Measure from now on."""
        return cls(bed, scheme, drafter_pid, await _reading(bed, scheme, drafter_pid))

    async def stop(self) -> CpuSpent:
        """What was spent since."""
        now, before = await _reading(self.bed, self.scheme, self.drafter_pid), self.before
        return CpuSpent(
            now.region_s - before.region_s,
            now.draft_s - before.draft_s,
            now.edge_s - before.edge_s,
            now.costs.since(before.costs),
        )


async def _reading(bed: Testbed, scheme: Scheme, drafter_pid: int | None) -> CpuSpent:
    if scheme.gateway is None:
        assert bed.verifier is not None
        process = bed.verifier.process
        write_json(process, {})
        costs = Costs(**await read_json(process))
        edge_s = 0.0 if drafter_pid is None else cpu_s(drafter_pid)
        return CpuSpent(cpu_s(process.pid), 0.0, edge_s, costs)
    edge = bed.edges[scheme.gateway]
    region_s = cpu_s(edge.region.replica.pid) + cpu_s(edge.region.router.pid)
    own_s, all_s = own_cpu_s(edge.pid), cpu_s(edge.pid)
    if scheme.drafts_in_region:
        return CpuSpent(region_s + all_s - own_s, all_s - own_s, own_s)
    return CpuSpent(region_s, 0.0, all_s)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
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


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
