"""Who waits, who runs, and who has to give up its KV."""

from __future__ import annotations

from bisect import insort

import numpy as np
from services.inference.engines.candidates import num_candidates
from services.inference.kv.pool import KvPool

from services.inference.engines.base import Opening
from services.inference.scheduling.session import Input, Session, State


def _rank(session: Session) -> tuple[float, int]:
    return session.rank


class Roster:
    """All live sessions in order of rank. Whoever comes first keeps its KV longest.

    Memory runs out only for the last: a session that needs room takes it from those behind it,
    so the first one always moves, and every session becomes the first one day.
    """

    def __init__(self, pool: KvPool, max_sessions: int, min_rows: int) -> None:
        self.sessions: dict[int, Session] = {}
        """By the shell's number."""
        self.waiting: list[Session] = []
        self.running: list[Session] = []
        """Those that hold KV."""
        self._pool = pool
        self._max_sessions = max_sessions
        self._min_rows = min_rows
        self._next_sequence = 0
        self._opened: list[Opening] = []
        self._closed: list[int] = []
        self._in_flight: frozenset[int] = frozenset()
        self._leaving: list[int] = []

    @property
    def has_news(self) -> bool:
        """Whether the engine has yet to hear of opened or closed sequences."""
        return bool(self._opened or self._closed)

    @property
    def num_vacant(self) -> int:
        """Places that waiting sessions will take at the next admission, memory permitting."""
        return self._max_sessions - len(self.running)

    def add(self, session: Session) -> None:
        """A new session, at its place in the queue."""
        self.sessions[session.number] = session
        insort(self.waiting, session, key=_rank)

    def admit(self, now: float) -> None:
        """Give KV tables to waiting sessions, strictly in order, while there is room.

        A session may take the place of the last running one if that is of a lower priority.
        """
        while self.waiting:
            session = self.waiting[0]
            while not self._try_admit(session, now):
                if not self._yields(session):
                    return
                self.preempt(self.running[-1])

    def _try_admit(self, session: Session, now: float) -> bool:
        """Room means: for all its tokens, the next one's rows, and a block for everyone running."""
        if len(self.running) >= self._max_sessions:
            return False
        sequence = self._next_sequence + 1
        cached = self._pool.open(sequence, session.ids, session.request.cache_salt)
        reserve = len(self.running) * self._pool.block_tokens
        if not self._pool.can_grow(sequence, len(session.ids) + self._min_rows - 1 + reserve):
            self._pool.release(sequence)
            return False
        self._next_sequence = sequence
        self.waiting.pop(0)
        session.admit(sequence, cached, now)
        insort(self.running, session, key=_rank)
        ids = np.array(session.ids, dtype=np.int32)
        salt, candidates = session.request.cache_salt, num_candidates(session.request.sampling)
        self._opened.append(Opening(sequence, ids, salt, candidates))
        return True

    def _yields(self, session: Session) -> bool:
        if not self.running:
            return False
        last = self.running[-1]
        return last.rank > session.rank and last.request.priority < session.request.priority

    def grow(self, session: Session, num_tokens: int) -> bool:
        """Cover num_tokens, taking KV from sessions behind this one if need be. False: it is
        the last one and has to wait a tick."""
        while not self._pool.can_grow(session.sequence, num_tokens):
            if self.running[-1] is session:
                return False
            self.preempt(self.running[-1])
        self._pool.grow(session.sequence, num_tokens)
        return True

    def preempt(self, session: Session) -> None:
        """Drop its KV and put it back into the queue; it goes on exactly where it was."""
        self.running.remove(session)
        self._drop(session.sequence)
        session.preempt()
        insort(self.waiting, session, key=_rank)

    def end(self, session: Session) -> None:
        """Forget a session. Blocks of a call in flight are free only when that has returned."""
        del self.sessions[session.number]
        if session.state is State.WAITING:
            self.waiting.remove(session)
        else:
            self.running.remove(session)
            self._drop(session.sequence)
        session.advance(Input.END)

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
        everyone = self.waiting + self.running
        assert sorted(s.number for s in everyone) == sorted(self.sessions)
        assert all(s.state is State.WAITING for s in self.waiting)
        assert all(s.state in (State.PREFILLING, State.DECODING) for s in self.running)
        for queue in (self.waiting, self.running):
            assert queue == sorted(queue, key=_rank)
        assert len(self.running) <= self._max_sessions
        for session in everyone:
            assert 0 <= session.computed < len(session.ids) or session.computed == 0
            covered = len(self._pool.blocks(session.sequence)) if session in self.running else 0
            assert covered * self._pool.block_tokens >= session.computed
