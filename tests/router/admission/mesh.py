"""Regions whose sessions take their time, before one gate, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from outrider.errors import OutriderError, OverloadedError
from outrider.session.types import Priority
from services.router.admission.admission import Admission
from services.router.admission.routing import Route
from services.router.session_request import SessionRequest
from tests.router.admission.fakes import FakeFleetView, Region

Arrival: TypeAlias = tuple[float, tuple[int, SessionRequest]]
"""A time, and the session that asks then: its id, and what it asks for."""
STEP_S = 0.05
"""Time between two load reports, each of which wakes the queue."""


@dataclass
class Fate:
    """What became of one session."""

    session_id: int
    request: SessionRequest
    came_at: float
    region: str = ""
    spill_cause: str = ""
    placed_at: float | None = None
    began_at: float | None = None
    """When it first had a place on its replica."""
    left_s: float = 0.0
    """What it still needs of one."""
    refused_at: float | None = None
    error: OutriderError | None = None

    @property
    def wait_s(self) -> float:
        """Until it had a place; infinite for one that was refused."""
        return float("inf") if self.began_at is None else self.began_at - self.came_at

    @property
    def priority(self) -> Priority:
        """The class it asked for."""
        return self.request.priority


@dataclass
class Mesh:
    """Regions with places, each session needing one for about `service_s`. Higher classes have
    them first, and those of lower ones that make way go on later."""

    admission: Admission
    places: dict[str, int]
    service_s: float = 1.0
    rtt_ms: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    fates: dict[int, Fate] = field(default_factory=dict)
    fleet_view: FakeFleetView = field(init=False)
    _there: dict[str, list[Fate]] = field(init=False)

    def __post_init__(self) -> None:
        self._there = {name: [] for name in self.places}
        self.fleet_view = FakeFleetView({name: Region() for name in self.places})
        self._see()

    def run(self, arrivals: Iterable[Arrival], until: float) -> None:
        """Let sessions come at their times, in order, and time pass."""
        for at, asking in arrivals:
            self._pass_until(at)
            self.come(*asking)
        self._pass_until(until)

    def come(self, session_id: int, request: SessionRequest) -> Fate:
        """One session asks to be let in now."""
        if request.deadline_at is not None:
            request = replace(request, deadline_at=self.now + request.deadline_at)
        fate = self.fates[session_id] = Fate(session_id, request, self.now)
        try:
            route = self.admission.open(session_id, request, self.fleet_view, self.now)
        except OverloadedError as error:
            fate.refused_at, fate.error = self.now, error
        else:
            if route is not None:
                self._place(fate, route)
        self._take_refused()
        return fate

    def of(self, priority: Priority) -> list[Fate]:
        """Sessions that asked for a class."""
        return [fate for fate in self.fates.values() if fate.request.priority is priority]

    def _pass_until(self, at: float) -> None:
        while (ahead := (int(self.now / STEP_S + 1e-9) + 1) * STEP_S) <= at:
            self.now = ahead
            self._step()
        self.now = at

    def _step(self) -> None:
        for name, there in self._there.items():
            there.sort(key=lambda fate: -fate.priority)
            for fate in there[: self.places[name]]:
                fate.left_s -= STEP_S
                if fate.left_s <= 0.0:
                    self.admission.close(fate.session_id, 40, self.now)
            self._there[name] = [fate for fate in there if fate.left_s > 0.0]
        self._see()
        self.admission.expire(self.now)
        self._take_refused()
        for turn in self.admission.dequeue(self.fleet_view, self.now):
            assert isinstance(turn.outcome, Route)
            self._place(self.fates[turn.session_id], turn.outcome)

    def _place(self, fate: Fate, route: Route) -> None:
        fate.region = route.decision.region
        fate.placed_at = self.now
        fate.spill_cause = route.spill_cause
        fate.left_s = self.service_s * (0.5 + fate.session_id * 7919 % 101 / 101)
        self._there[fate.region].append(fate)
        self._see()

    def _take_refused(self) -> None:
        for session, error in self.admission.take_refused():
            fate = self.fates[session]
            fate.refused_at, fate.error = self.now, error
            self.admission.close(session, 0, self.now)

    def _see(self) -> None:
        for name, places in self.places.items():
            there = self._there[name]
            there.sort(key=lambda fate: -fate.priority)
            for fate in there[:places]:
                if fate.began_at is None:
                    fate.began_at = self.now
            excess = [
                max(0, sum(fate.priority >= priority for fate in there) + 1 - places)
                for priority in Priority
            ]
            self.fleet_view.fleet[name] = Region(
                backlogs_ms=tuple(count * self.service_s * 1000.0 / places for count in excess),
                rtt_ms=self.rtt_ms.get(name, 1.0),
            )
