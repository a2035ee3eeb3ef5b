"""What the region spends on a batch."""

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
            now.draft_s - before.draft_s,
            now.costs.since(before.costs),
        )


async def _reading(bed: Bed, scheme: Scheme) -> Spent:
    if scheme.policy is not None:
        write_json(bed.verifier, {})
        costs = Costs(**await read_json(bed.verifier))
        return Spent(cpu_s(bed.verifier.pid), costs=costs)
    far = bed.far.pid
    draft_s = cpu_s(far) - own_cpu_s(far) if scheme.drafts_in_region else 0.0
    return Spent(cpu_s(bed.replica.pid) + cpu_s(bed.router.pid) + draft_s, draft_s)
