"""What a fleet asks of a router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.scale.demand import BLOCK_TOKENS, Ask
from outrider.errors import OutriderError
from services.inference.kv import events as replicas
from services.inference.scheduler import types as scheduling
from services.inference.scheduler.types import OverloadLevel
from services.router.fleet.replica import ClassLoad, ReplicaLoad
from services.router.prefix_index.kv_events import BlocksRemoved, BlocksStored, KvEvent


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
    def of(cls, name: str, load: scheduling.Load, blocks: Sequence[replicas.BlockEvent]) -> Report:
        """As routers read from the wire what a replica's scheduler and pool say."""
        return cls(
            name,
            ReplicaLoad(
                running_sessions=load.running_sessions,
                queued_sessions=load.queued_sessions,
                queued_prompt_tokens=load.queued_prompt_tokens,
                fixed_ms=load.fixed_ms,
                row_ms=load.row_ms,
                max_sessions=load.max_sessions,
                overload_level=load.overload_level,
                low=_part(load.low),
                medium=_part(load.medium),
                stay_ms=load.stay_ms,
                queues_low=load.overload_level >= OverloadLevel.QUEUE_LOW,
                refuses_sessions=load.overload_level >= OverloadLevel.REFUSE,
            ),
            tuple(_event(event) for event in blocks),
        )


def _part(load: scheduling.ClassLoad) -> ClassLoad:
    return ClassLoad(load.sessions, load.queued_prompt_tokens)


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
