"""Which engine instance a session goes to (pure).

To the one where it is predicted to end first: its first token, by the same forecast that admits
sessions (`scheduler.admission`), and then its reply, whose calls it shares with the other sessions
there. An instance that has the prompt's beginning cached needs less prefill, and so gets the
session, unless its queue or its load costs more than that saves. What is known are the ticks'
loads, block events and events: nothing here looks into another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from outrider.errors import OverloadedError
from outrider.session_types import Priority
from services.inference.instances.prefixes import InstancePrefixes
from services.inference.kv.events import BlockEvent
from services.inference.scheduler.admission import Forecast, QueueAhead
from services.inference.scheduler.cost_model import CostModel
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import (
    Begun,
    Committed,
    Event,
    Failed,
    Finished,
    Load,
    Opened,
    OpenRequest,
)

_REPLY_TOKENS = 128.0
"""Assumed length of a reply before any was seen."""
_SMOOTHING = 0.1
"""Weight of the last reply's length in the average."""


class PlacementStage(Enum):
    """How far a session has come, by the last event of it."""

    PLACED = auto()
    """Handed to its instance, which has not answered yet."""
    OPENED = auto()
    """Its instance took it in; its prompt is being computed, or waits."""
    REPLYING = auto()


@dataclass(slots=True, eq=False)
class PlacedSession:
    """A session and where it is."""

    request: OpenRequest
    instance: int
    num_uncomputed: int
    """Tokens to compute before its next one, as far as known."""
    stage: PlacementStage = PlacementStage.PLACED
    tried: set[int] = field(default_factory=set)
    """Instances that had no room for it."""
    cancelled: bool = False


class InstanceStatus:
    """What one instance has to do, as far as it is known outside its thread: its sessions, counted
    by class, so that no question takes a walk over them."""

    def __init__(self, load: Load) -> None:
        self.load = load
        """Of the last tick."""
        self.num_sessions = 0
        self.used_at = 0
        """Number of the last placement that chose this instance."""
        classes = range(max(Priority) + 1)
        self._num_waiting = [0 for _ in classes]
        self._num_replying = [0 for _ in classes]
        self._num_uncomputed = [0 for _ in classes]
        self._num_unreported = 0
        """Prompt tokens of sessions that the load does not contain yet."""

    def add(self, session: PlacedSession) -> None:
        self.num_sessions += 1
        self._count(session, 1)

    def remove(self, session: PlacedSession) -> None:
        self.num_sessions -= 1
        self._count(session, -1)

    def advance(self, session: PlacedSession, stage: PlacementStage, num_uncomputed: int) -> None:
        """A session here reached this stage."""
        self._count(session, -1)
        session.stage = stage
        session.num_uncomputed = num_uncomputed
        self._count(session, 1)

    def ahead(self, priority: Priority, max_sessions: int) -> QueueAhead:
        """What is served before a session of this class that comes now: all earlier ones of the
        same or a higher class. Ageing is left out."""
        replying = sum(self._num_replying[priority:])
        uncomputed = sum(self._num_uncomputed[priority:])
        return QueueAhead(
            num_sessions=sum(self._num_waiting[priority:]),
            num_free_slots=max(0, max_sessions - replying),
            # Prompts shrink chunk by chunk, of which the load alone tells.
            prompt_tokens=min(uncomputed, self.load.queued_prompt_tokens + self._num_unreported),
            num_replying=min(max_sessions, sum(self._num_replying)),
        )

    def _count(self, session: PlacedSession, sign: int) -> None:
        priority = session.request.priority
        if session.stage is PlacementStage.REPLYING:
            self._num_replying[priority] += sign
            return
        self._num_waiting[priority] += sign
        self._num_uncomputed[priority] += sign * session.num_uncomputed
        if session.stage is PlacementStage.PLACED:
            self._num_unreported += sign * session.num_uncomputed


class InstancePlacement:
    """The sessions of all instances, and the choice for a new one.

    The caller hands every session to the instance that place() or place_again() names, and every
    event of every instance to take(). Each session ends with one Finished or Failed.
    """

    def __init__(self, limits: SchedulerLimits, block_tokens: int, loads: Sequence[Load]) -> None:
        """`loads`: each instance's before its first tick. The limits are each instance's."""
        self._limits = limits
        self._prefixes = InstancePrefixes(len(loads), block_tokens)
        self._instances = [InstanceStatus(load) for load in loads]
        self._sessions: dict[int, PlacedSession] = {}
        # One cost for all: the instances are alike, so where their fits differ it is by chance.
        self._cost = CostModel(limits.fixed_ms, limits.row_ms)
        self._forecast = Forecast(limits, self._cost)
        self._reply_tokens = _REPLY_TOKENS
        self._num_placed = 0

    @property
    def loads(self) -> list[Load]:
        """The latest of every instance."""
        return [instance.load for instance in self._instances]

    def instance_of(self, session: int) -> int | None:
        """Where a session is; None if it has ended."""
        placed = self._sessions.get(session)
        return None if placed is None else placed.instance

    def place(self, request: OpenRequest) -> int:
        """Choose the instance of a new session, which counts as its from now on."""
        session = PlacedSession(request, instance=0, num_uncomputed=0)
        self._sessions[request.session_id] = session
        return self._choose(session)

    def place_again(self, refused: Failed) -> tuple[int, OpenRequest] | None:
        """Another instance for a session that its own had no room for, if there is one: it counts
        as that one's from now on. None for sessions that failed for another reason."""
        session = self._sessions.get(refused.session_id)
        if session is None or session.cancelled or session.stage is not PlacementStage.PLACED:
            return None
        session.tried.add(session.instance)
        overloaded = isinstance(refused.error, OverloadedError)
        if not overloaded or len(session.tried) == len(self._instances):
            return None
        self._instances[session.instance].remove(session)
        return self._choose(session), session.request

    def cancel(self, session: int) -> int | None:
        """The session is to end; returns where it is, None if it has ended."""
        placed = self._sessions.get(session)
        if placed is None:
            return None
        placed.cancelled = True
        return placed.instance

    def forget(self, session: int) -> None:
        """It ended without an event, or was never handed over. Unknown ones are ignored."""
        placed = self._sessions.pop(session, None)
        if placed is not None:
            self._instances[placed.instance].remove(placed)

    def sessions_on(self, instance: int) -> list[int]:
        """Those that have not ended."""
        return [n for n, placed in self._sessions.items() if placed.instance == instance]

    def report(
        self, instance: int, load: Load, blocks: Sequence[BlockEvent]
    ) -> tuple[BlockEvent, ...]:
        """A tick's load and block events; returns the block events of all instances together."""
        self._instances[instance].load = load
        return self._prefixes.take(instance, blocks)

    def take(self, event: Event) -> None:
        """What happened to a session; unknown ones are ignored."""
        session = self._sessions.get(event.session_id)
        if session is None:
            return
        instance = self._instances[session.instance]
        if isinstance(event, Committed):
            if session.stage is not PlacementStage.REPLYING:
                instance.advance(session, PlacementStage.REPLYING, 0)
        elif isinstance(event, Opened):
            num_ids = event.prompt_tokens + len(session.request.resume)
            num_uncomputed = max(1, num_ids - event.cached_tokens)
            instance.advance(session, PlacementStage.OPENED, num_uncomputed)
        elif not isinstance(event, Begun):
            if isinstance(event, Finished):
                self._observe(event)
            self.forget(event.session_id)

    def _choose(self, session: PlacedSession) -> int:
        """Put the session on the best instance that was not tried."""
        request = session.request
        ids = (*request.prompt, *request.resume)
        cached = self._prefixes.cached(ids, request.cache_salt)
        uncomputed = [max(1, len(ids) - num_cached) for num_cached in cached]
        self._cost.fixed_ms = _mean([load.fixed_ms for load in self.loads])
        self._cost.row_ms = _mean([load.row_ms for load in self.loads])
        # Between equals, the one that was not used longest.
        _, _, chosen = min(
            (self._end_ms(instance, request, uncomputed[number]), instance.used_at, number)
            for number, instance in enumerate(self._instances)
            if number not in session.tried
        )
        self._num_placed += 1
        self._instances[chosen].used_at = self._num_placed
        session.instance = chosen
        session.num_uncomputed = uncomputed[chosen]
        self._instances[chosen].add(session)
        return chosen

    def _end_ms(self, instance: InstanceStatus, request: OpenRequest, num_uncomputed: int) -> float:
        """Predicted time to the session's end."""
        max_sessions = self._limits.max_sessions
        ahead = instance.ahead(request.priority, max_sessions)
        num_sharing = min(max_sessions, instance.num_sessions + 1)
        num_left = max(1, request.sampling.max_tokens - len(request.resume))
        call_ms = self._cost.fixed_ms + self._cost.row_ms * num_sharing
        reply_ms = min(self._reply_tokens, num_left) * call_ms
        return self._forecast.ttft_ms(num_uncomputed, ahead) + reply_ms

    def _observe(self, event: Finished) -> None:
        completion_tokens = event.usage.completion_tokens
        if completion_tokens:
            self._forecast.observe_service(event.timings.total_ms - event.timings.queue_ms)
        if event.reason.is_whole:
            self._reply_tokens += _SMOOTHING * (completion_tokens - self._reply_tokens)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
