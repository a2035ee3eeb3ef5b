"""Our router: registry, prefix index and placement are the service's own."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from random import Random

from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import Region
from bench.scale.routing.base import Report, Site
from services.router.config import ReplicaConfig, RouterConfig
from services.router.fleet.geography import Geography
from services.router.fleet.load import Model
from services.router.fleet.registry import Registry
from services.router.placement.placement import Placement
from services.router.placement.request import PlacementPolicy, Request
from services.router.prefixes import follower
from services.router.prefixes.follower import Follower
from services.router.prefixes.index import PrefixIndex, PrefixLimits

MODEL = Model("virtual", b"virtual", block_tokens=BLOCK_TOKENS)
_DEFAULTS = RouterConfig()
POLICY = PlacementPolicy(near_ms=_DEFAULTS.near_ms, max_queued=_DEFAULTS.max_queued)
_EXPIRE_S = 0.1
_TIDY_ROWS = 256


class MeshRouter:
    """Implements base.Router. A request that waits for nothing is placed at once."""

    def __init__(
        self,
        own: Region,
        regions: Sequence[Region],
        seed: int,
        *,
        policy: PlacementPolicy = POLICY,
    ) -> None:
        geography = Geography(own.name, [region.config for region in regions], 100.0)
        self._registry = Registry((), rtt_ms=geography.rtt_ms, now=0.0)
        self._index = PrefixIndex(PrefixLimits())
        self._placement = Placement(self._registry, self._index, policy, Random(seed))
        self._followers: dict[str, Follower] = {}
        self._connected: dict[str, Site] = {}
        self._on: dict[int, str] = {}
        """Which replica has a request."""
        self._expired_at = 0.0
        self.decision_us: list[float] = []
        """Real time of each decision here."""

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

    def lose(self, name: str, now: float) -> None:
        self._connected.pop(name, None)
        self._registry.lost(name, "its connection was reset", now)

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
            self._index.tidy(now, _TIDY_ROWS)

    def place(self, ask: Ask, now: float) -> str:
        begin = time.perf_counter()
        prompt = self._index.prompt(array("I", ask.prompt).tobytes(), b"")
        request = Request(
            *(MODEL.name, MODEL.vocabulary_digest, len(ask.prompt)),
            exclude=ask.tried,
            prompt=prompt,
        )
        decision = self._placement.decide(request, now)
        self._placement.put(ask.number, request, decision, now)
        self.decision_us.append((time.perf_counter() - begin) * 1e6)
        self._registry.place(decision.replica, ask.number, now)
        self._on[ask.number] = decision.replica
        return decision.replica

    def release(self, ask: Ask, now: float) -> None:
        self._placement.release(ask.number)
        self._registry.release(self._on.pop(ask.number), ask.number)
