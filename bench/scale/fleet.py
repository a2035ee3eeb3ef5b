"""Users, routers, replicas and the network between them, until every request has ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import Ask
from bench.scale.regions import Region, rtt_ms
from bench.scale.replicas import Hooks, Replica
from bench.scale.routers import Report, Router, Site
from outrider.errors import OutriderError
from services.inference.kv.events import BlockEvent
from services.inference.scheduler.types import SchedulerLoad


class Served(Protocol):
    """A replica, as the fleet uses it."""

    def open(self, ask: Ask) -> None:
        """Serve it."""

    def load(self) -> SchedulerLoad:
        """Its load report."""

    def take_blocks(self) -> tuple[BlockEvent, ...]:
        """What changed in its prefix cache since the last take."""

    def kill(self) -> None:
        """End it without a word to anybody."""


MakeReplica: TypeAlias = Callable[[str, Clock, CallTimes, Hooks, int], Served]
"""Name, clock, duration of calls, hooks and seed to a replica."""


def _real(name: str, clock: Clock, times: CallTimes, hooks: Hooks, seed: int) -> Served:
    return Replica(clock, times, hooks, seed)


MakeRouter: TypeAlias = Callable[[Region, Sequence[Region], int], Router]
"""Own region, all regions and seed to a router."""

_SETTLE_S = 1.0
"""Until the first request, while routers reach their replicas."""
_PATIENCE_S = 30.0
"""Time for which a refused client tries again."""
_MAX_PLACES = 8
"""Replicas that a request is given to, one after the other, before it counts as failed."""


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """The fleet around routers and replicas."""

    regions: Sequence[Region]
    num_replicas: int
    report_s: float = 0.05
    """Time between two reports of a replica."""
    mtbf_s: float = 0.0
    """Mean time until a replica dies; 0: none does."""
    repair_s: float = 10.0
    """Time until a dead replica is replaced, by one with an empty cache."""
    drain_s: float = 120.0
    """Time after the last request came in which all have to end."""
    seed: int = 1


@dataclass(slots=True)
class FleetResult:
    """What happened in a run."""

    asks: list[Ask] = field(default_factory=list)
    num_deaths: int = 0
    num_refusals: int = 0
    """Times that a client was refused with a delay to retry after."""
    num_moves: int = 0
    """Sessions that went on at another replica."""


class _Slot:
    """A replica's place in the fleet; replacements of a dead one take the same place."""

    def __init__(self, name: str, region: int) -> None:
        self.name = name
        self.region = region
        self.replica: Served | None = None
        self.life = 0
        self.asks: dict[int, tuple[Ask, int]] = {}
        """Those it was given and has not finished, and in which of its lives."""


class Fleet:
    """One run."""

    def __init__(
        self,
        setting: FleetSetup,
        times: CallTimes,
        make_router: MakeRouter,
        make_replica: MakeReplica = _real,
    ) -> None:
        self._setting = setting
        self._times = times
        self._make_replica = make_replica
        self._clock = Clock()
        self._random = random.Random(setting.seed)
        self._fate = random.Random(setting.seed)
        """When replicas die: drawn apart, so that runs with and without deaths are alike else."""
        regions = setting.regions
        self._rtt_s = [[rtt_ms(a, b) / 1e3 for b in regions] for a in regions]
        self._slots = {
            f"r{number}": _Slot(f"r{number}", number % len(regions))
            for number in range(setting.num_replicas)
        }
        self._routers = [
            make_router(region, regions, setting.seed + index)
            for index, region in enumerate(regions)
        ]
        self._at: dict[int, str] = {}
        """Requests by number: the replica that has them."""
        self.outcome = FleetResult()

    def run(self, asks: Iterator[Ask]) -> FleetResult:
        """Serve all requests."""
        self._asks = asks
        for slot in self._slots.values():
            self._start(slot)
        for index in range(len(self._setting.regions)):
            self._clock.after(self._setting.report_s, self._report, index)
        self._over = False
        self._clock.after(_SETTLE_S, self._expect)
        step_s, end_s = 1.0, 0.0
        while not self._over or (self._num_open and self._clock.now < end_s):
            self._clock.run(self._clock.now + step_s)
            end_s = end_s if not self._over or end_s else self._clock.now + self._setting.drain_s
        return self.outcome

    @property
    def _num_open(self) -> int:
        return sum(not (ask.ended_at or ask.error) for ask in self.outcome.asks)

    def _expect(self) -> None:
        ask = next(self._asks, None)
        if ask is None:
            self._over = True
            return
        ask.at += _SETTLE_S
        self._clock.at(ask.at, self._arrive, ask)

    def _arrive(self, ask: Ask) -> None:
        self.outcome.asks.append(ask)
        self._place(ask)
        self._expect()

    def _place(self, ask: Ask) -> None:
        try:
            if ask.num_places >= _MAX_PLACES:
                raise OutriderError(f"given up after {ask.num_places} replicas")
            name = self._routers[ask.region].place(ask, self._clock.now)
        except OutriderError as error:
            self._refuse(ask, error)
        else:
            if name is not None:
                self._send(ask, name)
        self._wake(ask.region)  # a refusal may have been somebody else's

    def _wake(self, region: int) -> None:
        for ask, outcome in self._routers[region].wake(self._clock.now):
            if isinstance(outcome, OutriderError):
                self._refuse(ask, outcome)
            else:
                self._send(ask, outcome)

    def _send(self, ask: Ask, name: str) -> None:
        slot = self._slots[name]
        ask.began_away |= ask.num_places == 0 and slot.region != ask.region
        ask.num_places += 1
        self._at[ask.number] = name
        slot.asks[ask.number] = (ask, slot.life)
        self._clock.after(self._one_way_s(ask, slot), self._reach, ask, slot, slot.life)

    def _refuse(self, ask: Ask, error: OutriderError) -> None:
        """The client tries again after the delay it was given, for at most _PATIENCE_S."""
        delay_s = (error.retry_delay_ms or 0) / 1e3
        if not delay_s or self._clock.now + delay_s > ask.at + _PATIENCE_S:
            ask.error = error.reason
            return
        self.outcome.num_refusals += 1
        self._clock.after(delay_s, self._place, ask)

    def _one_way_s(self, ask: Ask, slot: _Slot) -> float:
        return self._rtt_s[ask.region][slot.region] / 2

    def _reach(self, ask: Ask, slot: _Slot, life: int) -> None:
        if slot.life == life and slot.replica is not None:
            slot.replica.open(ask)

    def _committed(self, slot: _Slot, ask: Ask, count: int) -> None:
        ask.committed += count
        if not ask.first_at:
            ask.first_at = self._clock.now + self._one_way_s(ask, slot)

    def _finished(self, slot: _Slot, ask: Ask) -> None:
        del slot.asks[ask.number]
        self._clock.after(self._one_way_s(ask, slot), self._end, ask)

    def _end(self, ask: Ask) -> None:
        ask.ended_at = self._clock.now
        self._leave(ask)

    def _leave(self, ask: Ask) -> None:
        del self._at[ask.number]
        self._routers[ask.region].release(ask, self._clock.now)
        self._wake(ask.region)

    def _refused(self, slot: _Slot, ask: Ask, reason: str) -> None:
        del slot.asks[ask.number]
        self._clock.after(self._one_way_s(ask, slot), self._again, ask)

    def _again(self, ask: Ask) -> None:
        """Its replica will not serve it to the end: another one goes on where that stopped."""
        ask.tried = frozenset({self._at[ask.number]})
        self._leave(ask)
        self._place(ask)

    def _start(self, slot: _Slot) -> None:
        hooks = Hooks(
            partial(self._committed, slot),
            partial(self._finished, slot),
            partial(self._refused, slot),
        )
        slot.life += 1
        seed = self._random.getrandbits(32)
        slot.replica = self._make_replica(slot.name, self._clock, self._times, hooks, seed)
        for index, router in enumerate(self._routers):
            rtt_s = self._rtt_s[index][slot.region]
            region = self._setting.regions[slot.region].name
            site = Site(slot.name, region, rtt_s * 1e3)
            self._clock.after(rtt_s, self._connect, router, site, slot, slot.life)
        if self._setting.mtbf_s:
            life_s = self._fate.expovariate(1 / self._setting.mtbf_s)
            self._clock.after(life_s, self._die, slot)

    def _connect(self, router: Router, site: Site, slot: _Slot, life: int) -> None:
        if slot.life == life and slot.replica is not None:  # it may have died on the way
            router.connect(site, self._clock.now)

    def _die(self, slot: _Slot) -> None:
        """Its connections are reset: each router hears of it half a round trip later."""
        if self._over or slot.replica is None:
            return
        self.outcome.num_deaths += 1
        slot.replica.kill()
        slot.replica = None
        for index in range(len(self._routers)):
            delay_s = self._rtt_s[index][slot.region] / 2
            self._clock.after(delay_s, self._lost, index, slot, slot.life)
        self._clock.after(self._setting.repair_s, self._start, slot)

    def _lost(self, index: int, slot: _Slot, life: int) -> None:
        self._routers[index].lose(slot.name, self._clock.now)
        found = [ask for ask, given in slot.asks.values() if given <= life and ask.region == index]
        for ask in found:
            del slot.asks[ask.number]
            self.outcome.num_moves += 1
            self._again(ask)

    def _report(self, region: int) -> None:
        """What the replicas of a region say to all routers, together."""
        reports = [
            Report.of(slot.name, slot.replica.load(), slot.replica.take_blocks())
            for slot in self._slots.values()
            if slot.region == region and slot.replica is not None
        ]
        for index, rtts_s in enumerate(self._rtt_s):
            self._clock.after(rtts_s[region] / 2, self._hear, index, reports)
        self._clock.after(self._setting.report_s, self._report, region)

    def _hear(self, index: int, reports: Sequence[Report]) -> None:
        self._routers[index].report(reports, self._clock.now)
        self._wake(index)
