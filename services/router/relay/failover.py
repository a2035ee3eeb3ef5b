"""Sessions between two replicas: which wait, which continue, which are given up. Pure.

A session whose replica is lost, silent, refuses it or cannot continue it is opened on another one,
with its seed and all committed tokens, so that it continues as if nothing had happened. It waits
until a replica, room and retry budget are available.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from outrider.engine_calls import Crash
from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
)
from services.router.placement.constraints import is_other_identity
from services.router.placement.types import RETRY_DELAY_MS
from services.router.recent_replies import Move, RecentReplies
from services.router.relay.poison import (
    CrashReports,
    Loss,
    PoisonDetector,
    poisonous_request_error,
)
from services.router.relay.policy import FailoverPolicy

if TYPE_CHECKING:
    from services.router.admission.routing import FleetView
    from services.router.relay.dispatch import Dispatch
    from services.router.relay.frames import RelayedSession, Up
    from services.router.relay.sessions import SessionTable
    from services.router.relay.telemetry import SessionTelemetry
    from services.router.session_request import SessionRequest

MAX_MOVES_PER_RETRY: Final = 16
"""Sessions opened by one `retry`: the event loop does other work before the next one."""
_MAX_FAILED_PLACEMENTS: Final = 4
"""Placements that may fail in one `retry` among sessions for the same replicas. The rest of these
sessions wait for the next one, and hold up no others."""
_MAX_FAILURES: Final = 64
"""The same among all sessions of one model: another model's may have room."""


class RetryBudget:
    """How many sessions may be opened a second time, so that a failing fleet is not overloaded by
    them.

    A share of the live sessions and a fixed number, within a window: the retry budget of Finagle
    (`RetryBudget`), over live sessions instead of requests per second, since one replica's loss
    moves all that it had at once. A move that is over the budget waits; none fails for its sake.
    """

    def __init__(self, policy: FailoverPolicy) -> None:
        self._policy = policy
        self._moved_at: deque[float] = deque()

    def allows(self, num_sessions: int, now: float) -> bool:
        """Whether one more of a model's `num_sessions` live sessions may move."""
        while self._moved_at and self._moved_at[0] <= now - self._policy.window_s:
            self._moved_at.popleft()
        return len(self._moved_at) < self._policy.min_moves + self._policy.share * num_sessions

    def spend(self, now: float) -> None:
        """A session moved."""
        self._moved_at.append(now)

    def is_whole(self, now: float) -> bool:
        """Whether no session has moved within the window."""
        return not self._moved_at or self._moved_at[-1] <= now - self._policy.window_s


class Failover:
    """The sessions of one router that look for another replica."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        fleet_view: FleetView,
        telemetry: SessionTelemetry,
        recent: RecentReplies,
        policy: FailoverPolicy | None = None,
    ) -> None:
        self._recent = recent
        self._table = table
        self._dispatch = dispatch
        self._fleet_view = fleet_view
        self._telemetry = telemetry
        self._policy = policy or FailoverPolicy()
        self._budgets: dict[str, RetryBudget] = {}
        """Retry budgets by model, so that losses of one model's replicas hold up no session of
        another."""
        self._poison: dict[str, PoisonDetector] = {}
        """Detectors by model: a replica has one model, so suspects of a model need not wait for
        trials of another's."""
        self._crash_reports = CrashReports()
        self._waiting: dict[int, tuple[RelayedSession, OutriderError]] = {}
        self.is_due = False
        """Whether waiting sessions are to be tried again soon, without waiting for news from
        replicas."""

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> list[SessionRequest]:
        """Requests of the sessions that look for a replica."""
        return [session.request for session, _ in self._waiting.values()]

    def replica_lost(self, sessions: Sequence[RelayedSession], loss: Loss) -> None:
        """Their replica, which has one model, is lost; why is yet to be explained."""
        if sessions:
            poison = self._poison_of(sessions[0])
            poison.replica_lost([session.losses for session in sessions], loss)

    def call_failed(self, session: RelayedSession, num_sessions: int) -> None:
        """An engine call of `num_sessions` sessions failed, this one among them, while its replica
        lives; 0: the failure gives no evidence against it."""
        if not num_sessions:
            self.refused(session)
            return
        call = session.replica_stream, session.upstream_session_id
        poison = self._poison_of(session)
        poison.call_failed(session.losses, call, is_single=num_sessions == 1)

    def opened(self, session: RelayedSession, now: float, *, is_doubtful: bool) -> None:
        """A session has just arrived, maybe because its edge or router died. Crashes that replicas
        reported with its request count against it; `is_doubtful`: some replicas may not have
        reported yet."""
        session.losses.is_doubtful = is_doubtful
        poison = self._poison_of(session)
        for loss, is_single in self._crash_reports.of(session.losses.request, now):
            poison.crashed(session.losses, loss, is_single=is_single)

    def explained(self, replica: str, process: bytes, crashes: Sequence[Crash], now: float) -> None:
        """A replica reports on its losses: `process` is alive, and `crashes` are its processes that
        crashed. A lost process without a crash was ended from outside."""
        crashes = [crash for crash in crashes if crash.process != process]
        calls = {crash.process: crash.call for crash in crashes}
        for poison in self._poison.values():
            for loss in poison.losses_of(replica):
                poison.explained(loss, calls.get(loss.process))
        for crash in self._crash_reports.record(replica, crashes, now):
            loss = Loss(replica, crash.process)
            for session in self._table.with_requests(crash.call.requests):
                poison = self._poison_of(session)
                poison.crashed(session.losses, loss, is_single=crash.call.is_single)

    def refused(self, session: RelayedSession) -> None:
        """A replica did not take it, or serves others alone, which says nothing of the session."""
        self._poison_of(session).left_replica(session.losses)

    def left_unblamed(self, session: RelayedSession) -> None:
        """Its replica fell silent, or lost its engine, with all it had, which says nothing of the
        session. It counts as moved, so that admission control does not refuse it any more, and it
        is tried as long as it takes."""
        self._poison_of(session).left_replica(session.losses)
        session.num_moves += 1

    def first_token(self, session: RelayedSession, now: float) -> None:
        """It has tokens from the replica that it is on."""
        poison = self._poison_of(session)
        poison.proved(session.losses)
        self._crash_reports.forgive(session.losses.request)
        self.is_due = self.is_due or bool(poison)
        if session.replica_left_at is not None:
            pause_ms = (now - session.replica_left_at) * 1e3
            self._telemetry.moved(session.replica, pause_ms)
            if session.left_replica:
                left, why = session.left_replica, session.left_because
                self._recent.moved(Move(left, session.replica, why, pause_ms, now))
            session.replica_left_at = None

    def wait(self, session: RelayedSession, why: OutriderError, now: float) -> None:
        """It looks for another replica, because of `why`, from the next `retry` on."""
        if session.replica_left_at is None:
            session.replica_left_at = now
            session.left_replica, session.left_because = session.replica, why.reason
        self._waiting[session.router_session_id] = session, why

    def forget(self, session: RelayedSession) -> None:
        """It has ended."""
        self._waiting.pop(session.router_session_id, None)
        self._poison_of(session).forget(session.losses)

    def retry(self, now: float) -> list[tuple[RelayedSession, OutriderError]]:
        """Open the sessions that can be opened now; returns those to give up, and why."""
        if not self._waiting:
            self.is_due = False
            return []
        over: list[tuple[RelayedSession, OutriderError]] = []
        num_moved = 0
        failed: Counter[Hashable] = Counter()
        failed_by_model: Counter[str] = Counter()
        self.is_due = False
        for session, why in list(self._waiting.values()):
            if session.losses.is_poisonous:
                over.append((session, poisonous_request_error(session.losses)))
                continue
            left_at = session.replica_left_at
            if left_at is not None and now - left_at >= self._policy.timeout_s:
                over.append((session, _given_up(why)))
                continue
            replica_set = self._fleet_view.replica_set(session.current_request)
            model = session.request.model
            poison, budget = self._poison_of(session), self._budget_of(model, now)
            has_failed = failed[replica_set] >= _MAX_FAILED_PLACEMENTS
            has_failed |= failed_by_model[model] >= _MAX_FAILURES
            if has_failed:
                poison.deferred(session.losses)
                continue
            if not self._may_move(session, poison, budget, now):
                continue
            if num_moved >= MAX_MOVES_PER_RETRY:
                self.is_due = True
                break
            try:
                self._dispatch.place(session, now)
            except (NoReplicaError, OverloadedError) as error:
                failed[replica_set] += 1
                failed_by_model[model] += 1
                session.tried_replicas.clear()  # one of those may have room after a while
                poison.deferred(session.losses)
                if is_other_identity(error):
                    # It says more than why the last replica was left. The wait may be long: the
                    # others are tried first from now on.
                    del self._waiting[session.router_session_id]
                    self._waiting[session.router_session_id] = session, error
            except OutriderError as error:
                over.append((session, error))
            else:
                num_moved += 1
                budget.spend(now)
                poison.opened(session.losses)
                session.num_moves += 1
                del self._waiting[session.router_session_id]
        return over

    def _budget_of(self, model: str, now: float) -> RetryBudget:
        found = self._budgets.get(model)
        if found is None:
            # Models come and go: one whose sessions do not move needs none.
            self._budgets = {m: it for m, it in self._budgets.items() if not it.is_whole(now)}
            found = self._budgets[model] = RetryBudget(self._policy)
        return found

    def _poison_of(self, session: RelayedSession) -> PoisonDetector:
        model = session.request.model
        found = self._poison.get(model)
        if found is None:
            # One without suspects is as good as a new one.
            self._poison = {m: it for m, it in self._poison.items() if it}
            found = self._poison[model] = PoisonDetector(self._policy.max_crashes)
        return found

    def _may_move(
        self, session: RelayedSession, poison: PoisonDetector, budget: RetryBudget, now: float
    ) -> bool:
        deadline_at = session.request.deadline_at
        is_late = deadline_at is not None and deadline_at <= now
        has_budget = budget.allows(self._table.num_sessions(session.request.model), now)
        return is_late or (has_budget and poison.may_open(session.losses))


def replica_lost_error(replica: str, what: str) -> ReplicaLostError:
    """Why sessions leave a replica."""
    return ReplicaLostError(
        f"replica {replica} {what} while it served the session; open it again",
        retry_delay_ms=RETRY_DELAY_MS,
    )


def _given_up(why: OutriderError) -> OutriderError:
    if is_other_identity(why):
        return why
    return ReplicaLostError(
        f"no other replica could take the session in time; before: {why.message}",
        retry_delay_ms=RETRY_DELAY_MS,
    )
