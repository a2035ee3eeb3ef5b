"""Many replies on one draft model: which rounds the next call has, and what came of the last.

`decide`, run the call, `apply`; whatever else happens in between may happen in any order. Time and
engine are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from outrider.engines.base import (
    Engine,
    EngineInfo,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.engines.draft_calibration import DraftCalibration
from outrider.errors import ConfigError
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.edge.drafter.core.chooser import Chooser
from services.edge.drafter.core.kv import Kv, KvRoom, Orders
from services.edge.drafter.core.learned import LearnedByGroup
from services.edge.drafter.core.line import Line
from services.edge.drafter.core.session import DraftSession
from services.edge.drafter.core.tally import Tally
from services.edge.drafter.core.telling import Telling
from services.edge.drafter.messages import Commit, Guess, Open
from services.edge.drafter.settings import DrafterLimits


@dataclass(frozen=True, slots=True)
class Part:
    """One session's round."""

    session: int
    round: SequenceSlice


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What to do with the engine: the orders, then one step of all rounds."""

    orders: Orders
    parts: tuple[Part, ...]

    @property
    def slices(self) -> tuple[SequenceSlice, ...]:
        """For Engine.step."""
        return tuple(part.round for part in self.parts)


def run(
    engine: Engine, call: EngineCall, overlapped_work: OverlappedWork = no_work
) -> list[LogitsRows]:
    """Do what the call says. Raises EngineError."""
    for sequence in call.orders.closes:
        engine.close_sequence(sequence)
    for sequence in call.orders.opens:
        engine.open(sequence, np.zeros(0, np.int32))
    for source, target in call.orders.copies:
        engine.copy_block(source, target)
    return engine.step(call.slices, overlapped_work)


class Drafter:
    """Sessions by the edge's number."""

    def __init__(
        self,
        info: EngineInfo,
        limits: DrafterLimits,
        calibration: DraftCalibration,
        learned: LearnedByGroup | None = None,
    ) -> None:
        """`learned`: what sessions learn from others. Raises ConfigError for an engine that cannot
        take rounds of one token."""
        if info.min_rows > 1:
            raise ConfigError(f"the engine {info.name} takes no rounds of one token; use another")
        self._info = info
        self._limits = limits
        self._calibration = calibration
        self._learned = learned or LearnedByGroup()
        self._room = KvRoom(info)
        self._sessions: dict[int, DraftSession] = {}
        self._telling: dict[int, Telling] = {}
        self._in_call: set[int] = set()
        """Sessions with a round in the call being made."""
        self.tally = Tally()

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_modelled(self) -> int:
        """Sessions for which the model is asked."""
        return sum(session.is_modelled for session in self._sessions.values())

    @property
    def num_free_blocks(self) -> int:
        return self._room.num_free

    # What the edge says.

    def open(self, opening: Open, now: float) -> None:
        """Guess along with a reply; where there is no place for it, it is not known afterwards.

        Raises InvalidSamplingError for ids outside the vocabulary.
        """
        self.close(opening.session)
        if len(self._sessions) >= self._limits.max_sessions:
            self.tally.num_refused += 1
            return
        sampled, size = opening.params.temperature > 0.0, self._info.vocabulary_size
        phrases, rates = self._learned.of(opening.group, are_sampled=sampled)
        session = DraftSession(
            opening,
            chooser=Chooser(opening.params, size, opening.prompt, self._calibration),
            copier=SuffixDrafter(
                max(2, self._info.max_context_tokens),
                phrases,
                num_prompt=len(opening.prompt),
                sampled=sampled,
            ),
            rates=rates.for_reply(),
            limits=self._limits,
            tally=self.tally,
            kv=self._room.new(),
        )
        self._sessions[opening.session] = session
        self._telling[opening.session] = Telling(self._limits, now)

    def commit(self, commit: Commit, now: float) -> None:
        """Ids that became final. Unknown sessions are ignored."""
        session = self._sessions.get(commit.session)
        if session is not None:
            self._telling[commit.session].touched = now
            session.commit(commit.ids, commit.lead)
            self._reclaim(session)

    def close(self, number: int) -> None:
        """No more guesses are wanted. Unknown numbers are ignored."""
        session = self._sessions.pop(number, None)
        if session is not None:
            del self._telling[number]
            session.forget_model(Kv(0))
            self._reclaim(session)

    # Calls of the model.

    def decide(self, now: float) -> EngineCall | None:
        """The next call; None if there is nothing to compute. `apply` follows before the next."""
        self._in_call.clear()
        for session in self._sessions.values():
            session.grow(session.main)
        parts = self._steps(now)
        parts += self._chunks(now, is_idle=not parts)
        if not parts:
            parts = list(islice(self._seconds(now), self._limits.max_rounds))
        if not parts:
            # Sessions that found no room for the model just now go on without.
            for session in self._sessions.values():
                session.grow(session.main)
        return EngineCall(self._room.take_orders(), tuple(parts)) if parts else None

    def apply(self, call: EngineCall, rows: Sequence[LogitsRows], took_s: float) -> None:
        """What the call computed, one Rows per part, within `took_s`. Raises EngineError for rows
        that are no use."""
        self.tally.called(took_s)
        num_rows = sum(len(part.round.tokens) for part in call.parts)
        if num_rows >= self._limits.chunk_tokens:
            self.tally.read_prompt(num_rows, took_s)
        for part, answer in zip(call.parts, rows, strict=True):
            self.tally.num_rows += len(part.round.tokens)
            session = self._sessions.get(part.session)
            line = session.line_of(part.round.sequence) if session else None
            if session is not None and line is not None:
                session.computed(line, part.round, answer)
                session.grow(line)

    def take_guesses(self, now: float) -> list[Guess]:
        """What the edge should be told now."""
        guesses = []
        for number, session in self._sessions.items():
            if self._telling[number].is_due(session, now):
                guesses.append(self._telling[number].tell(session, self.tally.recent_call_us, now))
        return guesses

    # Parts of a call.

    def _steps(self, now: float) -> list[Part]:
        """Sessions that lack a few tokens, the likeliest chains first."""
        ready = [
            session
            for session in self._sessions.values()
            if session.main.wants_row and session.main.num_missing <= self._limits.catch_up_tokens
        ]
        ready.sort(key=lambda session: -session.main.survival())
        parts = []
        for session in ready[: self._limits.max_rounds]:
            count = max(1, session.main.num_missing)
            parts.append(self._part(session, session.main, count, now))
        return [part for part in parts if part is not None]

    def _chunks(self, now: float, *, is_idle: bool) -> list[Part]:
        """The next tokens of prompts, the oldest first."""
        limits = self._limits
        left = limits.idle_chunk_tokens if is_idle else limits.chunk_tokens
        parts = []
        for session in list(self._sessions.values()):
            missing = session.main.num_missing
            if left <= 0 or not session.main.wants_row or missing <= limits.catch_up_tokens:
                continue
            part = self._part(session, session.main, min(missing, left), now)
            if part is not None:
                parts.append(part)
                left -= len(part.round.tokens)
        return parts

    def _seconds(self, now: float) -> Iterator[Part]:
        """Second guesses, while there is nothing better to do."""
        for session in self._sessions.values():
            if session.branch is None and session.is_modelled:
                self._branch_off(session)
            if session.branch is not None:
                session.grow(session.branch)
            if session.branch is not None and session.branch.wants_row:
                line = session.branch
                part = self._part(session, line, max(1, line.num_missing), now)
                if part is not None:
                    yield part

    def _branch_off(self, session: DraftSession) -> None:
        at = session.weakest()
        if at is not None:
            kv = self._room.share(session.main.kv, session.main.begin + at)
            if kv is not None:
                session.branch_off(at, kv)

    def _part(self, session: DraftSession, line: Line, count: int, now: float) -> Part | None:
        """The next `count` tokens of a line; None if they find no room."""
        kv = line.kv
        kv.crop(line.end - 1)  # at least one row is asked for
        end = kv.length + count
        if not self._cover(session, line, end, now):
            return None
        self._in_call.add(session.number)
        tokens = np.array(session.ids(line, kv.length, end), np.int32)
        blocks = np.array(kv.table, np.int32)
        num_rows = int(end == line.end)
        return Part(session.number, SequenceSlice(kv.sequence, tokens, kv.length, blocks, num_rows))

    # Blocks.

    def _cover(self, session: DraftSession, line: Line, num_tokens: int, now: float) -> bool:
        """Have blocks for so many tokens, or do without: a branch ends, and a session goes on
        without the model."""
        if num_tokens + self._info.scratch_tokens <= self._info.max_context_tokens:
            if self._room.extend(line.kv, num_tokens):
                return True
            if line is session.main:
                self._make_room(self._room.missing(line.kv, num_tokens), session, now)
                if self._room.extend(line.kv, num_tokens):
                    return True
        if line is session.main:
            session.is_modelled = False
            session.forget_model(self._room.new())
            self.tally.num_refused += 1
        else:
            session.drop_branch()
        self._reclaim(session)
        return False

    def _make_room(self, count: int, asking: DraftSession, now: float) -> None:
        """Take the KV of sessions that have been idle, the longest first."""
        idle_since = now - self._limits.evict_idle_s
        others = [
            session
            for number, session in self._sessions.items()
            if session is not asking and number not in self._in_call and session.main.kv.table
        ]
        others.sort(key=lambda session: self._telling[session.number].touched)
        for session in others:
            touched = self._telling[session.number].touched
            if self._room.num_free >= count or touched > idle_since:
                return
            session.forget_model(self._room.new())
            self._reclaim(session)
            self.tally.num_evicted += 1

    def _reclaim(self, session: DraftSession) -> None:
        self._room.release(session.dropped)
        session.dropped.clear()
