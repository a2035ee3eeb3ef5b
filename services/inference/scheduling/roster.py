"""Who waits, who runs, who sits out, and who has to give up its KV."""

from __future__ import annotations

import math
from bisect import insort

import numpy as np

from outrider.engines.base import Opening
from outrider.engines.candidates import num_candidates
from outrider.session_types import Priority
from services.inference.kv.pool import KvPool
from services.inference.scheduling.session import Input, Session, State

_GUESTS = 4
"""Turns that sessions which sit out get in the time after which one is due."""


def _rank(session: Session) -> tuple[float, int]:
    return session.rank


def _outranks(first: Session, second: Session) -> bool:
    """Whether it is of a higher class, and the second has not made up for that by waiting."""
    return first.priority > second.priority and first.rank < second.rank


def _is_urgent(session: Session) -> bool:
    return session.priority > Priority.LOW and session.state is State.PREFILLING


def _makes_way(session: Session, other: Session | None) -> bool:
    """Whether it is a LOW session that the other one outranks."""
    return other is not None and session.priority is Priority.LOW and _outranks(other, session)


class Roster:
    """All live sessions in order of rank. Whoever comes first keeps its KV longest.

    Memory runs out only for the last: a session that needs room takes it from those behind it,
    so the first one always moves, and every session becomes the first one day. Nobody is paused
    but for one that comes before it: so the first one never is.
    """

    def __init__(self, pool: KvPool, max_sessions: int, min_rows: int) -> None:
        self.sessions: dict[int, Session] = {}
        """By the shell's number."""
        self.waiting: list[Session] = []
        self.running: list[Session] = []
        """Those that have a place in the calls."""
        self.paused: list[Session] = []
        """Those in the middle of a reply that gave theirs up and kept their KV."""
        self._pool = pool
        self._max_sessions = max_sessions
        self._min_rows = min_rows
        self._next_sequence = 0
        self._opened: list[Opening] = []
        self._closed: list[int] = []
        self._in_flight: frozenset[int] = frozenset()
        self._leaving: list[int] = []
        self._guest_at = -math.inf

    @property
    def has_news(self) -> bool:
        """Whether the engine has yet to hear of opened or closed sequences."""
        return bool(self._opened or self._closed)

    def num_vacant(self, priority: Priority) -> int:
        """Places that sessions of this class will take at the next admission, memory permitting;
        those of lower classes give theirs up."""
        taken = sum(s.priority >= priority for s in self.running)
        return max(0, self._max_sessions - taken - sum(s.priority >= priority for s in self.paused))

    def add(self, session: Session) -> None:
        """A new session, at its place in the queue."""
        self.sessions[session.number] = session
        insort(self.waiting, session, key=_rank)

    @property
    def urgent(self) -> Session | None:
        """The first session above LOW whose prompt is not computed yet: LOW ones make way."""
        return next((s for s in self.running if _is_urgent(s)), None)

    def admit(self, now: float, *, hold_low: bool = False) -> None:
        """Give places to paused and waiting sessions, strictly in order, while there is room, and
        pause those who make way.

        A session may take the place of the last running one if it outranks that. `hold_low`:
        LOW sessions stay in the queue while others are there that outrank them.
        """
        while (session := self._next(hold_low)) is not None:
            paused = session.state is State.PAUSED
            if not (self._resume(session) if paused else self._admit(session, now)):
                break
        urgent = self.urgent
        for session in list(self.paused):
            # Who waits for memory leaves a vacant place to those who have some.
            if len(self.running) < self._max_sessions and not _makes_way(session, urgent):
                self._resume(session)
        for session in list(self.running) if urgent is not None else ():
            if session.state is State.DECODING and _makes_way(session, urgent):
                self._pause(session)

    def _next(self, hold_low: bool) -> Session | None:
        urgent, barrier = self.urgent, self._barrier() if hold_low else None
        paused = next((s for s in self.paused if not _makes_way(s, urgent)), None)
        if len(self.running) + len(self.paused) < self._max_sessions:
            urgent = None  # places that nobody comes back to: new ones may at least be guests
        waiting = next(
            (s for s in self.waiting if not (_makes_way(s, urgent) or _makes_way(s, barrier))), None
        )
        return min((s for s in (paused, waiting) if s is not None), key=_rank, default=None)

    def _barrier(self) -> Session | None:
        """The first session of a class above LOW."""
        first = [next((s for s in q if s.priority > Priority.LOW), None) for q in self._queues()]
        return min((s for s in first if s is not None), key=_rank, default=None)

    def _queues(self) -> tuple[list[Session], ...]:
        return self.waiting, self.running, self.paused

    def _resume(self, session: Session) -> bool:
        if not self._has_place(session):
            return False
        self._take_place()
        self.paused.remove(session)
        session.advance(Input.RESUME)
        insort(self.running, session, key=_rank)
        return True

    def _admit(self, session: Session, now: float) -> bool:
        if not self._has_place(session):
            return False
        while (cached := self._open(session)) is None:
            last = self._last()
            if last is None or not _outranks(session, last):
                return False
            self.preempt(last)
        self._take_place()
        self._next_sequence += 1
        self.waiting.remove(session)
        session.admit(self._next_sequence, cached, now)
        insort(self.running, session, key=_rank)
        ids = np.array(session.ids, dtype=np.int32)
        salt, candidates = session.request.cache_salt, num_candidates(session.request.sampling)
        self._opened.append(Opening(session.sequence, ids, salt, candidates))
        return True

    def _open(self, session: Session) -> int | None:
        """Cached tokens of its new table. Room means: for all its tokens, the next one's rows, and
        a block for everyone running."""
        sequence = self._next_sequence + 1
        cached = self._pool.open(sequence, session.ids, session.request.cache_salt)
        reserve = len(self.running) * self._pool.block_tokens
        if not self._pool.can_grow(sequence, len(session.ids) + self._min_rows - 1 + reserve):
            self._pool.release(sequence)
            return None
        return cached

    def _has_place(self, session: Session) -> bool:
        return len(self.running) < self._max_sessions or _outranks(session, self.running[-1])

    def _take_place(self) -> None:
        """From the last one, if there is no other: replies keep their KV, prompts what is shared
        in the prefix tree."""
        if len(self.running) < self._max_sessions:
            return
        last = self.running[-1]
        if last.state is State.DECODING:
            self._pause(last)
        else:
            self.preempt(last)

    def _pause(self, session: Session) -> None:
        self.running.remove(session)
        session.advance(Input.PAUSE)
        insort(self.paused, session, key=_rank)

    def takers(self, now: float, max_pause_s: float) -> tuple[list[Session], Session | None]:
        """Who may take part in the next call, in order of rank: those who run and make no way for
        others, and at times, as a guest, the one that sat out longest, if over max_pause_s."""
        urgent = self.urgent
        if urgent is None and not self.paused:
            return list(self.running), None
        takers = [s for s in self.running if not _makes_way(s, urgent)]
        idle = [*self.paused, *(s for s in self.running if _makes_way(s, urgent))]
        longest = min(idle, key=lambda s: s.turn_at, default=None)
        late = longest is not None and now - longest.turn_at >= max_pause_s
        if longest is None or not late or now - self._guest_at < max_pause_s / _GUESTS:
            return takers, None
        self._guest_at = now
        insort(takers, longest, key=_rank)
        return takers, longest

    def grow(self, session: Session, num_tokens: int) -> bool:
        """Cover num_tokens, taking KV from sessions behind this one if need be. False: it is
        the last one and has to wait a tick."""
        while not self._pool.grow(session.sequence, num_tokens):
            last = self._last()
            if last is None or last is session:
                return False
            self.preempt(last)
        return True

    def _last(self) -> Session | None:
        """The last of those that hold KV."""
        return max((*self.running[-1:], *self.paused[-1:]), key=_rank, default=None)

    def preempt(self, session: Session) -> None:
        """Drop its KV and put it back into the queue; it goes on exactly where it was."""
        self._queue_of(session).remove(session)
        self._drop(session.sequence)
        session.preempt()
        insort(self.waiting, session, key=_rank)

    def end(self, session: Session) -> None:
        """Forget a session. Blocks of a call in flight are free only when that has returned."""
        del self.sessions[session.number]
        self._queue_of(session).remove(session)
        if session.state is not State.WAITING:
            self._drop(session.sequence)
        session.advance(Input.END)

    def _queue_of(self, session: Session) -> list[Session]:
        if session.state is State.WAITING:
            return self.waiting
        return self.paused if session.state is State.PAUSED else self.running

    def _drop(self, sequence: int) -> None:
        self._closed.append(sequence)
        if sequence in self._in_flight:
            self._leaving.append(sequence)
        else:
            self._pool.release(sequence)

    def take_news(self) -> tuple[tuple[Opening, ...], tuple[int, ...]]:
        """Sequences opened and closed since the last call; what came and went in between is
        in neither."""
        closed = set(self._closed)
        opened = tuple(new for new in self._opened if new.sequence not in closed)
        unheard = {new.sequence for new in self._opened} & closed
        gone = tuple(number for number in self._closed if number not in unheard)
        self._opened, self._closed = [], []
        return opened, gone

    def depart(self, sequences: frozenset[int]) -> None:
        """An engine call with these sequences is on its way."""
        self._in_flight = sequences

    def arrive(self) -> None:
        """The call has returned: blocks of sessions that ended meanwhile are free now."""
        self._in_flight = frozenset()
        for sequence in self._leaving:
            self._pool.release(sequence)
        self._leaving = []

    def check_invariants(self) -> None:
        """Raises AssertionError if a session is lost, doubled, or in a list of another state."""
        everyone = self.waiting + self.running + self.paused
        assert sorted(s.number for s in everyone) == sorted(self.sessions)
        assert all(s.state is State.WAITING for s in self.waiting)
        assert all(s.state in (State.PREFILLING, State.DECODING) for s in self.running)
        assert all(s.state is State.PAUSED for s in self.paused)
        for queue in self._queues():
            assert queue == sorted(queue, key=_rank)
        assert len(self.running) <= self._max_sessions
        for session in everyone:
            assert 0 <= session.computed < len(session.ids) or session.computed == 0
            holds = session.state is not State.WAITING
            covered = len(self._pool.blocks(session.sequence)) if holds else 0
            assert covered * self._pool.block_tokens >= session.computed
