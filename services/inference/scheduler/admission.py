"""Which sessions are admitted, when their first token will come, and the replica's overload
level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engines.base import EngineInfo
from outrider.engines.candidates import check_sampling
from outrider.errors import (
    DeadlineError,
    EmptyPromptError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
)
from outrider.session.types import Priority
from services.inference.scheduler.background import BackgroundShare
from services.inference.scheduler.cost_model import CostModel, attention_work
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.queues import SessionQueues
from services.inference.scheduler.session import SchedulingState, Session
from services.inference.scheduler.types import OpenRequest, OverloadLevel

_MAX_RETRY_DELAY_MS = 30_000
_BACKGROUND_RETRY_MS = 1000
"""When a refused background session may be tried again, if it was not for their share."""
_LEAST_SHARE = 0.5
"""A deadline counts as out of reach if it comes before this share of the time predicted for a
session that has the machine to itself."""
_SERVICE_SMOOTHING = 0.1
_LEVEL_HOLD_S = 1.0
"""An overload level is left only after the pressure has been below it for this long."""
_LEVEL_RELEASE = 0.7
"""Share of a level's threshold that the pressure has to fall below."""

THRESHOLDS = {
    OverloadLevel.NO_DRAFTS: 0.25,
    OverloadLevel.SMALL_CHUNKS: 0.5,
    OverloadLevel.QUEUE_LOW: 0.75,
    OverloadLevel.REFUSE: 1.0,
}
"""Least pressure at which each level applies."""


def check_request(request: OpenRequest, info: EngineInfo, context_limit: int) -> None:
    """Raises EmptyPromptError, InvalidRequestError (ids outside the vocabulary),
    InvalidSamplingError and PromptTooLongError."""
    if not request.prompt:
        raise EmptyPromptError("the prompt has no tokens; send at least one")
    check_ids("the prompt", request.prompt, info)
    check_ids("resume", request.resume, info)
    check_ids("the prediction", request.prediction, info)
    if request.drafts is not None:
        check_ids("a draft", request.drafts.ids, info)
    check_sampling(request.sampling, info)
    if len(request.prompt) >= context_limit:
        raise PromptTooLongError.of(len(request.prompt), context_limit - 1)


def check_ids(name: str, ids: Sequence[int], info: EngineInfo) -> None:
    """Raises InvalidRequestError unless all are of the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < info.vocabulary_size):
        raise InvalidRequestError(
            f"{name} has an id outside 0 .. {info.vocabulary_size - 1}; "
            "check that both sides use the same vocabulary"
        )


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """Work that is served before a session that arrives now."""

    num_sessions: int
    """Sessions that are admitted before it."""
    num_free_slots: int
    """Places that are free, or that lower classes give up."""
    prompt_tokens: int
    """Prompt tokens that are computed before its own."""
    num_replying: int
    """Sessions that have a token in every call."""


def queue_ahead(queues: SessionQueues, priority: Priority, rank: tuple[float, int]) -> QueueAhead:
    """Work that is served before a session of this class and rank."""
    sessions = [s for s in (*queues.waiting, *queues.paused) if s.rank < rank]
    prompts = [s for s in queues.running if s.state is SchedulingState.PREFILLING and s.rank < rank]
    return QueueAhead(
        num_sessions=len(sessions),
        num_free_slots=queues.num_free_slots(priority),
        prompt_tokens=sum(session.num_uncached for session in (*sessions, *prompts)),
        num_replying=sum(
            session.state is SchedulingState.DECODING
            for session in queues.foreground(queues.running)
        ),
    )


class Forecast:
    """Learns the service time of sessions, and predicts when new ones have their first token."""

    def __init__(self, limits: SchedulerLimits, cost: CostModel) -> None:
        self._limits = limits
        self._cost = cost
        self.service_ms = 0.0
        """Mean service time: from a session's admission to its end; 0.0 before any ended."""
        self.reply_tokens = 0.0
        """Mean length of a reply; 0.0 before any ended."""

    def observe_service(self, service_ms: float, reply_tokens: int) -> None:
        """A session with a reply of this length ended, which had been admitted this long ago."""
        weight = 1.0 if self.service_ms == 0.0 else _SERVICE_SMOOTHING
        self.service_ms += (service_ms - self.service_ms) * weight
        self.reply_tokens += (reply_tokens - self.reply_tokens) * weight

    def ttft_ms(self, num_tokens: int, ahead: QueueAhead) -> float:
        """Time to the first token of a session that has num_tokens to compute.

        Places come free one by one, spread over a session's service time; before any session ended
        they cost nothing. The prompts ahead are computed in the same time.
        """
        excess = max(0, ahead.num_sessions + 1 - ahead.num_free_slots)
        slot_ms = excess * self.service_ms / self._limits.max_sessions
        ahead_ms = self._prefill_ms(ahead.prompt_tokens, ahead.num_replying)
        return max(slot_ms, ahead_ms) + self._prefill_ms(num_tokens, ahead.num_replying)

    def _prefill_ms(self, num_tokens: int, num_replying: int) -> float:
        cost = self._cost
        calls = -(-num_tokens // self._chunk_tokens(num_replying))
        return calls * (cost.fixed_ms + cost.row_ms * num_replying) + cost.row_ms * num_tokens

    def _chunk_tokens(self, num_replying: int) -> int:
        limits = self._limits
        if not num_replying:
            return limits.prefill_chunk_tokens
        call_ms = self._cost.fixed_ms + self._cost.row_ms * num_replying
        tick_ms = limits.tick_ms(self._cost.fixed_ms + self._cost.row_ms)
        spare_ms = tick_ms - call_ms
        return max(1, min(limits.prefill_chunk_tokens, int(spare_ms / self._cost.row_ms)))

    def least_s(self, num_tokens: int, past: int = 0) -> float:
        """Least seconds to the next token of a session that has num_tokens to compute behind `past`
        ones: _LEAST_SHARE of the predicted time with the machine to itself."""
        cost = self._cost
        chunk = min(self._limits.prefill_chunk_tokens, num_tokens)
        middle = past + num_tokens // 2 - chunk // 2
        attention = num_tokens / chunk * attention_work(chunk, middle)
        calls = -(-num_tokens // chunk)
        ms = calls * cost.fixed_ms + num_tokens * cost.row_ms + cost.attention_ms * attention
        return _LEAST_SHARE * ms / 1e3

    def is_late(self, session: Session, now: float, num_cached: int = 0) -> bool:
        """Whether its deadline comes before its next token can, even with the machine to itself.
        num_cached of its tokens are in the prefix cache; tokens that may be loaded need not be
        computed."""
        deadline = session.request.deadline
        if deadline is None or deadline <= now:
            return deadline is not None
        past = max(num_cached, session.num_computed, session.num_loadable)
        past = min(past, len(session.ids) - 1)
        return deadline < now + self.least_s(len(session.ids) - past, past)


class Overload:
    """The overload level, from a pressure of 0 (idle) to 1 (no more can be admitted) and beyond.

    It rises at once and falls one level at a time, after _LEVEL_HOLD_S: shedding relieves the
    pressure, so that the level would otherwise fall too soon.
    """

    def __init__(self) -> None:
        self.level = OverloadLevel.NORMAL
        self._pressed_at = 0.0
        """When the pressure was last too high to leave the level."""

    def update(self, pressure: float, now: float) -> OverloadLevel:
        """Take a measurement; returns the level from now on. `now` in seconds."""
        reached = max((n for n, least in THRESHOLDS.items() if pressure >= least), default=None)
        if reached is not None and reached >= self.level:
            self.level = reached
            self._pressed_at = now
        elif self.level is not OverloadLevel.NORMAL:
            if pressure >= _LEVEL_RELEASE * THRESHOLDS[self.level]:
                self._pressed_at = now
            elif now - self._pressed_at >= _LEVEL_HOLD_S:
                self.level = OverloadLevel(self.level - 1)
                self._pressed_at = now
        return self.level

    def clear(self) -> OverloadLevel:
        """Nobody is there for whom anything would be shed."""
        self.level = OverloadLevel.NORMAL
        return self.level


class Admission:
    """Refuses what would wait too long; never touches sessions that were let in."""

    def __init__(self, limits: SchedulerLimits, queues: SessionQueues, cost: CostModel) -> None:
        self._limits = limits
        self._queues = queues
        self._cost = cost
        self.forecast = Forecast(limits, cost)
        self._overload = Overload()

    @property
    def level(self) -> OverloadLevel:
        return self._overload.level

    def check_room(self, priority: Priority) -> None:
        """Raises OverloadedError if the queue is full for this class: lower ones do not count."""
        waiting = sum(session.priority >= priority for session in self._queues.waiting)
        if waiting < self._limits.max_queue + self._queues.num_free_slots(priority):
            return
        rows = sum(session.num_uncomputed for session in self._queues.sessions.values())
        raise OverloadedError(
            f"{waiting} sessions are waiting already; come back later",
            retry_delay_ms=_retry_delay_ms(self._cost.predict_ms(rows)),
        )

    def check_background(self, share: BackgroundShare, now: float) -> None:
        """Raises OverloadedError if a background session would have to wait, or they have had their
        share of this replica."""
        queues, most = self._queues, self._limits.max_background_sessions
        wait_s = share.wait_s(now)
        if queues.num_background < most and not wait_s and not queues.foreground(queues.waiting):
            if self.level is OverloadLevel.NORMAL:
                return
        raise OverloadedError(
            "this replica has no time left for what nobody has asked for yet",
            retry_delay_ms=_retry_delay_ms(max(_BACKGROUND_RETRY_MS, wait_s * 1e3)),
        )

    def check_time(self, session: Session, num_cached: int, now: float) -> None:
        """Raises DeadlineError or OverloadedError for a session that would start too late;
        num_cached tokens of it need no computing. One that was begun elsewhere has started."""
        if self.forecast.is_late(session, now, num_cached):
            raise DeadlineError(
                "the session could not have its first token before its deadline even on an idle "
                "replica; leave it more time, or shorten the prompt"
            )
        slo_ms = self._limits.slo_ttft_ms(session.priority)
        if not slo_ms or session.request.resume or session.request.warms_up:
            return
        ahead = queue_ahead(self._queues, session.priority, session.rank)
        ttft_ms = self.forecast.ttft_ms(len(session.ids) - num_cached, ahead)
        if ttft_ms > slo_ms:
            raise OverloadedError(
                f"the first token would come after about {ttft_ms:.0f} ms, and this replica "
                f"promises {slo_ms:.0f}; come back later",
                retry_delay_ms=_retry_delay_ms(ttft_ms - slo_ms),
            )

    def update_level(self, rank: tuple[float, int], now: float) -> OverloadLevel:
        """The new overload level; `rank` is that of a MEDIUM session opened now."""
        if not self._queues.sessions:
            # An idle scheduler is not asked again before a session comes, and routers send none to
            # a replica that refuses.
            return self._overload.clear()
        return self._overload.update(self._pressure(rank), now)

    def _pressure(self, rank: tuple[float, int]) -> float:
        """How near MEDIUM sessions are to being refused, at 1. LOW sessions may wait, so their
        number adds no pressure."""
        waiting = sum(session.priority > Priority.LOW for session in self._queues.waiting)
        pressure = 0.0
        if waiting:
            excess = max(0, waiting - self._queues.num_free_slots(Priority.MEDIUM))
            pressure = excess / max(1, self._limits.max_queue)
        slo_ms = self._limits.slo_ttft_medium_ms
        if slo_ms:
            ahead = queue_ahead(self._queues, Priority.MEDIUM, rank)
            pressure = max(pressure, self.forecast.ttft_ms(1, ahead) / slo_ms)
        return pressure


def _retry_delay_ms(wait_ms: float) -> int:
    """Whole milliseconds, 1 at least."""
    return min(_MAX_RETRY_DELAY_MS, 1 + math.ceil(wait_ms))
