"""What region and edge spend on a batch."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contenders.processes import read_json, write_json
from bench.wan.machines.bed import Bed
from bench.wan.machines.cpu import cpu_s, own_cpu_s
from bench.wan.plan import Scheme
from bench.wan.samples import Spent
from bench.wan.waiting.costs import Costs


@dataclass(frozen=True, slots=True)
class Meter:
    """From `start` to `stop`."""

    bed: Bed
    scheme: Scheme
    drafter_pid: int | None
    """The bench's own, which drafts for the schemes where the bench is the edge."""
    before: Spent

    @classmethod
    async def start(cls, bed: Bed, scheme: Scheme, drafter_pid: int | None) -> Meter:
        """Measure from now on."""
        return cls(bed, scheme, drafter_pid, await _reading(bed, scheme, drafter_pid))

    async def stop(self) -> Spent:
        """What was spent since."""
        now, before = await _reading(self.bed, self.scheme, self.drafter_pid), self.before
        return Spent(
            now.region_s - before.region_s,
            now.draft_s - before.draft_s,
            now.edge_s - before.edge_s,
            now.costs.since(before.costs),
        )


async def _reading(bed: Bed, scheme: Scheme, drafter_pid: int | None) -> Spent:
    if scheme.gateway is None:
        assert bed.verifier is not None
        process = bed.verifier.process
        write_json(process, {})
        costs = Costs(**await read_json(process))
        edge_s = 0.0 if drafter_pid is None else cpu_s(drafter_pid)
        return Spent(cpu_s(process.pid), 0.0, edge_s, costs)
    edge = bed.edges[scheme.gateway]
    region_s = cpu_s(edge.region.replica.pid) + cpu_s(edge.region.router.pid)
    own_s, all_s = own_cpu_s(edge.pid), cpu_s(edge.pid)
    if scheme.drafts_in_region:
        return Spent(region_s + all_s - own_s, all_s - own_s, own_s)
    return Spent(region_s, 0.0, all_s)
