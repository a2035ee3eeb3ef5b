"""Lays out the next engine call: replies, prefill chunks and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from outrider.engines.base import (
    Engine,
    EngineInfo,
    LogitsRows,
    NewSequence,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.session.types import Priority
from services.inference.kv.pool import BlockCopy, KvPool
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel, attention_work
from services.inference.scheduler.draft_budget import BatchSlot, DraftBudget, DraftGrant
from services.inference.scheduler.draft_sources import DraftAttempt, EdgeChain
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.prefill_budget import PrefillBudget
from services.inference.scheduler.queues import SessionQueues
from services.inference.scheduler.session import SchedulingState, Session
from services.inference.scheduler.types import OverloadLevel

_MAX_LEARNED_TOKENS = 512
"""Prompt tokens that suffix drafters learn per call, over all sessions: about a millisecond, where
a whole long prompt would hold everybody up."""


class ScheduledSequence(NamedTuple):
    """One session's place in a batch."""

    session: Session
    num_tokens: int
    """The session's own; the drafts follow them."""
    drafts: tuple[int, ...]
    num_drafts: int
    """The first num_drafts of `drafts` are drafts; the rest pads the slice to min_rows."""
    attempt: DraftAttempt | None = None
    """Set if its suffix drafter was asked for them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One engine call, in this order: close `closed`, open `opened`, copy the blocks of `copies`,
    step `slices` (if any)."""

    slices: tuple[SequenceSlice, ...]
    opened: tuple[NewSequence, ...]
    closed: tuple[int, ...]
    """Sequences for Engine.close_sequence."""
    copies: tuple[BlockCopy, ...]
    """For Engine.copy_block."""
    scheduled: tuple[ScheduledSequence, ...]
    """Purpose of each slice, in the same order."""
    scheduled_at: float
    begun: tuple[int, ...] = ()
    """Sessions that no call had before."""
    new_requests: tuple[int, ...] = ()
    """Request keys of sessions whose prompts are computed: possible causes of the call's
    failure."""
    num_tokens: int = field(init=False)
    """Tokens of the call, drafts and padding included."""
    is_decode: bool = field(init=False)
    """Whether each session has one token in it, and drafts: no prompts."""

    def __post_init__(self) -> None:
        # Asked for once per session of the call.
        object.__setattr__(self, "num_tokens", sum([len(part.tokens) for part in self.slices]))
        object.__setattr__(self, "is_decode", all(one.num_tokens == 1 for one in self.scheduled))

    def run(self, engine: Engine, overlapped_work: OverlappedWork = no_work) -> list[LogitsRows]:
        """The engine's answer to the call. Raises EngineError."""
        self.prepare(engine)
        return engine.step(self.slices, overlapped_work) if self.slices else []

    def prepare(self, engine: Engine) -> None:
        """Make the engine's operations that precede the step. Raises EngineError."""
        for sequence in self.closed:
            engine.close_sequence(sequence)
        for new in self.opened:
            engine.open(new.sequence, new.ids, new.salt, new.num_candidates)
        for copy in self.copies:
            engine.copy_block(copy.source, copy.target)

    @property
    def is_background(self) -> bool:
        """Whether all sessions in it are background ones: none or all are."""
        return bool(self.scheduled) and self.scheduled[0].session.is_background

    @property
    def attention_work(self) -> float:
        """The call's reads of contexts, in the cost model's unit."""
        return sum(attention_work(len(part.tokens), part.past) for part in self.slices)


class _PlannedSlice(NamedTuple):
    """A session's part of the next call, assuming that it commits one token in this one."""

    session: Session
    scheduled: ScheduledSequence
    past: int


class _Plan(NamedTuple):
    """The next call, made while this one computes: all but its tokens."""

    version: int
    """SessionQueues.version that it holds for."""
    slices: list[_PlannedSlice]
    chains: list[EdgeChain]
    """The plan holds as long as these are empty."""


class BatchBuilder:
    """Builds batches from the session queues, under the prefill and the draft budget."""

    def __init__(
        self,
        info: EngineInfo,
        limits: SchedulerLimits,
        pool: KvPool,
        queues: SessionQueues,
        cost: CostModel,
        decode_cost: DecodeCostModel,
    ) -> None:
        self._min_rows = max(1, info.min_rows)
        self._max_pause_s = limits.max_pause_ms / 1e3
        self._pool = pool
        self._queues = queues
        self.prefill_budget = PrefillBudget(limits, cost, decode_cost, self._min_rows)
        self._draft_budget = DraftBudget(limits, cost, decode_cost, self._min_rows)
        self._plan: _Plan | None = None
        self._was_alone = False
        """Whether the last call was for one session that must be alone."""

    def plan_ahead(self, in_flight: Batch) -> None:
        """Plan the call behind the present one if only that call's tokens are unknown: each session
        continues with one more, none waits, and none has drafts of this replica."""
        queues = self._queues
        running = queues.foreground(queues.running)
        if not running or len(in_flight.scheduled) != len(running) or not in_flight.is_decode:
            return
        others = (*queues.waiting, *queues.paused)
        if queues.foreground(others) or queues.has_sequence_changes:
            return
        slices, chains = [], []
        for one, session in zip(in_flight.scheduled, running, strict=True):
            sources, past = session.sources, session.num_computed + 1
            if one.session is not session or one.drafts or sources.drafts_here:
                return
            if session.state is not SchedulingState.DECODING or session.priority is Priority.LOW:
                return
            if not self._pool.grow(session.sequence, past + 1):
                return
            slices.append(_PlannedSlice(session, one, past))
            if sources.chain is not None:
                chains.append(sources.chain)
        self._plan = _Plan(queues.version, slices, chains)

    def _planned(self, now: float) -> Batch | None:
        """The call as it was planned, if nothing has happened since."""
        plan, self._plan = self._plan, None
        if plan is None or plan.version != self._queues.version:
            return None
        if any(chain.ids for chain in plan.chains):
            return None
        tokens = np.array([planned.session.ids[-1] for planned in plan.slices], dtype=np.int32)
        slices, scheduled = [], []
        blocks = self._pool.blocks  # asked for now: publishing may have put others into a table
        for index, (session, one, past) in enumerate(plan.slices):
            session.last_scheduled_at = now
            token, sequence = tokens[index : index + 1], session.sequence
            slices.append(SequenceSlice(sequence, token, past, blocks(sequence), 1))
            scheduled.append(one)
        self.prefill_budget.drafts_scheduled(0)
        return Batch(tuple(slices), (), (), self._pool.take_copies(), tuple(scheduled), now)

    def build(self, now: float, level: OverloadLevel) -> Batch | None:
        """The next call, at this overload level; None if there is nothing to do."""
        planned = self._planned(now)
        if planned is not None:
            return planned
        queues, prefill_budget = self._queues, self.prefill_budget
        queues.admit(now, hold_low=level >= OverloadLevel.QUEUE_LOW)
        schedulable, starving = queues.schedulable(now, self._max_pause_s)
        # Nobody's call gets longer for what nobody has asked for yet.
        schedulable = list(queues.foreground(schedulable)) or schedulable
        schedulable = self._one_or_others(schedulable)
        if starving not in schedulable:
            starving = None
        short = prefill_budget.must_be_short(schedulable, now)
        if short:
            schedulable = prefill_budget.fit_short_call(schedulable, now)
        if all(s.state is not SchedulingState.PREFILLING for s in schedulable):
            slots = self._allocate_replies(schedulable)
        else:
            max_tokens = prefill_budget.max_prompt_tokens(schedulable, short=short, level=level)
            slots = self._allocate(schedulable, max_tokens, starving)
        self._learn_prompts(slots)
        scheduled = self._add_drafts(slots, short=short, level=level)
        if not scheduled and not queues.has_sequence_changes:
            return None
        slices = self._slices(scheduled)
        for one in scheduled:
            one.session.last_scheduled_at = now
        opened, closed = queues.take_sequence_changes()
        new = [one.session for one in scheduled if one.session.state is SchedulingState.PREFILLING]
        begun = tuple([session.session_id for session in new if not session.has_begun])
        for session in new:
            session.has_begun = True
        return Batch(
            slices,
            opened,
            closed,
            self._pool.take_copies(),
            tuple(scheduled),
            now,
            begun,
            tuple([session.request.request_key for session in new if session.request.request_key]),
        )

    def _one_or_others(self, schedulable: list[Session]) -> list[Session]:
        """Either one session that must be alone in its call, or all others: by turns."""
        alone = [session for session in schedulable if session.goes_alone]
        if not alone:
            self._was_alone = False
            return schedulable
        others = [session for session in schedulable if not session.goes_alone]
        self._was_alone = not (self._was_alone and others)
        return alone[:1] if self._was_alone else others

    def _allocate(
        self, schedulable: list[Session], max_prompt_tokens: int, starving: Session | None
    ) -> list[BatchSlot]:
        """Sessions that take part, with their numbers of tokens, in order of rank. KV is allocated
        for these, not yet for drafts; it may be taken from sessions later in the list."""
        prompts = [s for s in schedulable if s.state is SchedulingState.PREFILLING]
        for session in prompts:
            # Others may have computed the same tokens since the last call.
            session.reuse(self._pool.reuse(session.sequence, session.ids, session.num_computed))
        chunks: dict[int, int] = {}
        if prompts:
            chunks = self.prefill_budget.share_out(prompts, max_prompt_tokens, starving)
        slots: list[BatchSlot] = []
        min_rows = self._min_rows
        for session in schedulable:
            if session.state is SchedulingState.WAITING:
                continue  # preempted for one before it
            num_computed = session.num_computed
            num_uncomputed = len(session.ids) - num_computed
            count = chunks.get(session.sequence, num_uncomputed) if chunks else num_uncomputed
            if session.state is SchedulingState.PREFILLING:
                count = self._up_to_loaded(session, count)
            padding = min_rows - count if count < min_rows else 0
            if count and self._queues.grow(session, num_computed + count + padding):
                slots.append(BatchSlot(session, count, padding, count == num_uncomputed))
        return slots

    def _allocate_replies(self, schedulable: list[Session]) -> list[BatchSlot]:
        """Like _allocate, if no prompt is computed: one token of each."""
        num_padding, grow = self._min_rows - 1, self._queues.grow
        waiting = SchedulingState.WAITING
        return [
            BatchSlot(session, 1, num_padding, True)
            for session in schedulable
            if session.state is not waiting  # preempted for one before it
            and grow(session, session.num_computed + 1 + num_padding)
        ]

    def _up_to_loaded(self, session: Session, count: int) -> int:
        """A chunk ends where KV that was loaded from elsewhere begins: the two meet there."""
        begin = self._pool.next_loaded(session.sequence, session.num_computed)
        return count if begin is None else min(count, begin - session.num_computed)

    def _learn_prompts(self, slots: list[BatchSlot]) -> None:
        """Let suffix drafters learn prompts, bounded per call; the prompt with the fewest tokens
        left comes first. Replies continue to get drafts meanwhile."""
        left = _MAX_LEARNED_TOKENS
        sessions = [slot.session for slot in slots if slot.session.sources.has_drafter]
        behind = [one for one in sessions if not one.sources.is_ready(one.ids)]
        for session in sorted(behind, key=lambda one: one.sources.num_unseen(one.ids)):
            left -= session.sources.learn_prompt(session.ids, left)

    def _add_drafts(
        self, slots: list[BatchSlot], *, short: bool, level: OverloadLevel
    ) -> list[ScheduledSequence]:
        """The slots with the drafts that are worth their rows."""
        drafting = [slot for slot in slots if slot.is_last]
        if not any(slot.session.sources.may_propose for slot in drafting):
            return self._without_drafts(slots)
        rows = sum(1 + slot.num_padding for slot in drafting)
        taken = sum(slot.num_tokens + slot.num_padding for slot in slots)
        most = self._draft_budget.max_rows(drafting, rows, taken, short=short, level=level)
        grants = self._draft_budget.allocate(drafting, rows, most)
        num_drafts = sum(grant.num_drafts for grant in grants) + len(drafting) - rows
        self.prefill_budget.drafts_scheduled(num_drafts)
        granted = iter(grants)
        return [
            self._scheduled(slot, next(granted))
            if slot.is_last
            else ScheduledSequence(slot.session, slot.num_tokens, (), 0)
            for slot in slots
        ]

    def _without_drafts(self, slots: list[BatchSlot]) -> list[ScheduledSequence]:
        """The slots as they are, if no session has drafts."""
        self.prefill_budget.drafts_scheduled(
            -sum([slot.num_padding for slot in slots if slot.is_last])
        )
        return [
            ScheduledSequence(session, num_tokens, (session.ids[-1],) * num_padding, 0)
            if is_last
            else ScheduledSequence(session, num_tokens, (), 0)
            for session, num_tokens, num_padding, is_last in slots
        ]

    def _scheduled(self, slot: BatchSlot, grant: DraftGrant) -> ScheduledSequence:
        """Drafts take free blocks only: no session loses KV for them."""
        session = slot.session
        count = grant.num_drafts
        if count > slot.num_padding and not self._pool.grow(
            session.sequence, len(session.ids) + count
        ):
            count = min(count, slot.num_padding)
        padding = (session.ids[-1],) * (slot.num_padding - count)
        drafts = grant.ids[:count] + padding
        return ScheduledSequence(session, slot.num_tokens, drafts, count, grant.attempt)

    def _slices(self, scheduled: Sequence[ScheduledSequence]) -> tuple[SequenceSlice, ...]:
        """One for each, in this order. Their tokens are parts of one array: numpy takes longer to
        make one than Python needs for a dozen numbers."""
        tokens: list[int] = []
        begins = [0]
        for session, num_tokens, drafts, _, _ in scheduled:
            ids = session.ids
            if num_tokens == 1:
                tokens.append(ids[session.num_computed])
            else:
                past = session.num_computed
                tokens += ids[past : past + num_tokens]
            tokens += drafts
            begins.append(len(tokens))
        array = np.array(tokens, dtype=np.int32)
        blocks = self._pool.blocks
        return tuple(
            [
                SequenceSlice(
                    session.sequence,
                    array[begin:end],
                    session.num_computed,
                    blocks(session.sequence),
                    1 + len(drafts) if session.num_computed + count == len(session.ids) else 0,
                )
                for (session, count, drafts, _, _), begin, end in zip(
                    scheduled, begins, islice(begins, 1, None), strict=False
                )
            ]
        )
