"""Finds replicas that hang, fall silent or are lost, and the sessions that leave them. Pure.

A replica with sessions in the middle of their replies makes engine calls, and every call commits
tokens: if none of these sessions gets a token within many times the duration of a call, the replica
hangs, even if its process answers every probe. Sessions that are not being served yet prove
nothing: for them the heartbeat of the replica's load reports counts (services.router.fleet). Times
are those of a clock that stops while this process does (outrider.peers.stall_free_clock), so its
own pauses do not count as silence of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from outrider.engine_calls import CRASH_KEPT_S, Crash, sessions_in_call
from outrider.errors import CancelledError, OutriderError
from outrider.peers.health import PeerState, Signal
from services.router.relay.failover import Failover, replica_lost_error
from services.router.relay.poison import Loss
from services.router.relay.policy import HangPolicy
from services.router.relay.sessions import SessionInput, SessionState

if TYPE_CHECKING:
    from services.router.fleet.registry import Registry
    from services.router.fleet.replica import Replica
    from services.router.relay.dispatch import Dispatch
    from services.router.relay.frames import RelayedSession, Up
    from services.router.relay.sessions import SessionTable
    from services.router.session_request import SessionRequest

_STALL_CHECK_S: Final = 1.0
"""Time between two looks for single sessions without tokens."""
_REPORT_SHARE: Final = 0.75
"""A replica that reported its load within this share of the limit of silence is at work: if no
session gets a token, its engine hangs."""

_AWAY: Final = frozenset({PeerState.CONNECTING, PeerState.DOWN})
"""States of a replica that has not reported yet whether it crashed, and with which requests."""
_HANG_REPORTED_S: Final = 3.0
"""Seconds after a hang is found within which load reports, one a second, name the call that
hangs."""
_HANG_SLACK_S: Final = 2.0
"""Reports are up to a second old, and count a call from when it was first looked at."""
_HANG_PROVEN_S: Final = 10.0
"""An engine call that has run for so much longer will not end."""


class HangDetector:
    """When each stream of a replica last had a frame of a session. Times in seconds."""

    def __init__(self, policy: HangPolicy) -> None:
        self._policy = policy
        self._heard_at: dict[int, float] = {}

    def detached(self, stream: int) -> None:
        """Record that a stream has ended."""
        self._heard_at.pop(stream, None)

    def heard(self, stream: int, now: float) -> None:
        """A frame came."""
        self._heard_at[stream] = now

    def limit_s(self, longest_call_ms: float) -> float:
        """How long a replica may be silent in the middle of replies, by its longest engine call."""
        return max(self._policy.min_silence_s, self._policy.num_calls * longest_call_ms / 1e3)

    def is_silent(self, stream: int, limit_s: float, now: float) -> bool:
        """Whether nothing at all came on it for this long."""
        return now - self._heard_at.get(stream, 0.0) >= limit_s

    def is_stalled(self, heard_at: float, now: float) -> bool:
        """Whether a session last heard of then waits in vain."""
        return now - heard_at >= self._policy.stall_s


class Departure(NamedTuple):
    """A session that leaves its replica, and why."""

    session: RelayedSession
    event: SessionInput
    error: OutriderError


class ReplicaMonitor:
    """Finds the sessions that have to leave their replicas, for the switch to carry out."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        failover: Failover,
        policy: HangPolicy | None = None,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._failover = failover
        self._hangs = HangDetector(policy or HangPolicy())
        self._next_stall_check_at = 0.0
        self._hangs_open: dict[str, float] = {}
        """Replicas that were found to hang, and when, until it shows whether a call does."""

    def heard(self, stream: int, now: float) -> None:
        """Record that frames of live sessions arrived, whose `heard_at` is now."""
        self._hangs.heard(stream, now)

    def detached(self, replica: str, stream: int, now: float, *, is_own: bool) -> list[Departure]:
        """Take the sessions off a replica whose stream broke. A break by this router's fault
        (`is_own`) is no evidence against any request."""
        self._hangs.detached(stream)
        self._hangs_open.pop(replica, None)  # its next process says what became of this one
        sessions = self._table.detach_replica(stream)
        cancelled = CancelledError("the session was cancelled")
        departures = [
            Departure(session, SessionInput.LOST, cancelled)
            for session in sessions
            if session.state is SessionState.CLOSING
        ]
        others = [session for session in sessions if session.state is not SessionState.CLOSING]
        why = replica_lost_error(replica, "was lost")
        if is_own:
            return departures + self._leave(others, why)
        self._failover.replica_lost(others, self._loss(replica))
        return departures + [_departure(session, why) for session in others]

    def opened(self, session: RelayedSession, now: float) -> None:
        """A session came. One that resumes after tokens may have crashed a replica that is away,
        unless it had tokens of that replica."""
        request = session.request
        is_doubtful = (
            request.is_resumed
            and not request.is_proven
            and any(_may_have_crashed(replica, request, now) for replica in self._registry)
        )
        self._failover.opened(session, now, is_doubtful=is_doubtful)

    def engine_failed(self, session: RelayedSession, error: OutriderError, now: float) -> Departure:
        """Take a session off a replica whose engine call failed; the error names the other sessions
        in the call."""
        self._registry.failed(session.replica, error.message, now)
        self._failover.call_failed(session, sessions_in_call(error))
        return _departure(session, error)

    def check(self, now: float) -> list[Departure]:
        """Sessions of replicas that hang, and sessions that have waited too long; their replicas
        are asked to cancel them. Call it regularly."""
        is_stall_check_due = now >= self._next_stall_check_at
        if is_stall_check_due:
            self._next_stall_check_at = now + _STALL_CHECK_S
        self._explain_hangs(now)
        departures: list[Departure] = []
        for stream, name in self._dispatch.streams.items():
            leaving = self._hung(stream, name, now)
            if not leaving and is_stall_check_due:  # a session departs once
                leaving = list(self._stalled(stream, name, now))
            departures += leaving
        for session, _, error in departures:
            self._dispatch.cancel(session.replica_stream, session.upstream_session_id, error)
        return departures

    def _hung(self, stream: int, name: str, now: float) -> list[Departure]:
        replica = self._registry[name]
        is_suspect = replica.state is PeerState.SUSPECT  # it does not report either
        limit_s = self._hangs.limit_s(0.0 if is_suspect else replica.longest_call_ms)
        if not self._hangs.is_silent(stream, limit_s, now):
            return []
        sessions = [
            session
            for session in self._table.replica_sessions(stream)
            if session.state is not SessionState.CLOSING
        ]
        is_late = any(
            session.state is SessionState.STREAMING and now - session.heard_at >= limit_s
            for session in sessions
        )
        has_reported = now - replica.reported_at < _REPORT_SHARE * limit_s
        if is_late and has_reported and not is_suspect:
            self._registry.hung(name, "no tokens in the middle of replies", now)
            self._failover.replica_lost(sessions, self._loss(name))
            self._hangs_open[name] = now
            why = replica_lost_error(name, "hung")
            return [_departure(session, why) for session in sessions]
        if is_late or is_suspect:
            # Stopped, starved or cut off, with all it has: which says nothing of any request.
            self._registry.signal(name, Signal.SILENT, now, "no tokens and no load reports")
            return self._leave(sessions, replica_lost_error(name, "fell silent"))
        return []

    def _stalled(self, stream: int, name: str, now: float) -> Iterator[Departure]:
        for session in self._table.replica_sessions(stream):
            can_move = session.state is SessionState.STREAMING and session.replay is not None
            if can_move and self._hangs.is_stalled(session.heard_at, now):
                # Where sessions queue, others have the better right: that is no failure.
                if not self._registry[name].is_busy:
                    self._registry.failed(name, "a session made no progress", now)
                self._failover.refused(session)
                why = replica_lost_error(name, "made no progress")
                yield Departure(session, SessionInput.LEFT, why)

    def _explain_hangs(self, now: float) -> None:
        """A call that still runs long after its replica was found to hang counts as crashed; a
        replica that is in another one by then, or in none, was only slow."""
        for name, hung_at in list(self._hangs_open.items()):
            replica = self._registry.find(name)
            if replica is None or replica.load is None or now - hung_at < _HANG_REPORTED_S:
                continue
            call = replica.load.running_call
            since_s = now - hung_at
            if call.duration_ms < (since_s - _HANG_SLACK_S) * 1e3:
                self._failover.explained(name, replica.process, (), now)
            elif since_s >= _HANG_PROVEN_S:
                crash = Crash(replica.process, call)
                self._failover.explained(name, b"", (crash,), now)
            else:
                continue
            del self._hangs_open[name]

    def _loss(self, replica: str) -> Loss:
        found = self._registry.find(replica)
        return Loss(replica, found.process if found is not None else b"")

    def _leave(self, sessions: list[RelayedSession], why: OutriderError) -> list[Departure]:
        """They leave a replica that may be well: nothing speaks against any of them."""
        for session in sessions:
            self._failover.left_unblamed(session)
        return [_departure(session, why) for session in sessions]


def _may_have_crashed(replica: Replica, request: SessionRequest, now: float) -> bool:
    """Whether a replica is away, perhaps because of a request that resumes after tokens. False if
    it has another model or model identity, is in a region that the request does not allow, or has
    been away for CRASH_KEPT_S, after which its crash no longer counts."""
    if replica.state not in _AWAY or now - replica.health.since >= CRASH_KEPT_S:
        return False
    if replica.model_name not in ("", request.model):
        return False
    if replica.region and not request.allows_region(replica.region):
        return False
    has_identities = bool(replica.model_identity and request.identity)
    return not has_identities or request.may_continue_at(replica.model_identity)


def _departure(session: RelayedSession, why: OutriderError) -> Departure:
    """To another replica, where it can be opened again."""
    event = SessionInput.LOST if session.replay is None else SessionInput.LEFT
    return Departure(session, event, why)
