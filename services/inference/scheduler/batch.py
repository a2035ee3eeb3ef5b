"""What the next engine call computes: everyone who is ready, prefill chunks, and drafts."""

from __future__ import annotations

from dataclasses import dataclass
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
from services.inference.kv.pool import BlockCopy, KvPool
from services.inference.scheduler.chunks import share_out
from services.inference.scheduler.cost_model import CostModel, attention
from services.inference.scheduler.decode_cost import DecodeCost
from services.inference.scheduler.draft_budget import Award, Bidding, Turn
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.looking import Look
from services.inference.scheduler.overload import Level
from services.inference.scheduler.prefill_budget import Pace
from services.inference.scheduler.queues import Roster
from services.inference.scheduler.session import Session, State

_TAUGHT_TOKENS = 512
"""Tokens shown to suffix drafters per call, over all sessions: about a millisecond, where a whole
long prompt would hold everybody up."""


class Part(NamedTuple):
    """One session's place in a plan."""

    session: Session
    num_tokens: int
    """Of the session's own tokens; the drafts come behind them."""
    drafts: tuple[int, ...]
    num_guessed: int
    """Leading drafts that are guesses; the others only fill the round up to min_rows."""
    look: Look | None = None
    """How its suffix drafter was asked for them, if it was."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine call, in this order: close `closed`, open `opened`, copy the blocks of `copies`,
    step `rounds` (if any)."""

    slices: tuple[SequenceSlice, ...]
    opened: tuple[NewSequence, ...]
    closed: tuple[int, ...]
    """Sequences for Engine.close_sequence."""
    copies: tuple[BlockCopy, ...]
    """For Engine.copy_block; their sessions are sequences."""
    parts: tuple[Part, ...]
    """What each round is for; the scheduler's own."""
    decided_at: float

    def run(self, engine: Engine, overlapped_work: OverlappedWork = no_work) -> list[LogitsRows]:
        """The engine's answer to the call. Raises EngineError."""
        self.announce(engine)
        return engine.step(self.slices, overlapped_work) if self.slices else []

    def announce(self, engine: Engine) -> None:
        """What the engine has to be told before its step. Raises EngineError."""
        for sequence in self.closed:
            engine.close_sequence(sequence)
        for new in self.opened:
            engine.open(new.sequence, new.ids, new.salt, new.num_candidates)
        for copy in self.copies:
            engine.copy_block(copy.source, copy.target)

    @property
    def num_tokens(self) -> int:
        """Rows of the call, drafts included."""
        return sum(len(part.tokens) for part in self.slices)

    @property
    def is_decode(self) -> bool:
        """Whether each session has one token in it, and drafts: no prompts."""
        return all(part.num_tokens == 1 for part in self.parts)

    @property
    def context(self) -> float:
        """What the call reads of contexts, as the cost model counts it."""
        return sum(attention(len(part.tokens), part.past) for part in self.slices)


class Planner:
    """Builds the rounds of a call from the roster, under the limits and the cost model."""

    def __init__(
        self,
        info: EngineInfo,
        limits: SchedulerLimits,
        pool: KvPool,
        roster: Roster,
        cost: CostModel,
        decode_cost: DecodeCost,
    ) -> None:
        self._min_rows = max(1, info.min_rows)
        self._limits = limits
        self._pool = pool
        self._roster = roster
        self._bidding = Bidding(limits, decode_cost)
        self.pace = Pace(limits, cost, self._min_rows)

    def plan(self, now: float, level: Level) -> Plan | None:
        """The next call, at this level of overload; None if there is nothing to do."""
        self._roster.admit(now, hold_low=level >= Level.QUEUE_LOW)
        takers, guest = self._roster.takers(now, self._limits.max_pause_ms / 1e3)
        bounded = self.pace.is_bounded(takers, now)
        if bounded:
            takers = self.pace.rotate(takers, now)
        budget = self.pace.prompt_tokens(takers, bounded=bounded, level=level)
        turns = self._turns(takers, self._chunks(takers, guest, budget))
        parts = self._parts(turns, bounded=bounded, level=level)
        for part in parts:
            part.session.turn_at = now
        if not parts and not self._roster.has_news:
            return None
        opened, closed = self._roster.take_news()
        slices = tuple(self._round(part) for part in parts)
        return Plan(slices, opened, closed, self._pool.take_copies(), tuple(parts), now)

    def _chunks(self, takers: list[Session], guest: Session | None, budget: int) -> dict[int, int]:
        """Prompt tokens of this call by sequence, after what others have computed meanwhile."""
        prompts = [session for session in takers if session.state is State.PREFILLING]
        for session in prompts:
            session.reuse(self._pool.reuse(session.sequence, session.ids, session.computed))
        return share_out(prompts, budget, self._min_rows, guest)

    def _turns(self, takers: list[Session], chunks: dict[int, int]) -> list[Turn]:
        """Who takes part, in order of rank; their KV is allocated, drafts beyond the fill not."""
        turns: list[Turn] = []
        for session in takers:
            if session.state is State.WAITING:
                continue
            count = chunks.get(session.sequence, session.num_missing)
            fill = max(0, self._min_rows - count)
            if count and self._roster.grow(session, session.computed + count + fill):
                turns.append(Turn(session, count, fill, count == session.num_missing))
        return turns

    def _parts(self, turns: list[Turn], *, bounded: bool, level: Level) -> list[Part]:
        """Add the drafts that are worth their rows."""
        self._teach(turns)
        bidders = [turn for turn in turns if turn.last]
        rows = sum(1 + turn.num_fill for turn in bidders)
        taken = sum(turn.num_tokens + turn.num_fill for turn in turns)
        repliers = [turn.session for turn in bidders]
        max_rows = min(
            rows + self._limits.max_batch_tokens - taken,
            self.pace.max_draft_rows(repliers, rows, taken, bounded=bounded, level=level),
        )
        awards = self._bidding.hold(bidders, rows, max_rows)
        self.pace.drafted(sum(award.num_drafts for award in awards) + len(bidders) - rows)
        awarded = iter(awards)
        return [
            self._part(turn, next(awarded))
            if turn.last
            else Part(turn.session, turn.num_tokens, (), 0)
            for turn in turns
        ]

    def _teach(self, turns: list[Turn]) -> None:
        """Replies go on drafting while a prompt is read; of prompts the one comes first that lacks
        least."""
        left = _TAUGHT_TOKENS
        behind = [one for one, *_ in turns if not one.sources.keeps_up(one.ids)]
        for session in sorted(behind, key=lambda one: one.sources.num_untaught(one.ids)):
            left -= session.sources.teach(session.ids, left)

    def _part(self, turn: Turn, award: Award) -> Part:
        session, count = turn.session, award.num_drafts
        if count > turn.num_fill and not self._make_room(session, len(session.ids) + count):
            count = min(count, turn.num_fill)
        guesses = award.guesses[:count]
        filler = (session.ids[-1],) * (turn.num_fill - count)
        return Part(session, turn.num_tokens, guesses + filler, count, award.look)

    def _make_room(self, session: Session, num_tokens: int) -> bool:
        """Drafts take free blocks only; nobody loses KV for a guess."""
        return self._pool.grow(session.sequence, num_tokens)

    def _round(self, part: Part) -> SequenceSlice:
        session = part.session
        end = session.computed + part.num_tokens
        tokens = (*session.ids[session.computed : end], *part.drafts)
        return SequenceSlice(
            sequence=session.sequence,
            tokens=np.array(tokens, dtype=np.int32),
            past=session.computed,
            blocks=self._pool.blocks(session.sequence),
            num_rows=1 + len(part.drafts) if end == len(session.ids) else 0,
        )
