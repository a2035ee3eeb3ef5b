"""Placement and fleet as admission sees them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from services.router.admission.choosing import Regions, Sight
from services.router.fleet.replica import Replica
from services.router.placement.request import Decision, Request


class FleetScout:
    """Knows how far each region is, and asks placement for the best replica of some."""

    def __init__(
        self, decide: Callable[[Request, float], Decision], near_ms: float, region: str
    ) -> None:
        """`decide` is placement's. The nearest region is the router's own, `region`, or the one of
        the least round trip; others at most `near_ms` farther are as near."""
        self._decide = decide
        self._near_ms = near_ms
        self._region = region
        self._ailing: dict[str, set[str]] = {}
        """By model, the regions of replicas whose stream is up but that take no sessions now."""
        self._rtt_ms: dict[str, dict[str, float]] = {}
        """By model and region, of the replicas that take sessions: the least of late, which a busy
        machine does not change."""

    def survey(self, replicas: Iterable[Replica]) -> None:
        """Look at the fleet anew: which regions serve which model, and how far they are."""
        self._rtt_ms, self._ailing = {}, {}
        for replica in replicas:
            if replica.is_ailing:
                self._ailing.setdefault(replica.model_name, set()).add(replica.region)
            if replica.takes_sessions:
                found = self._rtt_ms.setdefault(replica.model_name, {})
                nearest = found.get(replica.region, replica.rtt.min_ms)
                found[replica.region] = min(nearest, replica.rtt.min_ms)

    def home(self, request: Request) -> str:
        """The nearest region with a replica that may serve it; "" without one."""
        return next(iter(self.regions(request).near), "")

    def regions(self, request: Request) -> Regions:
        """Where it may go, the nearest first."""
        known = self._rtt_ms.get(request.model, {})
        allowed = [r for r in known if not request.residency or r in request.residency]
        if not allowed:
            return Regions(())
        allowed.sort(key=lambda region: (region != self._region, known[region], region))
        limit_ms = known[allowed[0]] + self._near_ms
        near = tuple(region for region in allowed if known[region] <= limit_ms)
        return Regions(near, tuple(region for region in allowed if region not in near))

    def may_return(self, request: Request) -> bool:
        """Whether a replica that may serve it is there, though it takes no sessions just now."""
        ailing = self._ailing.get(request.model, set())
        return bool(ailing.intersection(request.residency) if request.residency else ailing)

    def look(self, request: Request, regions: tuple[str, ...], now: float) -> Sight:
        """The best replica in these regions; none named: in any that the request allows. Raises
        what placement raises."""
        narrowed = replace(request, residency=regions) if regions else request
        decision = self._decide(narrowed, now)
        wait = decision.wait
        return Sight(
            region=decision.region,
            ttft_ms=wait.total_ms,
            least_backlog_ms=decision.least_backlog_ms,
            rtt_ms=wait.rtt_ms,
            decision=decision,
        )
