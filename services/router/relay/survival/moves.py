"""Sessions between two replicas: who waits, who goes on, who is given up. No I/O, no clock.

A session whose replica is lost, silent, refuses it or cannot go on with it is opened on another
one, with its seed and all that is committed, so that it goes on as if nothing had happened. Until
there is a replica, room and budget for it, it waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    PoisonousRequestError,
    ReplicaLostError,
)
from outrider.v1 import router_pb2
from services.router.placement.types import RETRY_DELAY_MS
from services.router.relay.dispatch import Dispatch
from services.router.relay.journal import Journal
from services.router.relay.sessions import Session, SessionTable
from services.router.relay.survival.budget import MoveBudget, MovePolicy
from services.router.relay.survival.suspicion import Suspects

Up = router_pb2.RouteRequest

MAX_AT_ONCE: Final = 16
"""Sessions opened in one go; what else the loop has to do comes before the next ones."""
_MAX_VAIN: Final = 4
"""Placements in a row that may fail before the rest waits for the next go."""


class Moves:
    """The sessions of one router that look for another replica."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        journal: Journal,
        policy: MovePolicy | None = None,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._journal = journal
        self._policy = policy or MovePolicy()
        self._budget = MoveBudget(self._policy)
        self._suspects = Suspects(self._policy.max_lost_replicas)
        self._waiting: dict[int, tuple[Session[Up], OutriderError]] = {}
        self.is_due = False
        """Whether more could go on now than there was time for."""

    def __len__(self) -> int:
        return len(self._waiting)

    def died(self, sessions: Iterable[Session[Up]], *, excuses: bool = True) -> Session[Up] | None:
        """Their replica is lost, or an engine call with them failed (`excuses` is False): the one
        that is the reason, if it shows."""
        by_record = {session.record: session for session in sessions}
        culprit = self._suspects.died(list(by_record), excuses=excuses)
        return by_record[culprit] if culprit else None

    def refused(self, session: Session[Up]) -> None:
        """A replica did not take it, which says nothing of it."""
        self._suspects.came_back(session.record)

    def departed(self, session: Session[Up]) -> None:
        """Its replica fell silent with all it had, which says nothing of it either; but it is not
        to be refused any more."""
        self._suspects.came_back(session.record)
        session.num_moves += 1

    def served(self, session: Session[Up], now: float) -> None:
        """It has tokens from the replica that it is on."""
        if session.record.is_proven:
            return
        self._suspects.proved(session.record)
        self.is_due = self.is_due or bool(self._suspects)
        if session.left_at is not None:
            self._journal.moved(session.replica, (now - session.left_at) * 1e3)
            session.left_at = None

    def wait(self, session: Session[Up], why: OutriderError, now: float) -> None:
        """It looks for another replica, because of `why`, from the next `retry` on."""
        if session.left_at is None:
            session.left_at = now
        self._waiting[session.relayed] = session, why

    def forget(self, session: Session[Up]) -> None:
        """It has ended."""
        self._waiting.pop(session.relayed, None)
        self._suspects.forget(session.record)

    def retry(self, now: float) -> list[tuple[Session[Up], OutriderError]]:
        """Open what can be opened now; those that are to be given up, and why."""
        over: list[tuple[Session[Up], OutriderError]] = []
        num_left, num_vain, self.is_due = MAX_AT_ONCE, 0, False
        for session, why in list(self._waiting.values()):
            if session.left_at is not None and now - session.left_at >= self._policy.timeout_s:
                over.append((session, _given_up(why)))
                continue
            if num_vain >= _MAX_VAIN or not self._may_go(session, now):
                continue
            if not num_left:
                self.is_due = True
                break
            try:
                self._move(session, now)
                num_left -= 1
            except (NoReplicaError, OverloadedError):
                num_vain += 1
                session.tried.clear()  # the next best may be one of those, after a while
            except OutriderError as error:
                over.append((session, error))
        return over

    def _may_go(self, session: Session[Up], now: float) -> bool:
        is_late = session.deadline_at is not None and session.deadline_at <= now
        has_budget = self._budget.allows(len(self._table), now)
        return is_late or (has_budget and self._suspects.may_go(session.record))

    def _move(self, session: Session[Up], now: float) -> None:
        self._dispatch.place(session, now)
        self._budget.spend(now)
        self._suspects.went(session.record)
        session.num_moves += 1
        del self._waiting[session.relayed]


def lost(replica: str, why: str) -> ReplicaLostError:
    """Why sessions leave a replica."""
    return ReplicaLostError(
        f"Replica {replica} {why} while it served the session: open it again.",
        retry_delay_ms=RETRY_DELAY_MS,
    )


def poisonous(session: Session[Up]) -> PoisonousRequestError:
    """Why a session is not opened again."""
    return PoisonousRequestError(
        f"{session.record.num_lost} replicas were lost as soon as they served this request, the "
        f"last one {session.replica}: it is not tried again; change it, and report it.",
    )


def _given_up(why: OutriderError) -> ReplicaLostError:
    return ReplicaLostError(
        f"No other replica could take the session in time; before: {why.message}",
        retry_delay_ms=RETRY_DELAY_MS,
    )
