"""Which sessions wait, run or are paused, and which of them must give up their KV."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from outrider.engines.base import NewSequence
from outrider.engines.candidates import num_candidates
from outrider.session.types import Priority
from services.inference.kv.pool import KvPool
from services.inference.scheduler.session import SchedulingState, Session, SessionInput

STARVATION_TURNS = 4
"""All sessions that are left out of the calls together still get this many turns per
max_pause_ms."""


def _rank(session: Session) -> tuple[float, int]:
    return session.rank


def _outranks(first: Session, second: Session) -> bool:
    """Whether it is of a higher class, and the second has not made up for that by waiting."""
    return first.standing > second.standing and first.rank < second.rank


def _yields_to(session: Session, other: Session | None) -> bool:
    """Whether it is a LOW session that the other one outranks."""
    return other is not None and session.priority is Priority.LOW and _outranks(other, session)


class SessionQueues:
    """All live sessions in order of rank. The first in rank keeps its KV longest.

    Memory runs out only for the last: a session that needs room takes it from those behind it, so
    the first one always advances, and every session becomes the first one day. A session is paused
    only for one that comes before it, so the first one never is.
    """

    def __init__(self, pool: KvPool, max_sessions: int, min_rows: int) -> None:
        self.sessions: dict[int, Session] = {}
        """By engine session id."""
        self.waiting: list[Session] = []
        self.running: list[Session] = []
        """Sessions that have a place in the calls."""
        self.paused: list[Session] = []
        """Sessions in the middle of a reply that lost their place and kept their KV."""
        self.num_background = 0
        """Live background sessions."""
        self.version = 0
        """Rises when a session comes, goes, or changes its queue."""
        self._pool = pool
        self._max_sessions = max_sessions
        self._min_rows = min_rows
        self._last_sequence = 0
        self._opened: list[NewSequence] = []
        self._closed: list[int] = []
        self._in_flight: frozenset[int] = frozenset()
        """Sequences of the engine call that is under way."""
        self._to_release: list[int] = []
        """Sequences of that call that were dropped meanwhile."""
        self._starvation_turn_at = -math.inf

    @property
    def has_sequence_changes(self) -> bool:
        """Whether opened or closed sequences have not been passed to the engine yet."""
        return bool(self._opened or self._closed)

    def num_free_slots(self, priority: Priority) -> int:
        """Slots that sessions of this class can take at the next admission, memory permitting;
        lower classes give up theirs."""
        taken = sum(s.standing >= priority for s in (*self.running, *self.paused))
        return max(0, self._max_sessions - taken)

    def foreground(self, sessions: Sequence[Session]) -> Sequence[Session]:
        """These without background ones."""
        if not self.num_background:
            return sessions
        return [session for session in sessions if not session.is_background]

    def add(self, session: Session) -> None:
        """A new session, at its place in the queue."""
        self.version += 1
        self.sessions[session.session_id] = session
        self.num_background += session.is_background
        insort(self.waiting, session, key=_rank)

    def _urgent(self) -> Session | None:
        """The first session above LOW whose prompt is not computed yet: LOW ones yield to it."""
        for session in self.running:
            if session.priority > Priority.LOW and session.state is SchedulingState.PREFILLING:
                return session
        return None

    def admit(self, now: float, *, hold_low: bool = False) -> None:
        """Give slots to paused and waiting sessions, strictly in order, while there is room, and
        pause those that yield.

        A session may take the place of the last running one if it outranks that. `hold_low`: LOW
        sessions stay in the queue while sessions that outrank them wait or run.
        """
        while (session := self._next(hold_low)) is not None:
            paused = session.state is SchedulingState.PAUSED
            if not (self._resume(session) if paused else self._admit(session, now)):
                break
        urgent = self._urgent()
        for session in list(self.paused):
            # A waiting session that lacks memory leaves its place to paused ones, which have some.
            if len(self.running) < self._max_sessions and not _yields_to(session, urgent):
                self._resume(session)
        for session in list(self.running) if urgent is not None else ():
            if session.state is SchedulingState.DECODING and _yields_to(session, urgent):
                self._pause(session)

    def _next(self, hold_low: bool) -> Session | None:
        """The next session to get a place."""
        if not self.paused and not self.waiting:
            return None
        urgent = self._urgent()
        above_low = self._first_above_low() if hold_low else None
        paused = next((s for s in self.paused if not _yields_to(s, urgent)), None)
        if len(self.running) + len(self.paused) < self._max_sessions:
            urgent = None  # a place is left over: new sessions may at least get starvation turns
        queued = self.waiting if self._is_background_alone else self.foreground(self.waiting)
        waiting = next(
            (s for s in queued if not (_yields_to(s, urgent) or _yields_to(s, above_low))),
            None,
        )
        return min((s for s in (paused, waiting) if s is not None), key=_rank, default=None)

    @property
    def _is_background_alone(self) -> bool:
        return self.num_background == len(self.sessions)

    def _first_above_low(self) -> Session | None:
        """The first of all sessions above LOW."""
        queues = (self.waiting, self.running, self.paused)
        first = [next((s for s in q if s.priority > Priority.LOW), None) for q in queues]
        return min((s for s in first if s is not None), key=_rank, default=None)

    def _resume(self, session: Session) -> bool:
        if not self._has_place(session):
            return False
        self._take_place()
        self.version += 1
        self.paused.remove(session)
        session.transition(SessionInput.RESUME)
        insort(self.running, session, key=_rank)
        return True

    def _admit(self, session: Session, now: float) -> bool:
        if not self._has_place(session):
            return False
        num_cached = self._open(session)
        if num_cached is None:
            return False
        self._take_place()
        self.version += 1
        self._last_sequence += 1
        self.waiting.remove(session)
        session.admit(self._last_sequence, num_cached, now)
        insort(self.running, session, key=_rank)
        self._opened.append(
            NewSequence(
                sequence=session.sequence,
                ids=np.array(session.ids, dtype=np.int32),
                salt=session.request.cache_salt,
                num_candidates=num_candidates(session.request.sampling),
            )
        )
        return True

    def _open(self, session: Session) -> int | None:
        """Open a KV table; returns its number of cached tokens. Sessions that it outranks give up
        their KV for it. None, and they keep it, if that makes no room for all its tokens, the rows
        of the next one, a block for each running session, and the blocks that prompts before it
        still need, which are free only until those are computed."""
        sequence, request = self._last_sequence + 1, session.request
        while True:
            num_cached = self._pool.open(
                sequence, session.ids, request.cache_salt, request.static_salts
            )
            missing = self._num_missing(session, sequence) + self._num_reserved(session)
            if missing <= self._pool.num_free:
                return num_cached
            outranked = self._outranked_by(session)
            num_running = sum(other.state is not SchedulingState.PAUSED for other in outranked)
            is_enough = self._suffices(missing - num_running, outranked)
            self._pool.release(sequence)
            if not is_enough:
                return None
            self.preempt(outranked[0])

    def _num_missing(self, session: Session, sequence: int) -> int:
        """Blocks that it needs beside those that its new table has already."""
        return self._pool.num_missing(sequence, len(session.ids) + self._min_rows - 1)

    def _num_reserved(self, session: Session) -> int:
        """Blocks that are free, and are not for this session."""
        return len(self.running) + sum(
            self._pool.num_owed(prompt.sequence, len(prompt.ids) + self._min_rows - 1)
            for prompt in self.running
            if prompt.state is SchedulingState.PREFILLING and prompt.rank < session.rank
        )

    def _suffices(self, num_blocks: int, others: list[Session]) -> bool:
        """Whether there may be so many blocks once all the others have given up their KV."""
        num_free, sequences = self._pool.num_free, [other.sequence for other in others]
        return num_blocks <= num_free + self._pool.num_releasable(sequences)

    def _outranked_by(self, session: Session) -> list[Session]:
        """Sessions that would give up their KV for a new session, in this order."""
        with_kv = sorted((*self.running, *self.paused), key=_rank, reverse=True)
        return list(takewhile(lambda other: _outranks(session, other), with_kv))

    def _has_place(self, session: Session) -> bool:
        return len(self.running) < self._max_sessions or _outranks(session, self.running[-1])

    def _take_place(self) -> None:
        """Take the last running session's place if none is free: a reply keeps its KV, a prompt
        only what is shared in the prefix tree."""
        if len(self.running) < self._max_sessions:
            return
        last = self.running[-1]
        if last.state is SchedulingState.DECODING:
            self._pause(last)
        else:
            self.preempt(last)

    def _pause(self, session: Session) -> None:
        self.version += 1
        self.running.remove(session)
        session.transition(SessionInput.PAUSE)
        insort(self.paused, session, key=_rank)

    def schedulable(self, now: float, max_pause_s: float) -> tuple[list[Session], Session | None]:
        """The sessions that may take part in the next call, in order of rank: those that run and
        yield to no other, and at times, as the second value, the one that was left out longest, if
        for at least max_pause_s: it has a starvation turn."""
        urgent = self._urgent()
        if urgent is None and not self.paused:
            return list(self.running), None
        schedulable = [s for s in self.running if not _yields_to(s, urgent)]
        left_out = [*self.paused, *(s for s in self.running if _yields_to(s, urgent))]
        left_out = list(self.foreground(left_out))
        longest = min(left_out, key=lambda s: s.last_scheduled_at, default=None)
        if longest is None or now - longest.last_scheduled_at < max_pause_s:
            return schedulable, None
        if now - self._starvation_turn_at < max_pause_s / STARVATION_TURNS:
            return schedulable, None
        self._starvation_turn_at = now
        insort(schedulable, longest, key=_rank)
        return schedulable, longest

    def grow(self, session: Session, num_tokens: int) -> bool:
        """Cover num_tokens, taking KV from sessions behind this one if need be. False: they have
        too little, and keep it; this one has to wait for the next call."""
        while not self._pool.grow(session.sequence, num_tokens):
            behind = [s for s in (*self.running, *self.paused) if s.rank > session.rank]
            missing = self._pool.num_missing(session.sequence, num_tokens)
            if not self._suffices(missing, behind):
                return False
            self.preempt(max(behind, key=_rank))
        return True

    def preempt(self, session: Session) -> None:
        """Drop its KV and put it back into the queue; it continues exactly where it was."""
        self.version += 1
        self._queue_of(session).remove(session)
        self._drop(session.sequence)
        session.preempt()
        insort(self.waiting, session, key=_rank)

    def end(self, session: Session) -> None:
        """Forget a session. Blocks of a call in flight are freed only when that has returned."""
        self.version += 1
        del self.sessions[session.session_id]
        self.num_background -= session.is_background
        self._queue_of(session).remove(session)
        if session.state is not SchedulingState.WAITING:
            self._drop(session.sequence)
        session.transition(SessionInput.END)

    def _queue_of(self, session: Session) -> list[Session]:
        if session.state is SchedulingState.WAITING:
            return self.waiting
        return self.paused if session.state is SchedulingState.PAUSED else self.running

    def _drop(self, sequence: int) -> None:
        self._closed.append(sequence)
        if sequence in self._in_flight:
            self._to_release.append(sequence)
        else:
            self._pool.release(sequence)

    def take_sequence_changes(self) -> tuple[tuple[NewSequence, ...], tuple[int, ...]]:
        """Sequences opened and closed since the last call; those that were both are in neither."""
        if not self._opened and not self._closed:
            return (), ()
        closed = set(self._closed)
        opened = tuple(new for new in self._opened if new.sequence not in closed)
        unknown = {new.sequence for new in self._opened} & closed
        gone = tuple(sequence for sequence in self._closed if sequence not in unknown)
        self._opened, self._closed = [], []
        return opened, gone

    def begin_in_flight(self, sequences: frozenset[int]) -> None:
        """An engine call with these sequences is under way."""
        self._in_flight = sequences

    def end_in_flight(self) -> None:
        """The call has returned: blocks of sessions that ended meanwhile are freed now."""
        self._in_flight = frozenset()
        for sequence in self._to_release:
            self._pool.release(sequence)
        self._to_release = []

    def check_invariants(self) -> None:
        """Raises AssertionError if a session is lost, doubled, or in a list of another state."""
        everyone = self.waiting + self.running + self.paused
        assert sorted(s.session_id for s in everyone) == sorted(self.sessions)
        assert self.num_background == sum(s.is_background for s in everyone)
        assert all(s.state is SchedulingState.WAITING for s in self.waiting)
        running = (SchedulingState.PREFILLING, SchedulingState.DECODING)
        assert all(s.state in running for s in self.running)
        assert all(s.state is SchedulingState.PAUSED for s in self.paused)
        for queue in (self.waiting, self.running, self.paused):
            assert queue == sorted(queue, key=_rank)
        assert len(self.running) <= self._max_sessions
        for session in everyone:
            assert 0 <= session.num_computed < len(session.ids) or session.num_computed == 0
            holds = session.state is not SchedulingState.WAITING
            covered = len(self._pool.blocks(session.sequence)) if holds else 0
            assert covered * self._pool.block_tokens >= session.num_computed
