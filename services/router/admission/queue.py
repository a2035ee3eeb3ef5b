"""The router's queue: bounded, by priority, fair between tenants, with an end to every wait. Pure.

    AdmissionQueue      all waiting sessions, bounded, with their ends
      SubQueue          those that the same replicas can serve
        FairQueue       those of one priority, fair between flows
    QueueRate           how fast sessions of a model leave, from which waits are predicted

Each set of replicas has a sub-queue of its own, so a session whose replicas are full holds up no
session that can be served elsewhere. In a sub-queue the highest priority goes first; a class that
has waited longer than `ageing_s` gets one of every eight turns, so that LOW sessions make progress
under any load.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from services.router.admission.policy import AGED_TURN_INTERVAL, QueuePriority
from services.router.admission.session import AdmittedSession

MAX_IDLE_FLOWS: Final = 1024
"""Flows without a waiting session whose last virtual finish time is remembered."""

FIRST_INTERVAL_S: Final = 0.25
"""Assumed time between two sessions that leave, before any has left."""
MIN_SAMPLES: Final = 5
"""Sessions that have to have left before a predicted wait can refuse anybody."""
_SMOOTHING: Final = 0.1
_MAX_PAUSE_RATIO: Final = 4.0
"""The current interval is taken to be at least this part of the time since the last one left."""

_CLASSES: Final = (QueuePriority.HIGH, QueuePriority.MEDIUM, QueuePriority.LOW)
_NONE: Final = dict.fromkeys(QueuePriority, 0)

_Entry = tuple[float, int, AdmittedSession]
"""Expiry, number in order of arrival, session."""


@dataclass(slots=True, eq=False)
class _Flow:
    """Waiting sessions of one tenant, address prefix or trust group."""

    start: float = 0.0
    """Virtual time at which its next session starts."""
    finish: float = 0.0
    """Virtual time at which its last one finished."""
    waiting: list[_Entry] = field(default_factory=list)
    """By expiry, then by arrival."""


class FairQueue:
    """Waiting sessions of one priority: fair between flows, earliest deadline first within each.

    Between flows: start-time fair queueing (Goyal, Vin, Cheng: "Start-time fair queuing", SIGCOMM
    1996). A flow's next session starts at the virtual time at which its last one finished, or now
    if it had none waiting, and finishes `reserved_tokens / weight` later. The least start goes
    first and is the virtual time from then on. While two flows wait, what they got per weight
    differs by at most one session of each (theorem 1 there), however long their queues are.
    Within a flow the order has no effect on other flows: earliest deadline first (Liu, Layland,
    1973).
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self._flows: dict[str, _Flow] = {}
        self._starts: list[tuple[float, str]] = []
        """Flows with sessions waiting, by start."""
        self._entries: dict[int, _Entry] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_flows(self) -> int:
        """Flows with sessions waiting."""
        return len(self._starts)

    def length(self, flow: str) -> int:
        """Waiting sessions of a flow."""
        found = self._flows.get(flow)
        return len(found.waiting) if found else 0

    def oldest(self) -> AdmittedSession | None:
        """The session that has waited longest."""
        entry = next(iter(self._entries.values()), None)
        return entry[2] if entry else None

    def push(self, session: AdmittedSession) -> None:
        """A session joins."""
        flow = self._flows.setdefault(session.flow, _Flow())
        if not flow.waiting:
            flow.start = max(self._virtual, flow.finish)
            insort(self._starts, (flow.start, session.flow))
        self._next += 1
        entry = self._entries[session.session_id] = (session.expires_at, self._next, session)
        insort(flow.waiting, entry)

    def peek(self) -> AdmittedSession | None:
        """The session that is next."""
        return self._flows[self._starts[0][1]].waiting[0][2] if self._starts else None

    def pop(self, session: AdmittedSession) -> None:
        """The session that `peek` gave leaves, and its flow is charged for it."""
        flow = self._flows[session.flow]
        self._virtual = flow.start
        flow.finish = flow.start + session.reserved_tokens / session.weight
        self._drop(session, flow)
        if flow.waiting:
            del self._starts[bisect_left(self._starts, (flow.start, session.flow))]
            flow.start = flow.finish
            insort(self._starts, (flow.start, session.flow))
        self._forget_idle()

    def remove(self, session: AdmittedSession) -> None:
        """A session leaves without having been served; its flow is not charged."""
        self._drop(session, self._flows[session.flow])
        self._forget_idle()

    def last_of_longest(self) -> AdmittedSession | None:
        """The session to shed: the last one of the longest flow (longest queue drop: Suter et al.,
        "Buffer management schemes for supporting TCP in gigabit routers with per-flow queueing",
        1999)."""
        if not self._starts:
            return None
        _, flow = max(self._starts, key=lambda entry: (self.length(entry[1]), entry))
        return self._flows[flow].waiting[-1][2]

    def _drop(self, session: AdmittedSession, flow: _Flow) -> None:
        entry = self._entries.pop(session.session_id)
        del flow.waiting[bisect_left(flow.waiting, entry[:2], key=lambda other: other[:2])]
        if not flow.waiting:
            del self._starts[bisect_left(self._starts, (flow.start, session.flow))]

    def _forget_idle(self) -> None:
        """Forget idle flows that start no later than new ones would; if there are too many, also
        those nearest to that."""
        if not self._entries:
            self._flows = {}
            self._virtual = 0.0
        elif len(self._flows) - len(self._starts) > MAX_IDLE_FLOWS:
            idle = sorted(
                (flow.finish, key) for key, flow in self._flows.items() if not flow.waiting
            )
            num_excess = len(idle) - MAX_IDLE_FLOWS // 2
            for count, (finish, key) in enumerate(idle):
                if count < num_excess or finish <= self._virtual:
                    del self._flows[key]


class SubQueue:
    """Waiting sessions that the same replicas can serve: one fair queue per priority."""

    def __init__(self, ageing_s: float, model: str = "") -> None:
        self.model = model
        self.queues = {priority: FairQueue() for priority in reversed(QueuePriority)}
        """Highest priority first."""
        self._ageing_s = ageing_s
        self._num_since_aged = 0
        """Sessions that got a replica since one of an aged class did."""

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def num_ahead(self, priority: QueuePriority, flow: str) -> int:
        """Sessions that leave before a new one of this priority and flow: those of higher
        priorities, and of its own as many of every flow as its own flow has."""
        own = self.queues[priority]
        rounds = 1 + own.length(flow)
        fair = min(len(own), rounds * max(1, own.num_flows))
        return fair + sum(len(queue) for other, queue in self.queues.items() if other > priority)

    def heads(self, now: float) -> Iterator[tuple[AdmittedSession, QueuePriority]]:
        """The next session of every priority, and the priority whose backlog limit it has: RESUMED
        (no limit) for one of an aged class."""
        aged = self._aged(now)
        if aged is not None:
            yield aged, QueuePriority.RESUMED
        for priority, queue in self.queues.items():
            head = queue.peek()
            if head is not None and head is not aged:
                yield head, priority

    def _aged(self, now: float) -> AdmittedSession | None:
        """The next session of the class that has waited longer than `ageing_s`, if it is due."""
        if self._num_since_aged < AGED_TURN_INTERVAL - 1:
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
        is_aged = backlog_priority > session.queue_priority
        self._num_since_aged = 0 if is_aged else self._num_since_aged + 1

    def count_bypass(self) -> None:
        """A session that did not have to wait got a replica."""
        self._num_since_aged += 1


class AdmissionQueue:
    """All waiting sessions. Each model has its own room: those that wait for one model never push
    out, or keep out, those of another."""

    def __init__(self, max_waiting: int, ageing_s: float) -> None:
        """`max_waiting`: sessions of one model, and as many again that are resumed."""
        self._max_waiting = max_waiting
        self._num_kept = max_waiting // AGED_TURN_INTERVAL
        """Room kept for each class below HIGH."""
        self._ageing_s = ageing_s
        self._sub_queues: dict[Hashable, SubQueue] = {}
        """By AdmittedSession.replica_set; empty ones are removed."""
        self._expiries: list[_Entry] = []
        """A heap; sessions that left stay in it for a while."""
        self._next = 0
        self._num_waiting: dict[str, dict[QueuePriority, int]] = {}
        """By model, of those for which sessions wait."""

    def __len__(self) -> int:
        return sum(sum(counts.values()) for counts in self._num_waiting.values())

    def num_waiting(self) -> dict[str, dict[QueuePriority, int]]:
        """Waiting sessions by model and priority; models without any are left out."""
        return {model: dict(counts) for model, counts in self._num_waiting.items()}

    def length(self, model: str) -> int:
        """Waiting sessions of a model."""
        return sum(self._num_waiting.get(model, _NONE).values())

    def shed_priority(self, model: str, incoming: QueuePriority) -> QueuePriority | None:
        """The priority one of whose sessions has to leave for a new one of this model, possibly the
        new one's own; None if there is room. An eighth of the room is kept for each class below
        HIGH: higher ones could push its sessions out before they have waited long enough for a
        turn. Resumed sessions have as much room as all classes together, and take none of
        theirs: whoever says that it is one keeps out nobody who does not."""
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

    def rotate(self) -> list[SubQueue]:
        """Sub-queues with waiting sessions; the first of them is the last the next time."""
        found = list(self._sub_queues.values())
        if len(found) > 1:
            first = next(iter(self._sub_queues))
            self._sub_queues[first] = self._sub_queues.pop(first)
        return found

    def push(self, session: AdmittedSession) -> None:
        """A session waits. The caller has made room."""
        sub_queue = self._sub_queues.get(session.replica_set)
        if sub_queue is None:
            sub_queue = SubQueue(self._ageing_s, session.request.model)
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
        queues = [
            sub_queue.queues[shed]
            for sub_queue in self._sub_queues.values()
            if sub_queue.model == model
        ]
        last = [(queue, session) for queue in queues if (session := queue.last_of_longest())]
        if not last:
            return None
        queue, session = max(last, key=lambda entry: entry[0].length(entry[1].flow))
        num_own = sum(queue.length(flow) for queue in queues)
        is_fair = shed < incoming or queue.length(session.flow) > num_own + 1
        return session if is_fair else None

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
        self._num_samples += 1
        share = max(_SMOOTHING, 1.0 / self._num_samples)
        self._interval_s += (now - self._since - self._interval_s) * share
        self._since = now

    def interval_s(self, now: float) -> float:
        """Expected time between two sessions that leave."""
        pause_s = now - self._since if self.num_waiting else 0.0
        return max(self._interval_s, pause_s / _MAX_PAUSE_RATIO, 1e-3)

    def retry_delay_s(self, wait_s: float, now: float) -> float:
        """When a refused session should try again, from now: after `wait_s`, and one interval after
        the one refused before it. Told the same time, all would come back at once."""
        self._promised_at = max(self._promised_at, now + wait_s) + self.interval_s(now)
        return self._promised_at - now
