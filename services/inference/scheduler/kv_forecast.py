"""How much KV memory the sessions of a replica are expected to have at the most. Pure.

What each will have at its end, added up, would be far too much: in a steady flow of sessions some
end while others begin. As in the Past-Future scheduler (arXiv 2507.10150), memory is added up at
each moment at which a session is expected to end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outrider.session.types import Priority
from services.inference.kv.pool import KvPool
from services.inference.scheduler.queues import SessionQueues
from services.inference.scheduler.session import SchedulingState, Session


class KvDemand(NamedTuple):
    """KV memory of one session, in tokens."""

    present_tokens: int
    """For its prompt and the reply so far."""
    future_tokens: int
    """What the rest of its reply is expected to add."""


def peak_tokens(sessions: Iterable[KvDemand]) -> int:
    """Most tokens that they have at one time, if each gets one token at a time and leaves its
    memory once its reply is over."""
    present = peak = 0
    last_first = sorted(sessions, key=lambda session: -session.future_tokens)
    for count, session in enumerate(last_first, 1):
        present += session.present_tokens
        peak = max(peak, present + count * session.future_tokens)
    return peak


class KvForecast:
    """The expected memory of all live sessions but background ones, which give theirs up.

    A peak stays what it is while all replies advance, so it is added up anew only when a session
    comes, goes or changes its queue: a snapshot after each engine call costs next to nothing.
    """

    def __init__(self, pool: KvPool, queues: SessionQueues) -> None:
        self._pool = pool
        self._queues = queues
        self._version = -1
        """Of the queues when the peaks were added up."""
        self._num_used = 0
        """Blocks of the pool that are in use at the peak."""
        self._num_by_class: dict[int, int] = {}

    def update(self, reply_tokens: int) -> None:
        """Take over changes of the queues. Replies are expected to have `reply_tokens` tokens; 0:
        as many as they may."""
        if self._version == self._queues.version:
            return
        self._version = self._queues.version
        sessions = self._queues.foreground([*self._queues.sessions.values()])
        demands = [self._demand(session, reply_tokens) for session in sessions]
        growth = peak_tokens(demands) - sum([demand.present_tokens for demand in demands])
        num_missing = sum([self._num_missing(session) for session in sessions])
        self._num_used = self._num_used_now + num_missing + self._num_blocks(growth)
        by_class: dict[int, list[KvDemand]] = {}
        for session, demand in zip(sessions, demands, strict=True):
            by_class.setdefault(session.standing, []).append(demand)
        self._num_by_class = {
            standing: self._num_blocks(peak_tokens(them)) for standing, them in by_class.items()
        }

    @property
    def num_owed(self) -> int:
        """Blocks that the sessions are expected to have at the most, beside those they have."""
        return max(0, self._num_used - self._num_used_now)

    def of_class(self, priority: Priority) -> int:
        """Blocks that the sessions of a class are expected to have at the most, without those that
        they found others to have."""
        return self._num_by_class.get(priority, 0)

    @property
    def _num_used_now(self) -> int:
        return self._pool.num_blocks - self._pool.num_free

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.block_tokens)

    def _demand(self, session: Session, reply_tokens: int) -> KvDemand:
        num_tokens = len(session.ids)
        num_blocks = self._pool.blocks_for(num_tokens) - session.shared_at_arrival
        future_tokens = session.expected_tokens(reply_tokens) - num_tokens
        return KvDemand(num_blocks * self._pool.block_tokens, future_tokens)

    def _num_missing(self, session: Session) -> int:
        """Blocks that it lacks for its prompt and the reply so far."""
        num_tokens = len(session.ids)
        if session.state is SchedulingState.WAITING:
            return self._pool.blocks_for(num_tokens) - session.shared_at_arrival
        return self._pool.num_owed(session.sequence, num_tokens)
