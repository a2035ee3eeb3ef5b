"""Which instance a session goes to (pure).

To the one where it is predicted to end first: its first token, by the same forecast that admits
sessions (`scheduling.policy.forecast`), and then its reply, whose calls it shares with whoever is
there. An instance that holds the prompt's beginning is asked for less prefill, and so gets the
session, unless its queue or its company costs more than that saves. What is known are the ticks'
loads, block events and events: nothing here looks into another thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import OverloadedError
from outrider.session_types import FinishReason
from services.inference.instances.prefixes import Prefixes
from services.inference.instances.standing import Placed, Stage, Standing
from services.inference.kv.events import BlockEvent
from services.inference.scheduling.budget import CostModel
from services.inference.scheduling.events import (
    Committed,
    Event,
    Failed,
    Finished,
    Load,
    Opened,
    OpenRequest,
)
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.policy.forecast import Forecast

_REPLY_TOKENS = 128.0
"""Assumed length of a reply before any was seen."""
_SMOOTHING = 0.1
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


class Placement:
    """The sessions of all instances, and the choice for a new one.

    The caller hands every session to the instance that place() or again() names, and every event
    of every instance to take(). Each session ends with one Finished or Failed.
    """

    def __init__(self, limits: SchedulerLimits, block_tokens: int, loads: Sequence[Load]) -> None:
        """`loads`: each instance's before its first tick. The limits are each instance's."""
        self._limits = limits
        self._prefixes = Prefixes(len(loads), block_tokens)
        self._standings = [Standing(load) for load in loads]
        self._sessions: dict[int, Placed] = {}
        # One cost for all: the instances are alike, so where their fits differ it is by chance.
        self._cost = CostModel(limits.fixed_ms, limits.row_ms)
        self._forecast = Forecast(limits, self._cost)
        self._reply_tokens = _REPLY_TOKENS
        self._num_placed = 0

    @property
    def loads(self) -> list[Load]:
        """The latest of every instance."""
        return [standing.load for standing in self._standings]

    def instance_of(self, session: int) -> int | None:
        """Where a session is; None if it has ended."""
        placed = self._sessions.get(session)
        return None if placed is None else placed.instance

    def place(self, request: OpenRequest) -> int:
        """Choose the instance of a new session, which is in its books from now on."""
        session = Placed(request, instance=0, num_missing=0)
        self._sessions[request.session] = session
        return self._put(session)

    def again(self, refused: Failed) -> tuple[int, OpenRequest] | None:
        """Another instance for a session that its own had no room for, if there is one: then it
        is there now. None for whatever else failed."""
        session = self._sessions.get(refused.session)
        if session is None or session.cancelled or session.stage is not Stage.PLACED:
            return None
        session.tried.add(session.instance)
        overloaded = isinstance(refused.error, OverloadedError)
        if not overloaded or len(session.tried) == len(self._standings):
            return None
        self._standings[session.instance].remove(session)
        return self._put(session), session.request

    def cancel(self, session: int) -> int | None:
        """The session is not wanted any more; where it is, None if it has ended."""
        placed = self._sessions.get(session)
        if placed is None:
            return None
        placed.cancelled = True
        return placed.instance

    def forget(self, session: int) -> None:
        """It ended without an event, or was never handed over. Unknown ones are ignored."""
        placed = self._sessions.pop(session, None)
        if placed is not None:
            self._standings[placed.instance].remove(placed)

    def sessions_on(self, instance: int) -> list[int]:
        """Those that have not ended."""
        return [n for n, placed in self._sessions.items() if placed.instance == instance]

    def report(
        self, instance: int, load: Load, blocks: Sequence[BlockEvent]
    ) -> tuple[BlockEvent, ...]:
        """A tick's load and block events; returns the block events of all instances together."""
        self._standings[instance].load = load
        return self._prefixes.take(instance, blocks)

    def take(self, event: Event) -> None:
        """What happened to a session; unknown ones are ignored."""
        session = self._sessions.get(event.session)
        if session is None:
            return
        standing = self._standings[session.instance]
        if isinstance(event, Committed):
            if session.stage is not Stage.REPLYING:
                standing.advance(session, Stage.REPLYING, 0)
        elif isinstance(event, Opened):
            num_ids = event.prompt_tokens + len(session.request.resume)
            standing.advance(session, Stage.TAKEN, max(1, num_ids - event.cached_tokens))
        else:
            if isinstance(event, Finished):
                self._learn(event)
            self.forget(event.session)

    def _put(self, session: Placed) -> int:
        """Into the books of the best instance that was not tried."""
        request = session.request
        ids = (*request.prompt, *request.resume)
        missing = [max(1, len(ids) - n) for n in self._prefixes.cached(ids, request.cache_salt)]
        self._cost.fixed_ms = _mean([load.fixed_ms for load in self.loads])
        self._cost.row_ms = _mean([load.row_ms for load in self.loads])
        prices = {
            (self._price_ms(standing, request, missing[number]), standing.used_at, number)
            for number, standing in enumerate(self._standings)
            if number not in session.tried
        }
        # Between equals, the one that was not used longest.
        _, _, instance = min(prices)
        self._num_placed += 1
        self._standings[instance].used_at = self._num_placed
        session.instance, session.num_missing = instance, missing[instance]
        self._standings[instance].add(session)
        return instance

    def _price_ms(self, standing: Standing, request: OpenRequest, num_missing: int) -> float:
        """Predicted time to the session's end."""
        most = self._limits.max_sessions
        ahead = standing.ahead(request.priority, most)
        num_sharing = min(most, standing.num_sessions + 1)
        num_left = max(1, request.sampling.max_tokens - len(request.resume))
        call_ms = self._cost.fixed_ms + self._cost.row_ms * num_sharing
        reply_ms = min(self._reply_tokens, num_left) * call_ms
        return self._forecast.ttft_ms(num_missing, ahead) + reply_ms

    def _learn(self, event: Finished) -> None:
        if event.usage.completion_tokens:
            self._forecast.stayed(event.timings.total_ms - event.timings.queue_ms)
        if event.reason in _WHOLE:
            self._reply_tokens += _SMOOTHING * (event.usage.completion_tokens - self._reply_tokens)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
