"""Finds the request that crashes its replicas, if one does. Pure.

The loss of a replica does not show which request caused it, nor whether any did: a process may have
been killed from outside, or a path have failed. So a loss stays unexplained at first. The replica's
next process reports whether the one before it crashed, and which requests were in the engine call
that crashed (outrider.engine_calls). A request is poisonous if it was in two such calls, and the
only one in at least one of them.

Until a loss is explained, or the session has a token, the session gets engine calls of its own. All
sessions that the replica was computing are suspects, except those that had tokens from it, which
have shown that they can be served, and those that it reported as waiting. Suspects are opened again
a few at a time, one at first, one more with each that gets a token: 1, 2, 4, 8 (TCP slow start, RFC
5681, section 3.1). A session that has lost two replicas waits until one of the losses is explained.
So a request that crashes replicas ends after the second one; after the third, if it had tokens from
the first.

The record of a session ends with the session, even if that ends because its edge died; its request
may then be opened again, perhaps through another router. Replicas report every crash to every
router, so each can find the crashes of a request (CrashReports). While a replica that could have
had the request is away, a session that resumes after tokens gets engine calls of its own, because
the report may be still to come (replica_monitor). Not so if its edge had tokens of it from the
replica that had it last: as above, that has shown that it can be served. When a whole region is
lost, hundreds come at once, and would be computed one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from outrider.engine_calls import CRASH_KEPT_S, MAX_CRASHES, Crash, EngineCall
from outrider.errors import PoisonousRequestError


class Loss(NamedTuple):
    """The loss of a replica's process."""

    replica: str
    process: bytes
    """Id of the process (GetModelResponse); empty: not reported."""


@dataclass(slots=True, eq=False)
class LossRecord:
    """State of one session's losses. Only PoisonDetector changes it."""

    request: int = 0
    """Key of its request in engine calls."""
    num_lost: int = 0
    """Replicas lost with it, one after the other, without a token from any of them."""
    is_proven: bool = False
    """Whether it had a token from the replica that it is on."""
    is_waiting: bool = False
    """Whether that replica accepted it but does not compute it yet."""
    is_poisonous: bool = False
    is_doubtful: bool = False
    """Whether its request may have crashed a replica before it was opened here."""
    unexplained: set[Loss] = field(default_factory=set)
    """Losses that it may be the cause of."""
    crashes: set[Hashable] = field(default_factory=set)
    """Engine calls that crashed, failed or hung, with it among their new requests."""
    was_single: bool = False
    """Whether it was the only request in one of them."""

    @property
    def goes_alone(self) -> bool:
        """Whether it has to be the only session in its engine calls, so that a crash shows its
        cause."""
        return self.is_doubtful or bool(self.unexplained or self.crashes)


def poisonous_request_error(record: LossRecord) -> PoisonousRequestError:
    """Why a session is not opened again."""
    return PoisonousRequestError(
        f"{len(record.crashes)} engine calls failed with this request in them, one of them with "
        "no other request; change it, and report it",
    )


@dataclass(slots=True)
class _Report:
    requests: set[int]
    """Requests in the call, without those that have had a token since."""
    is_single: bool
    reported_at: float


class CrashReports:
    """Recent crashes that replicas reported, for as long as they count, and only the last ones of
    each. So a replica that reports false crashes takes no more memory than others, and can only end
    requests that it knows: those that it was sent, and could have ended by an error."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[bytes, _Report]] = {}
        """By replica and process, the last ones last."""

    def __len__(self) -> int:
        return sum(map(len, self._reports.values()))

    def record(self, replica: str, crashes: Sequence[Crash], now: float) -> list[Crash]:
        """Add the crashes that a replica reports; returns those not recorded before."""
        self._expire(now)
        reports = self._reports.setdefault(replica, {})
        new = [crash for crash in crashes if crash.process not in reports]
        for process, call in new:
            reports[process] = _Report(set(call.requests), call.is_single, now)
        for process in list(reports)[:-MAX_CRASHES]:
            del reports[process]
        if not reports:
            del self._reports[replica]
        return new

    def of(self, request: int, now: float) -> Iterator[tuple[Loss, bool]]:
        """The crashes with a request among the new ones of the engine call, and whether it was the
        only one."""
        self._expire(now)
        for replica, reports in self._reports.items():
            for process, report in reports.items():
                if request in report.requests:
                    yield Loss(replica, process), report.is_single

    def forgive(self, request: int) -> None:
        """Remove a request from all reports: another replica sent a token of it, so it caused none
        of them."""
        for reports in self._reports.values():
            for report in reports.values():
                report.requests.discard(request)

    def _expire(self, now: float) -> None:
        for replica, reports in list(self._reports.items()):
            for process, report in list(reports.items()):
                if now - report.reported_at > CRASH_KEPT_S:
                    del reports[process]
            if not reports:
                del self._reports[replica]


class PoisonDetector:
    """The suspects of one model, in the order in which they are tried again."""

    def __init__(self, max_crashes: int) -> None:
        """A request is poisonous after so many crashes."""
        self._max_crashes = max_crashes
        # Ordered sets, all of them.
        self._suspects: dict[LossRecord, None] = {}
        self._on_trial: dict[LossRecord, None] = {}
        self._unexplained: dict[LossRecord, None] = {}
        self._num_allowed = 1
        """Suspects that may be on trial at once."""

    def __len__(self) -> int:
        return len(self._suspects) + len(self._on_trial)

    def __bool__(self) -> bool:
        """Whether anything is kept of any session."""
        return bool(self._suspects or self._on_trial or self._unexplained)

    def losses_of(self, replica: str) -> set[Loss]:
        """Unexplained losses of a replica."""
        return {
            loss
            for record in self._unexplained
            for loss in record.unexplained
            if loss.replica == replica
        }

    def replica_lost(self, records: Sequence[LossRecord], loss: Loss) -> None:
        """A replica was lost with these sessions."""
        found = False
        for record in records:
            if record.is_proven:
                record.is_proven = False
                continue
            record.num_lost += 1
            record.unexplained.add(loss)
            self._unexplained[record] = None
            if not record.is_waiting or record in self._on_trial:
                self._suspect(record)
                found = True
            record.is_waiting = False
        if found:
            self._num_allowed = 1

    def call_failed(self, record: LossRecord, call: Hashable, *, is_single: bool) -> None:
        """Record a failed engine call with this session, whatever tokens it had before; the replica
        lives."""
        record.num_lost += 1
        record.is_proven = record.is_waiting = False
        self._count(record, call, is_single=is_single)
        self._suspect(record)
        self._num_allowed = 1

    def explained(self, loss: Loss, call: EngineCall | None) -> None:
        """Explain the loss of a process by the engine call in which it crashed; None: it did not
        crash."""
        for record in [it for it in self._unexplained if loss in it.unexplained]:
            record.unexplained.remove(loss)
            if not record.unexplained:
                del self._unexplained[record]
            if call is not None and record.request in call.requests:
                self._count(record, loss, is_single=call.is_single)
            elif not record.unexplained and not record.crashes:
                self._clear(record)

    def crashed(self, record: LossRecord, call: Hashable, *, is_single: bool) -> None:
        """Record a reported crash with this request among the new ones, from before it was opened
        here. After a token the crash does not count."""
        if not record.is_proven:
            self._count(record, call, is_single=is_single)

    def may_open(self, record: LossRecord) -> bool:
        """Whether it may be opened again now: it waits for no explanation, and is no suspect or
        among the next to be tried."""
        if self._is_held(record):
            return False
        if record not in self._suspects:
            return True
        room = max(0, self._num_allowed - len(self._on_trial))
        return any(first is record for first in islice(self._free(), room))

    def opened(self, record: LossRecord) -> None:
        """Record that a session was opened again."""
        if record in self._suspects:
            del self._suspects[record]
            self._on_trial[record] = None

    def deferred(self, record: LossRecord) -> None:
        """No replica could have it: the others of the suspects are tried before it."""
        if record in self._suspects:
            del self._suspects[record]
            self._suspects[record] = None

    def left_replica(self, record: LossRecord) -> None:
        """Record that a session left a replica that was not lost, or was refused by it: nothing was
        learned."""
        record.is_proven = record.is_waiting = False
        if record in self._on_trial:
            del self._on_trial[record]
            self._suspects = {record: None, **self._suspects}

    def proved(self, record: LossRecord) -> None:
        """Record that a session has a token from its replica: it is no longer a suspect."""
        if record in self._on_trial:
            self._num_allowed += 1
        self._clear(record)
        self._unexplained.pop(record, None)
        record.unexplained.clear()
        record.crashes.clear()
        record.was_single = record.is_waiting = record.is_doubtful = False
        record.num_lost = 0
        record.is_proven = True

    def forget(self, record: LossRecord) -> None:
        """Its session ended."""
        self._clear(record)
        self._unexplained.pop(record, None)

    def _count(self, record: LossRecord, call: Hashable, *, is_single: bool) -> None:
        record.crashes.add(call)
        record.was_single |= is_single
        record.is_poisonous = record.was_single and len(record.crashes) >= self._max_crashes

    def _suspect(self, record: LossRecord) -> None:
        """Behind the others."""
        self._clear(record)
        self._suspects[record] = None

    def _clear(self, record: LossRecord) -> None:
        self._on_trial.pop(record, None)
        self._suspects.pop(record, None)

    def _free(self) -> Iterator[LossRecord]:
        """Suspects that need not wait for an explanation."""
        return (record for record in self._suspects if not self._is_held(record))

    def _is_held(self, record: LossRecord) -> bool:
        num_losses = len(record.unexplained) + len(record.crashes)
        return bool(record.unexplained) and num_losses >= self._max_crashes
