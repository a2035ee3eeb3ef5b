"""What a load balancer does that knows nothing of prompts, in the region of the user."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from bench.scale.demand import Ask
from bench.scale.routing.base import Report, Site
from outrider.errors import NoReplicaError, OutriderError


class _Balancer:
    """Replicas of the own region that can be reached; others, if there are none."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._sites: dict[str, Site] = {}
        self._near: list[str] = []

    def connect(self, site: Site, now: float) -> None:
        self._sites[site.name] = site
        self._choose()

    def lose(self, name: str, now: float) -> None:
        self._sites.pop(name, None)
        self._choose()

    def report(self, reports: Sequence[Report], now: float) -> None:
        """Floors do not listen."""

    def wake(self, now: float) -> Iterable[tuple[Ask, str | OutriderError]]:
        """Nobody waits."""
        return ()

    def _choose(self) -> None:
        sites = self._sites.values()
        near = [site.name for site in sites if site.region == self._region]
        self._near = near or [site.name for site in sites]

    def _reachable(self) -> list[str]:
        if not self._near:
            raise NoReplicaError("every replica is down")
        return self._near


class RoundRobin(_Balancer):
    """Each in turn."""

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self._turns = itertools.count()

    def place(self, ask: Ask, now: float) -> str:
        names = self._reachable()
        return names[next(self._turns) % len(names)]

    def release(self, ask: Ask, now: float) -> None:
        """Nothing is counted."""


class LeastLoaded(_Balancer):
    """The one with the fewest sessions of this router; of several, the one whose turn it is."""

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self._counts: dict[str, int] = {}
        self._on: dict[int, str] = {}
        self._turns = itertools.count()

    def place(self, ask: Ask, now: float) -> str:
        names = self._reachable()
        first = next(self._turns) % len(names)
        name = min(names[first:] + names[:first], key=lambda name: self._counts.get(name, 0))
        self._counts[name] = self._counts.get(name, 0) + 1
        self._on[ask.number] = name
        return name

    def release(self, ask: Ask, now: float) -> None:
        name = self._on.pop(ask.number, None)
        if name is not None:
            self._counts[name] -= 1
