"""How many prompt tokens the next call may hold, and which LOW sessions take part in it.

A call cannot be interrupted: sessions that arrive meanwhile wait for its end, and so does the next
token of every session in it. So its duration is bounded, by the cost model's prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.session.types import Priority
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel, attention_work
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.session import SchedulingState, Session
from services.inference.scheduler.types import OverloadLevel

LEAST_CHUNK = 12
"""Least number of tokens that prefill advances per call, whatever the call already costs."""
_ABOVE_LOW_MEMORY_S = 60.0
"""After a session above LOW was opened, another one is expected for this long."""
LEAST_STRETCH = 1.25
"""Prompts may always lengthen a call by this factor, even if decoding already exceeds
the latency budget."""
_SMALL_CHUNKS_STRETCH = 1.3
"""The same at OverloadLevel.SMALL_CHUNKS, at most."""
_SHORT_PROMPT_STRETCH = 2.5
"""The same for a HIGH prompt, or one that is over within this call."""
_BACKLOG_PROMPTS = 4
"""Prompts that may wait without lengthening calls."""
_BACKLOG_WEIGHT = 2.0
"""Weight of each prompt beyond these against a reply."""
_DRAFT_ROWS_SMOOTHING = 0.2
_OVERTAKING_SHARE = 2
"""One part in so many of a call's prompt tokens is for prompts far shorter than the first."""
_FAR_SHORTER = 4
"""The first prompt has at least this many times as much left to compute."""


class PrefillBudget:
    """Bounds of the next call, for the sessions that may take part in it."""

    def __init__(
        self,
        limits: SchedulerLimits,
        cost: CostModel,
        decode_cost: DecodeCostModel,
        min_rows: int,
    ) -> None:
        self._limits = limits
        self._cost = cost
        self._decode_cost = decode_cost
        self._min_rows = min_rows
        self._above_low_at = -math.inf
        """When a session above LOW was opened last."""
        self._draft_rows = 0.0
        """Rows for drafts of recent calls, smoothed."""

    def session_opened(self, priority: Priority, now: float) -> None:
        if priority > Priority.LOW:
            self._above_low_at = now

    def drafts_scheduled(self, num_rows: int) -> None:
        """A call had so many rows for drafts: about as many are expected in the next one."""
        self._draft_rows += _DRAFT_ROWS_SMOOTHING * (num_rows - self._draft_rows)

    def must_be_short(self, schedulable: Sequence[Session], now: float) -> bool:
        """Whether the call is bounded by low_bound_ms: LOW sessions take part, all prompts are
        theirs, and sessions above LOW keep coming. Also if it is a call of background sessions:
        nobody who comes meanwhile is to wait for those."""
        if schedulable and schedulable[0].is_background:
            return True
        if now - self._above_low_at > _ABOVE_LOW_MEMORY_S:
            return False
        above_low = [session for session in schedulable if session.priority is not Priority.LOW]
        prompts = any(session.state is SchedulingState.PREFILLING for session in above_low)
        return len(above_low) < len(schedulable) and not prompts

    def fit_short_call(self, schedulable: Sequence[Session], now: float) -> list[Session]:
        """The sessions that a short call takes: all prompts, which share what time is left; all
        replies above LOW; the first reply; then LOW replies by how long they waited, as long as the
        call stays below low_bound_ms. One LOW reply is always taken, and one that waited for
        max_pause_ms."""
        prompts = [s for s in schedulable if s.state is SchedulingState.PREFILLING]
        replies = [s for s in schedulable if s.state is not SchedulingState.PREFILLING]
        chosen = _certain(replies)
        chosen_ids = {session.session_id for session in chosen}
        overdue_at = now - self._limits.max_pause_ms / 1e3
        without_ms = self._decode_ms(chosen)
        spare_ms = self._limits.low_bound_ms(without_ms) - without_ms
        if prompts:
            spare_ms /= 2
        has_low = any(session.priority is Priority.LOW for session in chosen)
        others = (session for session in replies if session.session_id not in chosen_ids)
        for session in sorted(others, key=lambda one: (one.last_scheduled_at, one.num_reply)):
            spare_ms -= self._added_ms(session)
            if spare_ms < 0 and has_low and session.last_scheduled_at > overdue_at:
                break
            has_low = True
            overdue_at = -math.inf
            chosen_ids.add(session.session_id)
        return [
            session
            for session in schedulable
            if session.state is SchedulingState.PREFILLING or session.session_id in chosen_ids
        ]

    def max_prompt_tokens(
        self, schedulable: Sequence[Session], *, short: bool, level: OverloadLevel
    ) -> int:
        """Most prompt tokens of the call: bounded in time while others decode, never 0."""
        limits = self._limits
        budget = min(
            limits.prefill_chunk_tokens,
            limits.max_batch_tokens - len(schedulable) * self._min_rows,
        )
        prompts = [s for s in schedulable if s.state is SchedulingState.PREFILLING]
        if prompts and (short or len(prompts) < len(schedulable)):
            replies = [s for s in schedulable if s.state is not SchedulingState.PREFILLING]
            small = short or level >= OverloadLevel.SMALL_CHUNKS
            least = LEAST_CHUNK // 2 if small else LEAST_CHUNK
            decode_ms = self._decode_ms(replies, self._draft_rows)
            if prompts[0].is_background:
                # A call takes fixed_ms whatever is in it: smaller chunks would only be more calls.
                bound_ms = max(limits.low_tick_ms, LEAST_STRETCH * decode_ms)
            elif short:
                bound_ms = limits.low_bound_ms(self._decode_ms(_certain(replies)))
            else:
                bound_ms = self._bound_ms(decode_ms, prompts, replies, level)
            tokens = self._tokens_within(bound_ms - decode_ms, prompts[0].num_computed)
            budget = min(budget, max(least, tokens))
        return max(budget, 2 * self._min_rows - 1)

    def share_out(
        self, prompts: Sequence[Session], budget: int, starving: Session | None = None
    ) -> dict[int, int]:
        """Prompt tokens of this call by sequence. A session in its starvation turn comes first,
        then prompts far shorter than the first, then all in order of rank."""
        chunks: dict[int, int] = {}
        if starving is not None and starving in prompts:
            budget -= self._give(chunks, starving, min(budget, LEAST_CHUNK // 2))
        share = budget // _OVERTAKING_SHARE
        for session in _overtaking(prompts, budget):
            chunk = self._give(chunks, session, share)
            share -= chunk
            budget -= chunk
        for session in prompts:
            budget -= self._give(chunks, session, budget)
        return chunks

    def _give(self, chunks: dict[int, int], session: Session, budget: int) -> int:
        """The tokens given; 0 to a session that has its chunk already."""
        if session.sequence in chunks:
            return 0
        chunk = chunk_tokens(session.num_uncomputed, budget, self._min_rows)
        chunks[session.sequence] = chunk
        return chunk

    def _bound_ms(
        self,
        decode_ms: float,
        prompts: Sequence[Session],
        replies: Sequence[Session],
        level: OverloadLevel,
    ) -> float:
        """Longest duration of a call that takes decode_ms without prompt tokens."""
        bound_ms = self._tick_ms()
        backlog_stretch = _backlog_stretch(len(prompts), len(replies))
        if level >= OverloadLevel.SMALL_CHUNKS:
            bound_ms = min(bound_ms, _SMALL_CHUNKS_STRETCH * decode_ms)
        elif any(self._goes_first(session, decode_ms) for session in prompts):
            return backlog_stretch * self._short_prompt_ms(decode_ms)
        else:
            backlog_stretch = max(backlog_stretch, 1.0 + _num_as_old(prompts, replies))
        return backlog_stretch * max(bound_ms, LEAST_STRETCH * decode_ms)

    def _short_prompt_ms(self, decode_ms: float) -> float:
        return max(self._tick_ms(), _SHORT_PROMPT_STRETCH * decode_ms)

    def _tick_ms(self) -> float:
        return self._limits.tick_ms(self._cost.decode_ms([0], self._min_rows))

    def _goes_first(self, session: Session, decode_ms: float) -> bool:
        """Whether replies may wait for it, up to the latency budget or once for a longer call: a
        HIGH prompt, or one that is short enough for one such call."""
        spare_ms = self._short_prompt_ms(decode_ms) - decode_ms
        tokens = self._tokens_within(spare_ms, session.cached_tokens)
        uncached = len(session.ids) - session.cached_tokens
        return session.priority is Priority.HIGH or uncached <= tokens

    def _tokens_within(self, spare_ms: float, past: int) -> int:
        """Tokens of a prompt, `past` of which are computed, that take this long."""
        start_ms = self._cost.attention_ms * attention_work(0, past)
        token_ms = self._cost.row_ms + self._cost.attention_ms * past / 1e3
        return int(max(0.0, spare_ms - start_ms) / token_ms)

    def _added_ms(self, reply: Session) -> float:
        """By how much one more reply lengthens a call."""
        reading = attention_work(self._min_rows, reply.num_computed)
        cost = self._decode_cost
        return cost.row_ms * self._min_rows + cost.attention_ms * reading

    def _decode_ms(self, replies: Sequence[Session], draft_rows: float = 0.0) -> float:
        contexts = [session.num_computed for session in replies]
        return self._cost.decode_ms(contexts, self._min_rows, draft_rows)


def chunk_tokens(num_uncomputed: int, budget: int, min_rows: int) -> int:
    """Tokens of the next prefill chunk: all, or at least min_rows with as many left; else 0."""
    if num_uncomputed <= budget:
        return num_uncomputed
    chunk = min(budget, num_uncomputed - min_rows)
    return chunk if chunk >= min_rows else 0


def _certain(replies: Sequence[Session]) -> list[Session]:
    """Of these, in order of rank, those in every short call: all above LOW, and the first, whose
    memory is sure to suffice."""
    return [s for s in replies if s is replies[0] or s.priority is not Priority.LOW]


def _overtaking(prompts: Sequence[Session], budget: int) -> list[Session]:
    """Prompts far shorter than the rest of the first one, unless that fits this call: waiting for
    it would delay them out of all proportion. The shortest comes first."""
    if not prompts or prompts[0].num_uncomputed <= budget:
        return []
    first = prompts[0]
    short = [
        session
        for session in prompts
        if session.num_uncomputed * _FAR_SHORTER <= first.num_uncomputed
        and session.priority >= first.priority
    ]
    return sorted(short, key=lambda session: session.num_uncomputed)


def _backlog_stretch(num_prompts: int, num_replies: int) -> float:
    """How many times longer a call may be when many wait for their first token while few replies go
    on: with small chunks every prompt behind the first would wait for the sake of a few replies."""
    return max(1.0, _BACKLOG_WEIGHT * (num_prompts - _BACKLOG_PROMPTS) / max(1, num_replies))


def _num_as_old(prompts: Sequence[Session], replies: Sequence[Session]) -> int:
    """Prompts that were opened before any of these replies had begun, and are in no lower class.
    They waited in the same queue, and should not wait twice as long so that the first replies of it
    run more smoothly."""
    began_at = min((session.first_commit_at for session in replies), default=-math.inf)
    highest = max((session.priority for session in replies), default=Priority.LOW)
    return sum(
        prompt.opened_at <= began_at
        for prompt in prompts
        if prompt.first_commit_at == math.inf and prompt.priority >= highest
    )
