"""Who is let in, and how far the replica is overloaded."""

from __future__ import annotations

import math

from outrider.errors import DeadlineError, OverloadedError
from outrider.session_types import Priority
from services.inference.scheduling.budget import CostModel
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.policy.forecast import Forecast, ahead_of
from services.inference.scheduling.policy.overload import Level, Overload
from services.inference.scheduling.roster import Roster
from services.inference.scheduling.session import Session

_MAX_RETRY_DELAY_MS = 30_000


class Admission:
    """Refuses what would wait too long; never touches who has been let in."""

    def __init__(self, limits: SchedulerLimits, roster: Roster, cost: CostModel) -> None:
        self._limits = limits
        self._roster = roster
        self._cost = cost
        self.forecast = Forecast(limits, cost)
        self._overload = Overload()

    @property
    def level(self) -> Level:
        return self._overload.level

    def check_room(self, priority: Priority) -> None:
        """Raises OverloadedError if the queue is full for this class: lower ones do not count."""
        waiting = sum(session.priority >= priority for session in self._roster.waiting)
        if waiting < self._limits.max_queue + self._roster.num_vacant(priority):
            return
        rows = sum(session.num_missing for session in self._roster.sessions.values())
        raise OverloadedError(
            f"{waiting} sessions are waiting already; come back later",
            retry_delay_ms=_retry_delay_ms(self._cost.predict_ms(rows)),
        )

    def check_time(self, session: Session, cached: int, now: float) -> None:
        """Raises DeadlineError or OverloadedError for a session that would start too late;
        `cached` tokens of it need no computing. One that goes on elsewhere has started."""
        if self.forecast.is_late(session, now, cached):
            raise DeadlineError(
                "not even alone could the session have its first token before its deadline; "
                "leave it more time, or shorten the prompt"
            )
        slo_ms = self._limits.slo_ttft_ms(session.priority)
        if not slo_ms or session.request.resume:
            return
        ahead = ahead_of(self._roster, session.priority, session.rank)
        ttft_ms = self.forecast.ttft_ms(len(session.ids) - cached, ahead)
        if ttft_ms > slo_ms:
            raise OverloadedError(
                f"the first token would come after about {ttft_ms:.0f} ms, and this replica "
                f"promises {slo_ms:.0f}; come back later",
                retry_delay_ms=_retry_delay_ms(ttft_ms - slo_ms),
            )

    def is_late(self, session: Session, now: float, cached: int = 0) -> bool:
        """Whether its deadline comes before its next token can, though it were alone."""
        return self.forecast.is_late(session, now, cached)

    def stayed(self, ms: float) -> None:
        """A session ended that had kept a place for so long."""
        self.forecast.stayed(ms)

    def update(self, rank: tuple[float, int], now: float) -> Level:
        """The level of overload from now on; `rank` is that of a MEDIUM session that came now."""
        return self._overload.update(self._pressure(rank), now)

    def _pressure(self, rank: tuple[float, int]) -> float:
        """Of 1, how near MEDIUM sessions are to being refused. LOW ones are let wait: their
        number is no pressure."""
        waiting = sum(session.priority > Priority.LOW for session in self._roster.waiting)
        excess = max(0, waiting - self._roster.num_vacant(Priority.MEDIUM))
        pressure = excess / max(1, self._limits.max_queue)
        slo_ms = self._limits.slo_ttft_medium_ms
        if slo_ms:
            ahead = ahead_of(self._roster, Priority.MEDIUM, rank)
            pressure = max(pressure, self.forecast.ttft_ms(1, ahead) / slo_ms)
        return pressure


def _retry_delay_ms(wait_ms: float) -> int:
    """Whole milliseconds, 1 at least."""
    return min(_MAX_RETRY_DELAY_MS, 1 + math.ceil(wait_ms))
