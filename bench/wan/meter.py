"""What the processes of region and edge spend on a batch."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contenders.processes import read_json, write_json
from bench.wan.machines.bed import Bed
from bench.wan.machines.cpu import cpu_s, own_cpu_s
from bench.wan.plan import Scheme
from bench.wan.waiting.costs import Costs


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time in seconds, and the waiting verifier's calls."""

    region_s: float
    """Of the region's processes that the scheme needs."""
    edge_s: float
    """Of the edge, its drafter included; 0 where the bench is the edge."""
    draft_s: float
    """Of the drafter's process, where that is the region's."""
    costs: Costs


@dataclass(frozen=True, slots=True)
class Meter:
    """From `start` to `stop`."""

    bed: Bed
    scheme: Scheme
    before: Spent

    @classmethod
    async def start(cls, bed: Bed, scheme: Scheme) -> Meter:
        """Measure from now on."""
        return cls(bed, scheme, await _reading(bed, scheme))

    async def stop(self) -> Spent:
        """What was spent since."""
        now, before = await _reading(self.bed, self.scheme), self.before
        return Spent(
            now.region_s - before.region_s,
            now.edge_s - before.edge_s,
            now.draft_s - before.draft_s,
            now.costs.since(before.costs),
        )


async def _reading(bed: Bed, scheme: Scheme) -> Spent:
    if scheme.policy is not None:
        write_json(bed.verifier, {})
        costs = Costs(**await read_json(bed.verifier))
        return Spent(cpu_s(bed.verifier.pid), 0.0, 0.0, costs)
    pid = (bed.near if scheme.gateway == "near" else bed.far).pid
    edge_s = cpu_s(pid)
    draft_s = edge_s - own_cpu_s(pid) if scheme.drafts_in_region else 0.0
    region_s = cpu_s(bed.replica.pid) + cpu_s(bed.router.pid) + draft_s
    return Spent(region_s, edge_s, draft_s, Costs())
