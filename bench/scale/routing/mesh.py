"""Our router: registry, prefix index, placement and admission are the service's own."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from random import Random

from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import Region
from bench.scale.routing.base import Report, Site
from outrider.errors import OutriderError
from outrider.session_types import Priority
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.tenants.accounts import TenantPolicy
from services.router.admission.ticket import Arrival
from services.router.config import ReplicaConfig, RouterConfig
from services.router.fleet.geography import Geography
from services.router.fleet.load import Model
from services.router.fleet.registry import Registry
from services.router.placement.placement import Placement
from services.router.placement.request import Decision, PlacementPolicy, Request
from services.router.prefixes import follower
from services.router.prefixes.follower import Follower
from services.router.prefixes.index import PrefixIndex, PrefixLimits
from services.router.relay.entry.scout import FleetScout

MODEL = Model("virtual", b"virtual", block_tokens=BLOCK_TOKENS)
_DEFAULTS = RouterConfig()
POLICY = PlacementPolicy(near_ms=_DEFAULTS.near_ms, max_queued=_DEFAULTS.max_queued)
_EXPIRE_S = 0.5
"""What passes with time alone takes seconds; a router looks for it more often."""
_TIDY_ROWS = 256


class MeshRouter:
    """Implements base.Router."""

    def __init__(
        self,
        own: Region,
        regions: Sequence[Region],
        seed: int,
        *,
        policy: PlacementPolicy = POLICY,
        gated: bool = False,
    ) -> None:
        """`gated`: admission stands before placement, with its own defaults."""
        geography = Geography(own.name, [region.config for region in regions], 100.0)
        self._registry = Registry((), rtt_ms=geography.rtt_ms, now=0.0)
        self._index = PrefixIndex(PrefixLimits())
        self._placement = Placement(self._registry, self._index, policy, Random(seed))
        self._followers: dict[str, Follower] = {}
        self._connected: dict[str, Site] = {}
        self._admission = Admission(AdmissionPolicy(), [TenantPolicy("*")])
        self._scout = FleetScout(self._placement.decide, own.name, return_s=0.0)
        self._gated = gated
        self._asks: dict[int, tuple[Ask, Request]] = {}
        self._on: dict[int, str] = {}
        """Which replica has a request."""
        self._expired_at = 0.0

    def connect(self, site: Site, now: float) -> None:
        registry = self._registry
        if registry.find(site.name) is None:
            registry.add(ReplicaConfig(site.name, site.region, "virtual:1"), now)
        registry.connected(site.name, MODEL, now)
        registry.probed(site.name, site.rtt_ms, True, now)
        self._connected[site.name] = site
        owner = self._placement.owner(site.name)
        self._followers[site.name] = made = Follower(self._index, owner, BLOCK_TOKENS)
        made.snapshot(1, 1, follower.Part((), is_first=True, is_last=True))
        self._survey(now)

    def lose(self, name: str, now: float) -> None:
        self._connected.pop(name, None)
        self._registry.lost(name, "its connection was reset", now)
        self._survey(now)

    def _survey(self, now: float) -> None:
        if self._gated:
            self._scout.survey(self._registry, now)

    def report(self, reports: Sequence[Report], now: float) -> None:
        for report in reports:
            if report.name in self._connected:
                self._registry.report(report.name, report.load, now)
                known = self._followers[report.name]
                known.events(known.log, known.next_sequence, report.blocks)
        if now - self._expired_at >= _EXPIRE_S:
            self._expired_at = now
            self._registry.expire(now)
            self._registry.take_transitions()
            self._survey(now)
            self._admission.expire(now)
            self._index.tidy(now, _TIDY_ROWS)

    def place(self, ask: Ask, now: float) -> str | None:
        prompt = self._index.prompt(array("I", ask.prompt).tobytes(), b"")
        request = Request(
            *(MODEL.name, MODEL.vocabulary_digest, len(ask.prompt) + ask.committed),
            exclude=ask.tried,
            priority=ask.priority,
            prompt=prompt,
        )
        self._asks[ask.number] = (ask, request)
        try:
            decision = self._admit(ask, request, now)
        except OutriderError:
            del self._asks[ask.number]
            raise
        return None if decision is None else self._put(ask.number, decision, now)

    def _admit(self, ask: Ask, request: Request, now: float) -> Decision | None:
        if not self._gated:
            return self._placement.decide(request, now)
        arrival = Arrival(
            ask.number,
            request,
            ask.reply_tokens,
            priority=Priority(ask.priority),
            has_started=ask.num_places > 0,
            num_resumed=ask.committed,
        )
        route = self._admission.open(arrival, self._scout, now)
        return None if route is None else route.sight.decision

    def wake(self, now: float) -> Iterator[tuple[Ask, str | OutriderError]]:
        for turn in self._admission.wake(self._scout, now):
            ask, _ = self._asks[turn.session]
            if isinstance(turn.outcome, OutriderError):
                self.release(ask, now)
                yield ask, turn.outcome
            else:
                yield ask, self._put(turn.session, turn.outcome.sight.decision, now)
        for number, error in self._admission.take_refused():
            ask, _ = self._asks[number]
            self.release(ask, now)
            yield ask, error

    def release(self, ask: Ask, now: float) -> None:
        self._admission.leave(ask.number, ask.committed, now)
        self._placement.release(ask.number)
        name = self._on.pop(ask.number, None)
        if name is not None:
            self._registry.release(name, ask.number)
        del self._asks[ask.number]

    def _put(self, number: int, decision: Decision, now: float) -> str:
        _, request = self._asks[number]
        self._placement.put(number, request, decision, now)
        self._registry.place(decision.replica, number, now)
        self._on[number] = decision.replica
        return decision.replica
