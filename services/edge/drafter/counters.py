"""Counters of a drafter (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.edge.drafter.protocol import DrafterStats, DraftSource

_SMOOTHING = 0.1
"""Weight of the latest value in a moving average."""


def _by_source() -> list[int]:
    return [0] * len(DraftSource)


@dataclass(slots=True)
class DrafterCounters:
    """Counts since the start; DrafterStats documents the fields."""

    num_calls: int = 0
    num_rows: int = 0
    call_us: int = 0
    recent_call_us: int = 0
    """Moving average of one call."""
    prompt_token_us: float = 0.0
    """Moving average of one prompt token; 0 before the first."""
    num_refused: int = 0
    num_evicted: int = 0
    num_reused: int = 0
    """Tokens of prompts whose KV was left by the turn before."""
    num_branches: int = 0
    num_promoted: int = 0
    num_pauses: int = 0
    paused_us: int = 0
    drafted: list[int] = field(default_factory=_by_source)
    accepted: list[int] = field(default_factory=_by_source)

    def record_call(self, took_s: float) -> None:
        """The model was called."""
        took_us = took_s * 1e6
        self.num_calls += 1
        self.call_us += round(took_us)
        before = self.recent_call_us or took_us
        self.recent_call_us = round(before + _SMOOTHING * (took_us - before))

    def record_pause(self, pause_s: float) -> None:
        """The model pauses for so long."""
        self.num_pauses += 1
        self.paused_us += round(pause_s * 1e6)

    def record_prefill(self, num_rows: int, took_s: float) -> None:
        """A call of `num_rows` tokens was mostly prefill."""
        token_us = took_s * 1e6 / num_rows
        before = self.prompt_token_us or token_us
        self.prompt_token_us = before + _SMOOTHING * (token_us - before)

    def stats(self, num_sessions: int, num_modelled: int) -> DrafterStats:
        """The counts so far."""
        return DrafterStats(
            num_sessions=num_sessions,
            num_modelled=num_modelled,
            num_calls=self.num_calls,
            num_rows=self.num_rows,
            call_us=self.call_us,
            num_refused=self.num_refused,
            num_evicted=self.num_evicted,
            num_reused=self.num_reused,
            num_branches=self.num_branches,
            num_promoted=self.num_promoted,
            num_pauses=self.num_pauses,
            paused_us=self.paused_us,
            prompt_token_us=round(self.prompt_token_us),
            drafted=(self.drafted[0], self.drafted[1], self.drafted[2]),
            accepted=(self.accepted[0], self.accepted[1], self.accepted[2]),
        )
