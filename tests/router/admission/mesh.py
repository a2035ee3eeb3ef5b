"""Regions whose sessions take their time, before one gate, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from outrider.errors import OutriderError, OverloadedError
from services.router.admission.admission import Admission
from services.router.admission.choosing import Route
from services.router.admission.policy import Priority
from services.router.admission.ticket import Arrival
from tests.router.admission.people import FakeScout, Region

STEP_S = 0.05
"""Time between two load reports, each of which wakes the queue."""


@dataclass
class Fate:
    """What became of one session."""

    arrival: Arrival
    came_at: float
    region: str = ""
    spilled: str = ""
    placed_at: float | None = None
    refused_at: float | None = None
    error: OutriderError | None = None

    @property
    def wait_s(self) -> float:
        """In the queue; infinite for one that was refused."""
        return float("inf") if self.placed_at is None else self.placed_at - self.came_at


@dataclass
class Mesh:
    """Regions with places, each session keeping one for about `service_s`."""

    admission: Admission
    places: dict[str, int]
    service_s: float = 1.0
    rtt_ms: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    fates: dict[int, Fate] = field(default_factory=dict)
    scout: FakeScout = field(init=False)
    _running: dict[str, int] = field(init=False)
    _ends: list[tuple[float, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._running = dict.fromkeys(self.places, 0)
        self.scout = FakeScout({name: Region() for name in self.places})
        self._see()

    def run(self, arrivals: Iterable[tuple[float, Arrival]], until: float) -> None:
        """Let sessions come at their times, in order, and time pass."""
        for at, arrival in arrivals:
            self._pass_until(at)
            self.come(arrival)
        self._pass_until(until)

    def come(self, arrival: Arrival) -> Fate:
        """One session asks to be let in now."""
        if arrival.deadline_at is not None:
            arrival = replace(arrival, deadline_at=self.now + arrival.deadline_at)
        fate = self.fates[arrival.session] = Fate(arrival, self.now)
        try:
            route = self.admission.open(arrival, self.scout, self.now)
        except OverloadedError as error:
            fate.refused_at, fate.error = self.now, error
        else:
            if route is not None:
                self._place(fate, route)
        self._take_refused()
        return fate

    def of(self, priority: Priority) -> list[Fate]:
        """Sessions that asked for a class."""
        return [fate for fate in self.fates.values() if fate.arrival.priority is priority]

    def _pass_until(self, at: float) -> None:
        while (ahead := (int(self.now / STEP_S + 1e-9) + 1) * STEP_S) <= at:
            self.now = ahead
            self._step()
        self.now = at

    def _step(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, session, region = heapq.heappop(self._ends)
            self._running[region] -= 1
            self.admission.leave(session, 40, self.now)
        self._see()
        self.admission.expire(self.now)
        self._take_refused()
        for turn in self.admission.wake(self.scout, self.now):
            assert isinstance(turn.outcome, Route)
            self._place(self.fates[turn.session], turn.outcome)

    def _place(self, fate: Fate, route: Route) -> None:
        region = fate.region = route.sight.region
        fate.placed_at, fate.spilled = self.now, route.spilled
        self._running[region] += 1
        # Those beyond the places start when the ones before them end.
        excess = max(0, self._running[region] - self.places[region])
        length = 0.5 + fate.arrival.session * 7919 % 101 / 101
        lasts_s = self.service_s * (length + excess / self.places[region])
        heapq.heappush(self._ends, (self.now + lasts_s, fate.arrival.session, region))
        self._see()

    def _take_refused(self) -> None:
        for session, error in self.admission.take_refused():
            fate = self.fates[session]
            fate.refused_at, fate.error = self.now, error
            self.admission.leave(session, 0, self.now)

    def _see(self) -> None:
        for name, places in self.places.items():
            excess = max(0, self._running[name] + 1 - places)
            self.scout.fleet[name] = Region(
                backlog_ms=excess * self.service_s * 1000.0 / places,
                rtt_ms=self.rtt_ms.get(name, 1.0),
            )
