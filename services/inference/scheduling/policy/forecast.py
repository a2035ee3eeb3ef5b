"""When a session will have its first token, by the cost model."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session_types import Priority
from services.inference.scheduling.budget import CostModel, attention
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.roster import Roster
from services.inference.scheduling.session import Session, State

_OPTIMISM = 0.5
"""Share of the predicted time in which a session alone on the machine might yet be served."""
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before a session that comes now."""

    num_sessions: int
    """Sessions that get a place before it."""
    num_vacant: int
    """Places that are free, or that lower classes give up."""
    prompt_tokens: int
    """Of prompts that are computed before its own."""
    num_replying: int
    """Sessions that have a token in every call."""


def ahead_of(roster: Roster, priority: Priority, rank: tuple[float, int]) -> Ahead:
    """What stands before a session of this class and rank."""
    sessions = [s for s in (*roster.waiting, *roster.paused) if s.rank < rank]
    prompts = [s for s in roster.running if s.state is State.PREFILLING and s.rank < rank]
    return Ahead(
        num_sessions=len(sessions),
        num_vacant=roster.num_vacant(priority),
        prompt_tokens=sum(session.num_uncached for session in (*sessions, *prompts)),
        num_replying=sum(session.state is State.DECODING for session in roster.running),
    )


class Forecast:
    """Learns how long sessions keep their places, and predicts."""

    def __init__(self, limits: SchedulerLimits, cost: CostModel) -> None:
        self._limits = limits
        self._cost = cost
        self.stay_ms = 0.0
        """Mean time for which a session keeps its place; 0.0 before any ended."""

    def stayed(self, ms: float) -> None:
        """A session ended that had kept a place for so long."""
        first = self.stay_ms == 0.0
        self.stay_ms += (ms - self.stay_ms) * (1.0 if first else _SMOOTHING)

    def ttft_ms(self, num_tokens: int, ahead: Ahead) -> float:
        """First token of a session that has num_tokens to compute. Places come free one by one,
        over the time that a session keeps one; before any did, they cost nothing. Meanwhile the
        prompts ahead are computed."""
        excess = max(0, ahead.num_sessions + 1 - ahead.num_vacant)
        place_ms = excess * self.stay_ms / self._limits.max_sessions
        ahead_ms = self._prefill_ms(ahead.prompt_tokens, ahead.num_replying)
        return max(place_ms, ahead_ms) + self._prefill_ms(num_tokens, ahead.num_replying)

    def _prefill_ms(self, num_tokens: int, num_replying: int) -> float:
        cost = self._cost
        calls = -(-num_tokens // self._chunk_tokens(num_replying))
        return calls * (cost.fixed_ms + cost.row_ms * num_replying) + cost.row_ms * num_tokens

    def _chunk_tokens(self, num_replying: int) -> int:
        limits = self._limits
        if not num_replying:
            return limits.prefill_chunk_tokens
        call_ms = self._cost.fixed_ms + self._cost.row_ms * num_replying
        spare_ms = min(limits.max_tick_ms, limits.prefill_stretch * call_ms) - call_ms
        return max(1, min(limits.prefill_chunk_tokens, int(spare_ms / self._cost.row_ms)))

    def least_s(self, num_tokens: int, past: int = 0) -> float:
        """Seconds to the next token of a session that has num_tokens to compute behind `past`
        ones, were it alone, on a machine in better shape than ever."""
        cost, chunk = self._cost, min(self._limits.prefill_chunk_tokens, num_tokens)
        context = num_tokens / chunk * attention(chunk, past + num_tokens // 2 - chunk // 2)
        calls = -(-num_tokens // chunk)
        ms = calls * cost.fixed_ms + num_tokens * cost.row_ms + cost.context_ms * context
        return _OPTIMISM * ms / 1e3

    def is_late(self, session: Session, now: float, cached: int = 0) -> bool:
        """Whether its deadline comes before its next token can; `cached` tokens are there."""
        deadline = session.request.deadline
        if deadline is None or deadline <= now:
            return deadline is not None
        past = max(cached, session.computed)
        return deadline < now + self.least_s(len(session.ids) - past, past)
