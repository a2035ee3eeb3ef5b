"""The routers an edge knows, and which one takes the next session. Pure: no I/O, no clock.

There may be several regions with several routers each. A session goes to the nearest region with a
router that takes sessions; within it, to the less used of two random routers (Mitzenmacher, "The
power of two choices in randomized load balancing", 2001).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from outrider.peers.health import Change, HealthPolicy, PeerHealth, PeerState, Signal
from outrider.peers.round_trip import RoundTrip

_UNKNOWN_MS: Final = 100.0
_NEAR: Final = 1.25
_NEAR_MS: Final = 5.0
"""Regions whose round trip is at most `_NEAR` times the least one, or `_NEAR_MS` more, count as
equally near, so that noise does not move sessions between regions."""


@dataclass(slots=True)
class Router:
    """One row. Only the table changes it."""

    address: str
    source: str
    """The target in the settings by which it was found."""
    rank: int
    """Place of that target in the settings: the lower one wins between regions equally near."""
    health: PeerHealth
    rtt: RoundTrip
    region: str = ""
    """Region that it reported; empty: not known."""
    num_sessions: int = 0
    is_serving: bool = True
    """Whether it last reported that it serves; False: it stops."""
    is_leaving: bool = False
    """Lookups do not find it any more."""
    lost_at: float | None = None
    """When its stream broke last."""

    @property
    def state(self) -> PeerState:
        """State of its health."""
        return self.health.state


@dataclass(frozen=True, slots=True)
class RouterTransition:
    """A router changed its state."""

    router: str
    before: PeerState
    after: PeerState
    why: str


class RouterTable:
    """The routers by address."""

    def __init__(self, policy: HealthPolicy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._routers: dict[str, Router] = {}
        self._home = ""
        self._transitions: deque[RouterTransition] = deque(maxlen=1024)

    def __iter__(self) -> Iterator[Router]:
        return iter(self._routers.values())

    def __getitem__(self, address: str) -> Router:
        return self._routers[address]

    def take_transitions(self) -> list[RouterTransition]:
        """The changes since the last time, in order."""
        taken = list(self._transitions)
        self._transitions.clear()
        return taken

    def count(self) -> dict[PeerState, int]:
        """Routers by state, every state named."""
        states = [router.state for router in self]
        return {state: states.count(state) for state in PeerState}

    # --- membership ---

    def add(self, address: str, source: str, rank: int, now: float) -> Router:
        """A router was found."""
        health = PeerHealth(self._policy, now)
        router = Router(address, source, rank, health, RoundTrip(_UNKNOWN_MS))
        self._routers[address] = router
        return router

    def remove(self, address: str) -> None:
        """Forget a router."""
        del self._routers[address]

    def leave(self, address: str, now: float) -> None:
        """Lookups no longer find it: it gets no new sessions, and running ones continue."""
        self._routers[address].is_leaving = True
        self._signal(address, Signal.NOT_SERVING, "it is not found any more", now)

    def stay(self, address: str, now: float) -> None:
        """Lookups find it again."""
        self._routers[address].is_leaving = False
        self._signal(address, Signal.SERVING, "it is found again", now)

    # --- observations ---

    def connected(self, address: str, now: float) -> None:
        """Its stream is up."""
        self._signal(address, Signal.CONNECTED, "", now)
        if self._routers[address].is_leaving:
            self._signal(address, Signal.NOT_SERVING, "it is not found any more", now)

    def answered(self, address: str, region: str, rtt_ms: float, serving: bool, now: float) -> None:
        """It answered a probe after `rtt_ms`."""
        router = self._routers[address]
        router.region = region
        router.rtt.add(rtt_ms)
        router.is_serving = serving
        is_serving = serving and not router.is_leaving
        signal = Signal.SERVING if is_serving else Signal.NOT_SERVING
        self._signal(address, signal, "" if is_serving else "it says that it stops", now)

    def heard(self, address: str, now: float) -> None:
        """It did not answer a probe in time, but sent something else meanwhile."""
        router = self._routers[address]
        if router.state is PeerState.SUSPECT:
            is_serving = router.is_serving and not router.is_leaving
            signal = Signal.SERVING if is_serving else Signal.NOT_SERVING
            self._signal(address, signal, "it is heard", now)

    def unanswered(self, address: str, now: float) -> None:
        """It did not answer a probe in time, and sent nothing else."""
        self._signal(address, Signal.SILENT, "it does not answer", now)

    def lost(self, address: str, why: str, now: float, *, is_own: bool = False) -> None:
        """Its stream broke, or an attempt to reach it failed. That is no failure of the router if
        it was draining, or if this edge itself was suspended (`is_own`)."""
        router = self._routers[address]
        health = router.health
        if health.is_up:
            router.lost_at = now
        is_failure = health.is_up and health.state is not PeerState.DRAINING and not is_own
        is_condemned = is_failure and health.fail(now) and self._may_condemn(health)
        self._signal(address, Signal.LOST, why, now)
        if is_condemned:
            self._note(address, health.condemn(now), why)

    def expire(self, now: float) -> None:
        """Apply changes that depend only on time."""
        for router in self:
            self._note(router.address, router.health.expire(now), "time")

    def may_return(self, within_s: float, now: float) -> bool:
        """Whether a router was lost within the last `within_s`, and may be back soon."""
        times = [router.lost_at for router in self if not router.is_leaving]
        return any(at is not None and now - at < within_s for at in times)

    # --- sessions ---

    def pick(self, avoid: Collection[str] = ()) -> Router | None:
        """The router for the next session, preferring routers that are not in `avoid`. If all are
        silent, which is more likely a fault of this edge or its network, one whose stream is up."""
        able = [router for router in self if router.health.takes_sessions]
        able = able or [router for router in self if router.state is PeerState.SUSPECT]
        others = [router for router in able if router.address not in avoid]
        if not able:
            return None
        near = self._nearest(others or able)
        if len(others) == len(able):
            self._home = _region(near[0])
        if len(near) == 1:
            return near[0]
        return min(self._rng.sample(near, 2), key=lambda router: router.num_sessions)

    def opened(self, address: str, session: int) -> None:
        """A session went to it."""
        router = self._routers[address]
        router.num_sessions += 1
        router.health.begin_session(session)

    def served(self, address: str, session: int, now: float) -> None:
        """A session got tokens through it: a trial session succeeded."""
        health = self._routers[address].health
        if health.trial == session:
            self._note(address, health.signal(Signal.CLEARED, now), "a trial went well")

    def closed(self, address: str, session: int) -> None:
        """One of its sessions is over."""
        router = self._routers[address]
        router.num_sessions -= 1
        router.health.end_session(session)

    # --- selection ---

    def _nearest(self, able: list[Router]) -> list[Router]:
        """The routers of the nearest region. Among regions equally near, the one in use stays in
        use; if none is, the order of the settings decides."""
        regions: dict[str, list[Router]] = {}
        for router in able:
            regions.setdefault(_region(router), []).append(router)
        far_ms = {
            region: min(router.rtt.smoothed_ms for router in routers)
            for region, routers in regions.items()
        }
        least_ms = min(far_ms.values())
        limit_ms = max(_NEAR * least_ms, least_ms + _NEAR_MS)
        near = [region for region in regions if far_ms[region] <= limit_ms]
        if self._home in near:
            return regions[self._home]
        return regions[min(near, key=lambda it: (min(r.rank for r in regions[it]), far_ms[it]))]

    def _may_condemn(self, health: PeerHealth) -> bool:
        """At most half of the routers are in quarantine at a time."""
        others = sum(r.health.quarantine.is_active for r in self if r.health is not health)
        return 2 * (others + 1) <= len(self._routers)

    def _signal(self, address: str, signal: Signal, why: str, now: float) -> None:
        self._note(address, self._routers[address].health.signal(signal, now), why)

    def _note(self, address: str, change: Change | None, why: str) -> None:
        if change:
            self._transitions.append(RouterTransition(address, change.before, change.after, why))


def _region(router: Router) -> str:
    """A router that reports no region forms one with those found by the same target."""
    return router.region or router.source
