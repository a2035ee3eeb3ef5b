"""Routers of the simulated fleet: ours, whose registry, prefix index, placement and admission are
the service's own, and round robin, which knows nothing of prompts."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import Region
from outrider.errors import NoReplicaError, OutriderError
from services.inference.kv import events as replicas
from services.inference.scheduler import types as scheduling
from services.inference.scheduler.types import OverloadLevel
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy, WakeUpPolicy
from services.router.admission.routing import LiveFleetView
from services.router.admission.tenants import TenantPolicy
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.geography import Geography
from services.router.fleet.registry import Registry
from services.router.fleet.replica import ClassLoad, PrefillLimits, ReplicaLoad, ServedModel
from services.router.placement.placement import Placement
from services.router.placement.types import Decision, PlacementPolicy
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.prefix_index.kv_events import (
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    KvEventFollower,
    SnapshotPart,
)
from services.router.session_request import SessionRequest


@dataclass(frozen=True, slots=True)
class Site:
    """A replica, as configuration has it."""

    name: str
    region: str
    rtt_ms: float
    """To the router, as a probe would measure it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica said, a while ago."""

    name: str
    load: ReplicaLoad
    blocks: tuple[KvEvent, ...]

    @classmethod
    def of(
        cls, name: str, load: scheduling.SchedulerLoad, blocks: Sequence[replicas.BlockEvent]
    ) -> Report:
        """As routers read from the wire what a replica's scheduler and pool say."""
        return cls(
            name,
            ReplicaLoad(
                running_sessions=load.running_sessions,
                queued_sessions=load.queued_sessions,
                queued_prompt_tokens=load.queued_prompt_tokens,
                fixed_ms=load.fixed_ms,
                row_ms=load.row_ms,
                is_cost_guessed=load.is_cost_guessed,
                max_sessions=load.max_sessions,
                max_queue=load.max_queue,
                overload_level=load.overload_level,
                low=_part(load.low),
                medium=_part(load.medium),
                service_ms=load.service_ms,
                kv_blocks_total=load.kv_blocks_total,
                kv_blocks_free=load.kv_blocks_free,
                kv_blocks_owed=load.kv_blocks_owed,
                reply_tokens=load.reply_tokens,
                queues_low=load.overload_level >= OverloadLevel.QUEUE_LOW,
                refuses_sessions=load.overload_level >= OverloadLevel.REFUSE,
            ),
            tuple(_event(event) for event in blocks),
        )


def _part(load: scheduling.ClassLoad) -> ClassLoad:
    return ClassLoad(load.sessions, load.queued_prompt_tokens, load.kv_blocks)


def _event(event: replicas.BlockEvent) -> KvEvent:
    if isinstance(event, replicas.Stored):
        return BlocksStored(event.parent, event.hashes, len(event.hashes) * BLOCK_TOKENS)
    return BlocksRemoved(event.hashes)


class Router(Protocol):
    """The router of one region. All verbs take the time."""

    def connect(self, site: Site, now: float) -> None:
        """A replica can be reached, with an empty cache and no sessions."""

    def lose(self, name: str, now: float) -> None:
        """Its stream broke."""

    def report(self, reports: Sequence[Report], now: float) -> None:
        """Loads and block events came in."""

    def place(self, ask: Ask, now: float) -> str | None:
        """The replica that is to have it; None: it waits for `wake`. Raises OutriderError if none
        can."""

    def wake(self, now: float) -> Iterable[tuple[Ask, str | OutriderError]]:
        """Those that waited and are to go to a replica now, or nowhere; asked for one by one."""

    def release(self, ask: Ask, now: float) -> None:
        """It ended, or left its replica."""


class RoundRobin:
    """Each replica of the own region that can be reached in turn; others, if there are none."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._sites: dict[str, Site] = {}
        self._turns = itertools.count()

    def connect(self, site: Site, now: float) -> None:
        self._sites[site.name] = site

    def lose(self, name: str, now: float) -> None:
        self._sites.pop(name, None)

    def report(self, reports: Sequence[Report], now: float) -> None:
        """Load reports are ignored."""

    def wake(self, now: float) -> Iterable[tuple[Ask, str | OutriderError]]:
        """No request waits."""
        return ()

    def place(self, ask: Ask, now: float) -> str:
        sites = self._sites.values()
        names = [site.name for site in sites if site.region == self._region] or [*self._sites]
        if not names:
            raise NoReplicaError("every replica is down")
        return names[next(self._turns) % len(names)]

    def release(self, ask: Ask, now: float) -> None:
        """Nothing is counted."""


MODEL = ServedModel(
    "virtual",
    b"virtual",
    block_tokens=BLOCK_TOKENS,
    prefill_limits=PrefillLimits(256, 12, 40.0, 8.0, 1.25),  # a replica's defaults
)
POLICY = PlacementPolicy()
_EXPIRE_S = 0.5
"""What passes with time alone takes seconds; a router looks for it more often."""
_TIDY_ROWS = 256


class MeshRouter:
    """Ours: admission control and placement with their own defaults."""

    def __init__(
        self,
        own: Region,
        regions: Sequence[Region],
        seed: int,
        *,
        policy: PlacementPolicy = POLICY,
        wake_up: WakeUpPolicy | None = None,
    ) -> None:
        geography = Geography(own.name, [region.config for region in regions], 100.0)
        self._registry = Registry((), rtt_ms=geography.rtt_ms, now=0.0)
        self._index = PrefixIndex(PrefixIndexLimits())
        self._placement = Placement(self._registry, self._index, policy, Random(seed))
        self._followers: dict[str, KvEventFollower] = {}
        self._connected: dict[str, Site] = {}
        self._admission = Admission(AdmissionPolicy(), [TenantPolicy("*")], wake_up=wake_up)
        self._fleet_view = LiveFleetView(self._decide, own.name, 0.0, wake_up)
        self._asks: dict[int, tuple[Ask, SessionRequest]] = {}
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
        self._followers[site.name] = made = KvEventFollower(self._index, owner, BLOCK_TOKENS)
        made.apply_snapshot(1, 1, SnapshotPart((), is_first=True, is_last=True))
        self._fleet_view.refresh(self._registry, now)

    def lose(self, name: str, now: float) -> None:
        self._connected.pop(name, None)
        self._registry.lost(name, "its connection was reset", now)
        self._fleet_view.refresh(self._registry, now)

    def report(self, reports: Sequence[Report], now: float) -> None:
        for report in reports:
            if report.name in self._connected:
                self._registry.report(report.name, report.load, now)
                known = self._followers[report.name]
                known.apply(known.log, known.next_sequence, report.blocks)
        if now - self._expired_at >= _EXPIRE_S:
            self._expired_at = now
            self._registry.expire(now)
            self._registry.take_transitions()
            self._fleet_view.refresh(self._registry, now)
            self._admission.expire(now)
            self._index.sweep(now, _TIDY_ROWS)

    def place(self, ask: Ask, now: float) -> str | None:
        request = self._request(ask)
        self._asks[ask.number] = (ask, request)
        try:
            decision = self._admit(ask, request, now)
        except OutriderError:
            del self._asks[ask.number]
            raise
        return None if decision is None else self._put(ask.number, decision, now)

    def _request(self, ask: Ask) -> SessionRequest:
        return SessionRequest(
            MODEL.name,
            MODEL.vocabulary_digest,
            len(ask.prompt),
            # One that lost its replica is let in as one that resumes, without a token as well.
            num_committed=max(ask.committed, int(ask.num_places > 0)),
            max_tokens=ask.reply_tokens,
            call_key=ask.number,
            prompt=self._index.prompt(array("I", ask.prompt).tobytes(), b""),
        )

    def _admit(self, ask: Ask, request: SessionRequest, now: float) -> Decision | None:
        route = self._admission.open(ask.number, request, self._fleet_view, now)
        return None if route is None else route.decision

    def _decide(self, request: SessionRequest, now: float) -> Decision:
        ask, _ = self._asks[request.call_key]
        return self._placement.decide(request, now, ask.tried)

    def wake(self, now: float) -> Iterator[tuple[Ask, str | OutriderError]]:
        for turn in self._admission.dequeue(self._fleet_view, now):
            ask, _ = self._asks[turn.session_id]
            if isinstance(turn.outcome, OutriderError):
                self.release(ask, now)
                yield ask, turn.outcome
            else:
                yield ask, self._put(turn.session_id, turn.outcome.decision, now)
        for number, error in self._admission.take_refused():
            ask, _ = self._asks[number]
            self.release(ask, now)
            yield ask, error

    def release(self, ask: Ask, now: float) -> None:
        self._admission.close(ask.number, ask.committed, now)
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
