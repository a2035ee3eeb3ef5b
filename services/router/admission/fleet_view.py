"""Placement and fleet as admission sees them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from services.router.fleet.replica import Replica
from services.router.placement.types import Decision, PlacementRequest


class LiveFleetView:
    """The replica registry's regions and round trips, and placement's quotes. As FleetView."""

    def __init__(
        self, decide: Callable[[PlacementRequest, float], Decision], region: str, return_s: float
    ) -> None:
        """`decide` is placement's, `region` the router's own; a replica that was lost less than
        `return_s` ago counts as one that may soon be back."""
        self._decide = decide
        self._region = region
        self._return_s = return_s
        self._at_home: set[str] = set()
        """Models with replicas in the router's own region, in service or not."""
        self._returning: dict[str, set[str]] = {}
        """By model, the regions of replicas that take no sessions now but may soon."""
        self._rtt_ms: dict[str, dict[str, float]] = {}
        """By model and region, the smallest recent round trip of replicas that take sessions; a
        busy machine does not change it."""

    def refresh(self, replicas: Iterable[Replica], now: float) -> None:
        """Read the fleet again: which regions serve which model, and how far they are."""
        self._rtt_ms = {}
        self._returning = {}
        self._at_home = set()
        for replica in replicas:
            if replica.region == self._region:
                self._at_home.add(replica.model_name)
            if replica.may_return(self._return_s, now):
                self._returning.setdefault(replica.model_name, set()).add(replica.region)
            if replica.takes_sessions:
                found = self._rtt_ms.setdefault(replica.model_name, {})
                nearest = found.get(replica.region, replica.rtt.min_ms)
                found[replica.region] = min(nearest, replica.rtt.min_ms)

    def home(self, request: PlacementRequest) -> str:
        """The router's own region where it has replicas of the model, in service or not, and may
        hold the prompt; otherwise the nearest region with one in service, "" without any."""
        if request.model in self._at_home and _allows(request, self._region):
            return self._region
        known = self._rtt_ms.get(request.model, {})
        allowed = [region for region in known if _allows(request, region)]
        return min(allowed, key=lambda region: (known[region], region), default="")

    def may_return(self, request: PlacementRequest) -> bool:
        """Whether a replica that may serve it takes no sessions now but may soon."""
        found = self._returning.get(request.model, set())
        return bool(found.intersection(request.residency) if request.residency else found)

    def quote(self, request: PlacementRequest, region: str, now: float) -> Decision:
        """The best replica in a region; "": in any that the request allows. Raises what placement
        raises."""
        narrowed = replace(request, residency=(region,)) if region else request
        return self._decide(narrowed, now)


def _allows(request: PlacementRequest, region: str) -> bool:
    return not request.residency or region in request.residency
