"""Limits of the scheduler, and the longest context that an engine can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    at_least,
    between,
)
from outrider.engines.base import EngineInfo
from outrider.errors import ConfigError
from outrider.session.types import MAX_DRAFTS_PER_CALL, Priority


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one scheduler, table `[inference.scheduler]`."""

    max_sessions: PositiveInt = 16
    """Sessions that hold KV and share engine calls."""
    max_queue: NonNegativeInt = 128
    """Sessions that wait to be admitted; further ones are refused with a retry delay."""
    max_batch_tokens: PositiveInt = 512
    """Tokens of one engine call, drafts included."""
    prefill_chunk_tokens: PositiveInt = 256
    """Prompt tokens of one engine call, over all sessions."""
    max_tick_ms: PositiveFloat = 40.0
    """Latency budget: a call with decoding sessions takes prompt tokens only up to this predicted
    duration, or that of `max_tick_calls` calls if it is longer. Drafts, too, lengthen it up to this
    duration, or by `draft_stretch` if that is longer."""
    max_tick_calls: NonNegativeFloat = 8.0
    """The budget for prompt tokens in calls for one reply: where these take long, the milliseconds
    above would cut every prompt into small pieces."""
    draft_stretch: Annotated[float, at_least(1)] = 1.8
    """How many times longer than without drafts a call may take."""
    low_tick_ms: PositiveFloat = 20.0
    """Latency budget of calls with LOW sessions while others keep coming: a call cannot be
    interrupted. Where calls take longer without LOW sessions, `low_stretch` bounds them."""
    low_stretch: Annotated[float, at_least(1)] = 1.1
    """How many times longer LOW sessions may make a call that exceeds low_tick_ms anyway: their
    rows are cheap where a call's fixed cost is high, and one such call is as long as the wait for
    it."""
    max_pause_ms: NonNegativeFloat = 500.0
    """Time after which a session that is left out of the calls gets a starvation turn, one session
    per call."""
    max_draft_tokens: Annotated[int, between(0, MAX_DRAFTS_PER_CALL)] = 8
    """Drafts of one session in one call."""
    max_predicted_tokens: Annotated[int, between(0, MAX_DRAFTS_PER_CALL)] = 31
    """The same where they are copied from the request's prediction, which is seldom wrong: with the
    row behind them 32, a size that engines are prepared for."""
    max_lead: NonNegativeInt = 64
    """Edge drafts of one session kept ahead of its commits."""
    ageing_s: NonNegativeFloat = 60.0
    """Waiting time after which a session ranks with new ones of the next higher class."""
    max_background_sessions: NonNegativeInt = 4
    """Sessions that are computed before anybody asks for them; further ones are refused. 0: all
    are."""
    max_background_share: Annotated[float, between(0, 1)] = 0.25
    """Share of the model's time that calls of such sessions may take, on average over a minute."""
    fixed_ms: NonNegativeFloat = 8.0
    """First guess of an engine call's fixed cost; then measured."""
    row_ms: PositiveFloat = 1.2
    """First guess of the cost of one token in a call; then measured."""
    draft_attempt_ms: NonNegativeFloat = 0.08
    """CPU time of asking one session's suffix drafter, learning included: bench.tick."""
    slo_ttft_low_ms: NonNegativeFloat = 0.0
    """LOW sessions whose first token would come later than this are refused; 0: no limit."""
    slo_ttft_medium_ms: NonNegativeFloat = 0.0
    """The same for MEDIUM ones."""
    slo_ttft_high_ms: NonNegativeFloat = 0.0
    """The same for HIGH ones."""

    def tick_ms(self, reply_ms: float) -> float:
        """The latency budget, where a call for one reply takes `reply_ms`."""
        return max(self.max_tick_ms, self.max_tick_calls * reply_ms)

    def low_bound_ms(self, without_ms: float) -> float:
        """The latency budget of a call with LOW sessions that takes `without_ms` without them."""
        return max(self.low_tick_ms, self.low_stretch * without_ms)

    def slo_ttft_ms(self, priority: Priority) -> float:
        """The time-to-first-token objective of a class; 0: none."""
        return {
            Priority.LOW: self.slo_ttft_low_ms,
            Priority.MEDIUM: self.slo_ttft_medium_ms,
            Priority.HIGH: self.slo_ttft_high_ms,
        }[priority]

    def check_fits(self, info: EngineInfo) -> None:
        """Raises ConfigError if max_sessions decoding sessions would leave a prefill no room."""
        least = (self.max_sessions + 3) * max(1, info.min_rows)
        if self.max_batch_tokens < least:
            raise ConfigError(
                f"scheduler.max_batch_tokens must be at least {least} for {self.max_sessions} "
                f"sessions of {info.min_rows} rows, a starvation turn and a prefill chunk, not "
                f"{self.max_batch_tokens}"
            )


def context_limit(info: EngineInfo) -> int:
    """Most tokens of prompt and reply together that this engine can serve.

    A reply that reaches it ends with LENGTH. The last token's own KV is never needed, but the
    rows that pad its slice to min_rows must lie in the context and in the pool.
    """
    positions = min(
        info.max_context_tokens, info.num_blocks * info.block_tokens - info.scratch_tokens
    )
    return positions - max(0, info.min_rows - 2)
