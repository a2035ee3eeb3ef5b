"""The router's queue: bounded, by priority, fair between tenants, with an end to every wait. Pure.

    AdmissionQueue      all waiting sessions, bounded, with their ends
      SubQueue          sessions that the same replicas can serve
        FairQueue       sessions of one priority, fair between flows (outrider.fair_queue)
    FairClock           service of each flow, over all sub-queues (outrider.fair_queue)
    QueueRate           how fast sessions of a model leave, from which waits are predicted

Each set of replicas has its own sub-queue, so a session whose replicas are full delays no session
that can be served elsewhere. All sub-queues share one order: the highest priority first, and within
a priority the flow that has received least, in whichever sub-queue it waits. Naming other regions
therefore gains nobody anything. Resumed sessions get at most every other turn, because clients
themselves claim that a session is one. A class that has waited longer than `ageing_s` gets one of
every eight turns, so that LOW sessions make progress under any load.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from outrider.fair_queue import FairClock, FairQueue
from services.router.admission.policy import AGED_TURN_INTERVAL, QueuePriority
from services.router.admission.session import AdmittedSession

FIRST_INTERVAL_S: Final = 0.25
"""Assumed time between two sessions that leave, before any has left."""
MIN_SAMPLES: Final = 5
"""Sessions that have to have left before a predicted wait can refuse anybody."""
_SMOOTHING: Final = 0.1
_MAX_PAUSE_RATIO: Final = 4.0
"""The current interval is taken to be at least this part of the time since the last one left."""

_CLASSES: Final = (QueuePriority.HIGH, QueuePriority.MEDIUM, QueuePriority.LOW)
_NONE: Final = dict.fromkeys(QueuePriority, 0)


class Head(NamedTuple):
    """A session that is next in one class of a sub-queue."""

    session: AdmittedSession
    backlog_priority: QueuePriority
    """Priority whose backlog limit applies: RESUMED (no limit) for a session of an aged class."""
    order: tuple[float, ...]
    """Sort key of the turns: aged classes first, then by priority, then by start."""


class Turns:
    """Order of turns that the sub-queues of one model share."""

    def __init__(self) -> None:
        self.clocks = {priority: FairClock() for priority in QueuePriority}
        self.num_since_aged = 0
        """Sessions that got a replica since one of an aged class did."""
        self.was_resumed = False
        """Whether the last one that got a replica was a resumed one."""


class SubQueue:
    """Waiting sessions that the same replicas can serve: one fair queue per priority."""

    def __init__(self, ageing_s: float, turns: Turns) -> None:
        """`turns`: the order that all sub-queues of its model share."""
        self.turns = turns
        self.queues = {
            it: FairQueue[AdmittedSession](turns.clocks[it]) for it in reversed(QueuePriority)
        }
        """Highest priority first."""
        self._ageing_s = ageing_s

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def num_ahead(self, priority: QueuePriority, flow: str) -> int:
        """Number of sessions that leave before a new one of this priority and flow: all of higher
        priorities, and of its own priority as many of every flow as its own flow has."""
        own = self.queues[priority]
        rounds = 1 + own.length(flow)
        fair = min(len(own), rounds * max(1, own.num_flows))
        return fair + sum(len(queue) for other, queue in self.queues.items() if other > priority)

    def heads(self, now: float) -> Iterator[Head]:
        """The next session of every priority."""
        aged = self._aged(now)
        if aged is not None:
            yield Head(aged, QueuePriority.RESUMED, (0.0, aged.arrived_at))
        for priority, queue in self.queues.items():
            head = queue.head()
            if head is not None and (session := head[1]) is not aged:
                is_late = priority is QueuePriority.RESUMED and self.turns.was_resumed
                rank = 0.0 if is_late else float(-priority)
                yield Head(session, priority, (1.0, rank, head[0], session.expires_at))

    def _aged(self, now: float) -> AdmittedSession | None:
        """The next session of the class that has waited longer than `ageing_s`, if it is due."""
        if self.turns.num_since_aged < AGED_TURN_INTERVAL - 1:
            return None
        oldest = [
            (session.arrived_at, priority)
            for priority, queue in self.queues.items()
            if priority < QueuePriority.HIGH and (session := queue.oldest()) is not None
        ]
        late = [entry for entry in oldest if now - entry[0] >= self._ageing_s]
        return self.queues[min(late)[1]].peek() if late else None

    def pop(self, session: AdmittedSession, backlog_priority: QueuePriority) -> None:
        """One of `heads` got a replica."""
        self.queues[session.queue_priority].pop(session)
        self.turns.was_resumed = session.queue_priority is QueuePriority.RESUMED
        is_aged = backlog_priority > session.queue_priority
        self.turns.num_since_aged = 0 if is_aged else self.turns.num_since_aged + 1

    def count_bypass(self) -> None:
        """A session that did not have to wait got a replica."""
        self.turns.num_since_aged += 1


class AdmissionQueue:
    """All waiting sessions. Each model has its own room: sessions that wait for one model never
    displace those of another."""

    def __init__(self, max_waiting: int, ageing_s: float) -> None:
        """`max_waiting`: sessions of one model, and as many again that are resumed."""
        self._max_waiting = max_waiting
        self._num_kept = max_waiting // AGED_TURN_INTERVAL
        """Room kept for each class below HIGH."""
        self._ageing_s = ageing_s
        self._sub_queues: dict[Hashable, SubQueue] = {}
        """By AdmittedSession.replica_set; empty ones are removed."""
        self._expiries: list[tuple[float, int, AdmittedSession]] = []
        """By expiry, then by arrival: a heap; sessions that left stay in it for a while."""
        self._next = 0
        self._num_waiting: dict[str, dict[QueuePriority, int]] = {}
        """Number of waiting sessions by model and priority; models without any have no entry."""
        self._turns: dict[str, Turns] = {}
        """Order of turns by model; models without waiting sessions have no entry."""

    def __len__(self) -> int:
        return sum(sum(counts.values()) for counts in self._num_waiting.values())

    def num_waiting(self) -> dict[str, dict[QueuePriority, int]]:
        """Waiting sessions by model and priority; models without any are left out."""
        return {model: dict(counts) for model, counts in self._num_waiting.items()}

    def length(self, model: str) -> int:
        """Waiting sessions of a model."""
        return sum(self._num_waiting.get(model, _NONE).values())

    def shed_priority(self, model: str, incoming: QueuePriority) -> QueuePriority | None:
        """Priority that has to give up a session to make room for a new one of this model, possibly
        the new one's own; None if there is room.

        An eighth of the room is kept for each class below HIGH: otherwise higher classes could
        displace its sessions before they have waited long enough for a turn. Resumed sessions have
        as much room as all classes together, and take none of theirs, so a false claim to be
        resumed displaces no new session.
        """
        waiting = self._num_waiting.get(model, _NONE)
        if incoming is QueuePriority.RESUMED:
            return incoming if waiting[incoming] >= self._max_waiting else None
        for priority in _CLASSES:
            num_above = sum(waiting[other] for other in _CLASSES if other >= priority)
            limit = self._max_waiting - self._num_kept * (priority - 1)
            if priority <= incoming and num_above >= limit:
                lower = (other for other in QueuePriority if priority <= other < incoming)
                return next((p for p in lower if waiting[p] > self._num_kept), incoming)
        return None

    def find(self, session: AdmittedSession) -> SubQueue | None:
        """The sub-queue of a session, if anybody waits in it."""
        return self._sub_queues.get(session.replica_set)

    def heads(self, now: float) -> list[Head]:
        """The next sessions of all sub-queues, in the order of their turns."""
        found = (head for it in self._sub_queues.values() for head in it.heads(now))
        return sorted(found, key=lambda head: head.order)

    def push(self, session: AdmittedSession) -> None:
        """A session waits. The caller has made room."""
        sub_queue = self._sub_queues.get(session.replica_set)
        if sub_queue is None:
            turns = self._turns.setdefault(session.request.model, Turns())
            sub_queue = SubQueue(self._ageing_s, turns)
            self._sub_queues[session.replica_set] = sub_queue
        sub_queue.queues[session.queue_priority].push(session)
        session.is_waiting = True
        counts = self._num_waiting.setdefault(session.request.model, dict(_NONE))
        counts[session.queue_priority] += 1
        self._next += 1
        heapq.heappush(self._expiries, (session.expires_at, self._next, session))

    def pop(self, session: AdmittedSession, backlog_priority: QueuePriority) -> None:
        """A session that was one of its sub-queue's heads got a replica."""
        self._sub_queues[session.replica_set].pop(session, backlog_priority)
        self._left(session)

    def remove(self, session: AdmittedSession) -> None:
        """A session leaves without having been served."""
        sub_queue = self._sub_queues[session.replica_set]
        sub_queue.queues[session.queue_priority].remove(session)
        self._left(session)

    def _left(self, session: AdmittedSession) -> None:
        session.is_waiting = False
        counts = self._num_waiting[session.request.model]
        counts[session.queue_priority] -= 1
        if not any(counts.values()):
            del self._num_waiting[session.request.model]
            del self._turns[session.request.model]
        if not len(self._sub_queues[session.replica_set]):
            del self._sub_queues[session.replica_set]
        if len(self._expiries) > 2 * len(self) + 64:
            self._expiries = [entry for entry in self._expiries if entry[2].is_waiting]
            heapq.heapify(self._expiries)

    def victim(
        self, model: str, shed: QueuePriority, incoming: QueuePriority, flow: str
    ) -> AdmittedSession | None:
        """The session of this model and of priority `shed` that has to leave for a new one of
        priority `incoming` and of this flow: the last one of the flow with most sessions there.
        None: the new one itself has to."""
        turns = self._turns.get(model)
        if turns is None:
            return None
        clock = turns.clocks[shed]
        queues = (it.queues[shed] for it in self._sub_queues.values() if it.turns is turns)
        last = [session for queue in queues if (session := queue.last_of_longest())]
        if not last:
            return None
        session = max(last, key=lambda entry: clock.num_waiting(entry.flow))
        num_most, num_own = clock.num_waiting(session.flow), clock.num_waiting(flow)
        return session if shed < incoming or num_most > num_own + 1 else None

    def expire(self, now: float) -> list[AdmittedSession]:
        """Sessions that have waited too long, for the caller to remove."""
        late = []
        while self._expiries and (
            self._expiries[0][0] <= now or not self._expiries[0][2].is_waiting
        ):
            session = heapq.heappop(self._expiries)[2]
            if session.is_waiting:
                late.append(session)
        return late


class QueueRate:
    """Time between two sessions of a model that leave the queue for a replica."""

    def __init__(self) -> None:
        self._interval_s = FIRST_INTERVAL_S
        self._num_samples = 0
        self.num_waiting = 0
        self._since = 0.0
        """When the last session left, or the first began to wait."""
        self._promised_at = 0.0
        self._is_paused = False

    def pause(self) -> None:
        """No replica takes sessions until one is started: that time says nothing of how fast they
        serve."""
        self._is_paused = True

    @property
    def is_known(self) -> bool:
        """Whether enough sessions have left to predict from."""
        return self._num_samples >= MIN_SAMPLES

    def joined(self, now: float) -> None:
        """A session waits."""
        if not self.num_waiting:
            self._since = now
        self.num_waiting += 1

    def gave_up(self) -> None:
        """A session left without a replica."""
        self.num_waiting -= 1

    def served(self, now: float) -> None:
        """A session left for a replica."""
        self.num_waiting -= 1
        if self._is_paused:
            self._is_paused, self._since = False, now
            return
        self._num_samples += 1
        share = max(_SMOOTHING, 1.0 / self._num_samples)
        self._interval_s += (now - self._since - self._interval_s) * share
        self._since = now

    def interval_s(self, now: float) -> float:
        """Expected time between two sessions that leave."""
        pause_s = now - self._since if self.num_waiting and not self._is_paused else 0.0
        return max(self._interval_s, pause_s / _MAX_PAUSE_RATIO, 1e-3)

    def retry_delay_s(self, wait_s: float, now: float) -> float:
        """Seconds after which a refused session should try again: `wait_s`, and one interval after
        the session refused before it. With the same time for all, all would return at once."""
        self._promised_at = max(self._promised_at, now + wait_s) + self.interval_s(now)
        return self._promised_at - now
