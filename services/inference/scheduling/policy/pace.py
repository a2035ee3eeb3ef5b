"""How long the next call may take, and so how much it may hold.

A call cannot be interrupted: whoever arrives meanwhile waits for its end, and so does the next
token of every session in it. All durations are the cost model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.session_types import Priority
from services.inference.scheduling.budget import CostModel, attention
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.policy.chunks import LEAST_CHUNK
from services.inference.scheduling.policy.overload import Level
from services.inference.scheduling.session import Session, State

_OUTRANKING_MEMORY_S = 60.0
"""After a session above LOW another one is expected for so long."""
_LEAST_STRETCH = 1.25
"""Where sessions decode more slowly than the latency budget, prompts still get this much."""
_SMALL_STRETCH = 1.3
_QUICK_STRETCH = 2.5
_LINE = 4
"""Prompts in line that are no crowd."""
_CROWD = 2.0
"""Weight of one beyond that against a reply."""
_SMOOTHING = 0.2


class Pace:
    """Bounds of the next call for those who may take part in it."""

    def __init__(self, limits: SchedulerLimits, cost: CostModel, min_rows: int) -> None:
        self._limits = limits
        self._cost = cost
        self._min_rows = min_rows
        self._outranking_at = -math.inf
        self._draft_rows = 0.0

    def opened(self, priority: Priority, now: float) -> None:
        """A session came."""
        if priority > Priority.LOW:
            self._outranking_at = now

    def drafted(self, num_rows: int) -> None:
        """A call had so many rows for drafts: the next one is expected to."""
        self._draft_rows += _SMOOTHING * (num_rows - self._draft_rows)

    def is_bounded(self, takers: Sequence[Session], now: float) -> bool:
        """Whether LOW sessions take part, and all prompts are theirs, while sessions above LOW keep
        coming."""
        if now - self._outranking_at > _OUTRANKING_MEMORY_S:
            return False
        others = [session for session in takers if session.priority is not Priority.LOW]
        prompts = any(session.state is State.PREFILLING for session in others)
        return len(others) < len(takers) and not prompts

    def rotate(self, takers: Sequence[Session], now: float) -> list[Session]:
        """Of the takers of a bounded call those that fit it: prompts, which get what is left, all
        above LOW, and of the LOW replies the first and those who waited longest; one that is
        overdue, whether it fits or not."""
        prompts = [session for session in takers if session.state is State.PREFILLING]
        replies = [session for session in takers if session.state is not State.PREFILLING]
        # The first of all is the one whose memory is sure to suffice.
        chosen = [s for s in replies if s is replies[0] or s.priority is not Priority.LOW]
        numbers = {session.number for session in chosen}
        late = now - self._limits.max_pause_ms / 1e3
        spare_ms = self._limits.low_tick_ms - self._steady_ms(chosen)
        if prompts:
            spare_ms /= 2
        has_low = any(session.priority is Priority.LOW for session in chosen)
        others = (session for session in replies if session.number not in numbers)
        for session in sorted(others, key=lambda one: (one.turn_at, one.num_reply)):
            spare_ms -= self._steady_ms([session]) - self._cost.fixed_ms
            if spare_ms < 0 and has_low and session.turn_at > late:
                break
            has_low, late = True, -math.inf
            numbers.add(session.number)
        return [s for s in takers if s.state is State.PREFILLING or s.number in numbers]

    def prompt_tokens(self, takers: Sequence[Session], *, bounded: bool, level: Level) -> int:
        """Most prompt tokens of the call: bounded in time while others decode, never nothing."""
        limits = self._limits
        budget = min(
            limits.prefill_chunk_tokens, limits.max_batch_tokens - len(takers) * self._min_rows
        )
        prompts = [session for session in takers if session.state is State.PREFILLING]
        replies = [session for session in takers if session.state is not State.PREFILLING]
        if prompts and (replies or bounded):
            least = LEAST_CHUNK // 2 if bounded or level >= Level.SMALL_CHUNKS else LEAST_CHUNK
            alone_ms = self._steady_ms(replies, self._draft_rows)
            if bounded:
                bound_ms = limits.low_tick_ms
            else:
                bound_ms = self._bound_ms(alone_ms, prompts, replies, level)
            tokens = self._tokens_within(bound_ms - alone_ms, prompts[0].computed)
            budget = min(budget, max(least, tokens))
        return max(budget, 2 * self._min_rows - 1)

    def _bound_ms(
        self,
        alone_ms: float,
        prompts: Sequence[Session],
        replies: Sequence[Session],
        level: Level,
    ) -> float:
        stretch, patience = self._limits.prefill_stretch, _crowding(len(prompts), len(replies))
        if level >= Level.SMALL_CHUNKS:
            stretch = min(stretch, _SMALL_STRETCH)
        elif any(self._is_quick(session, alone_ms) for session in prompts):
            return patience * self._quick_ms(alone_ms)
        else:
            patience = max(patience, 1.0 + _num_fellows(prompts, replies))
        bound_ms = min(self._limits.max_tick_ms, stretch * alone_ms)
        return patience * max(bound_ms, _LEAST_STRETCH * alone_ms)

    def _quick_ms(self, alone_ms: float) -> float:
        return max(self._limits.max_tick_ms, _QUICK_STRETCH * alone_ms)

    def _is_quick(self, session: Session, alone_ms: float) -> bool:
        """Whether replies may wait for it, up to the latency budget or a stretch that is felt
        once: for HIGH prompts, and for those that are over within one such call."""
        tokens = self._tokens_within(self._quick_ms(alone_ms) - alone_ms, session.cached_tokens)
        whole = len(session.ids) - session.cached_tokens
        return session.priority is Priority.HIGH or whole <= tokens

    def _tokens_within(self, spare_ms: float, past: int) -> int:
        """Tokens of a prompt, `past` of which are computed, that take so long."""
        start_ms = self._cost.context_ms * attention(0, past)
        token_ms = self._cost.row_ms + self._cost.context_ms * past / 1e3
        return int(max(0.0, spare_ms - start_ms) / token_ms)

    def max_draft_rows(
        self, repliers: Sequence[Session], rows: int, taken: int, *, bounded: bool, level: Level
    ) -> int:
        """Most rows, drafts included, of sessions that have `rows` without, in a call of `taken`.
        Prompt tokens count in bounded calls only: elsewhere drafts that came with a prompt are
        verified with its last chunk."""
        free = self._cost.free_rows(rows)
        if level >= Level.NO_DRAFTS:
            return free
        alone_ms = self._steady_ms(repliers)
        if bounded:
            spare_ms = self._limits.low_tick_ms - alone_ms - self._cost.row_ms * (taken - rows)
        else:
            limit_ms = max(self._limits.max_tick_ms, self._limits.prefill_stretch * alone_ms)
            spare_ms = limit_ms - alone_ms
        return max(free, rows + int(spare_ms / self._cost.row_ms))

    def _steady_ms(self, repliers: Sequence[Session], draft_rows: float = 0.0) -> float:
        """A call of one token of each, after others of its size."""
        cost = self._cost
        rows = len(repliers) * self._min_rows + draft_rows
        context = sum(attention(self._min_rows, session.computed) for session in repliers)
        return cost.fixed_ms + cost.row_ms * rows + cost.context_ms * context


def _crowding(num_prompts: int, num_replies: int) -> float:
    """How much longer a call may be when many wait for their first token while few go on: small
    chunks would hold up every prompt behind the first for the sake of a few replies. Under overload
    too, where the stretch that it multiplies is smaller."""
    return max(1.0, _CROWD * (num_prompts - _LINE) / max(1, num_replies))


def _num_fellows(prompts: Sequence[Session], replies: Sequence[Session]) -> int:
    """Prompts that came before any of these replies had begun, and are in no lower class: whoever
    stood in line with them does not make them wait twice as long to read more smoothly."""
    began_at = min((session.began_at for session in replies), default=-math.inf)
    highest = max((session.priority for session in replies), default=Priority.LOW)
    fellows = (p for p in prompts if p.began_at == math.inf and p.priority >= highest)
    return sum(prompt.opened_at <= began_at for prompt in fellows)
