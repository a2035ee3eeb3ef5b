"""The router's queue: bounded, in lines by class, with an end to every wait. Pure.

Sessions that the same replicas can serve make a pool, so that one whose replicas are full holds up
nobody who may go elsewhere. In a pool the highest class goes first; a class that has waited too
long gets one turn in eight, so that LOW does not starve and HIGH hardly notices.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

from services.router.admission.policy import AGED_TURN, Lane
from services.router.admission.queue.fair import FairQueue
from services.router.admission.ticket import Ticket


class Pool:
    """Waiting sessions that the same replicas can serve."""

    def __init__(self, ageing_s: float) -> None:
        self.lanes = {lane: FairQueue() for lane in reversed(Lane)}
        self._ageing_s = ageing_s
        self._num_turns = 0
        """Sessions that got a replica since one of a class that had waited too long did."""

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def num_ahead(self, lane: Lane, share: str) -> int:
        """Sessions that leave before one of this share that came now: those of higher classes,
        and of its own as many of every share as it has itself."""
        own = self.lanes[lane]
        rounds = 1 + own.length(share)
        fair = min(len(own), rounds * max(1, own.num_shares))
        return fair + sum(len(queue) for other, queue in self.lanes.items() if other > lane)

    def heads(self, now: float) -> Iterator[tuple[Ticket, Lane]]:
        """Whose turn it is, line by line, each with the line whose room it may use."""
        aged = self._aged(now)
        if aged is not None:
            yield aged, Lane.STARTED
        for lane, queue in self.lanes.items():
            head = queue.peek()
            if head is not None and head is not aged:
                yield head, lane

    def _aged(self, now: float) -> Ticket | None:
        """The head of the class that is to have a turn before others."""
        if self._num_turns < AGED_TURN - 1:
            return None
        oldest = [(queue.oldest(), lane) for lane, queue in self.lanes.items() if lane < Lane.HIGH]
        waiting = [(ticket.arrived_at, lane) for ticket, lane in oldest if ticket is not None]
        late = [entry for entry in waiting if now - entry[0] >= self._ageing_s]
        return self.lanes[min(late)[1]].peek() if late else None

    def serve(self, ticket: Ticket, room: Lane) -> None:
        """One of `heads` got a replica."""
        self.lanes[ticket.lane].serve(ticket)
        self._num_turns = 0 if room > ticket.lane else self._num_turns + 1

    def passed(self) -> None:
        """One that did not have to wait got a replica."""
        self._num_turns += 1


class WaitingRoom:
    """All pools."""

    def __init__(self, max_waiting: int, ageing_s: float) -> None:
        self._max_waiting = max_waiting
        self._kept = max_waiting // AGED_TURN
        self._ageing_s = ageing_s
        self._pools: dict[Hashable, Pool] = {}
        self._ends: list[tuple[float, int, Ticket]] = []
        self._next = 0
        self.num_waiting = dict.fromkeys(Lane, 0)

    def __len__(self) -> int:
        return sum(self.num_waiting.values())

    def bar(self, lane: Lane) -> Lane | None:
        """The line that is to make room for one of this line, or itself if only its own can; None
        if there is room. An eighth of the room is kept for each class below HIGH: higher ones
        could push it out before it has waited long enough for a turn."""
        for line in sorted(Lane, reverse=True):
            num_above = sum(count for other, count in self.num_waiting.items() if other >= line)
            if line <= lane and num_above >= self._max_waiting - self._kept * (line - 1):
                lower = (other for other in Lane if line <= other < lane)
                return next((o for o in lower if self.num_waiting[o] > self._kept), lane)
        return None

    def pool(self, ticket: Ticket) -> Pool | None:
        """The pool of a session, if anybody waits in it."""
        return self._pools.get(ticket.pool)

    def pools(self) -> list[Pool]:
        """Pools in which somebody waits; who is first now is last the next time."""
        found = list(self._pools.values())
        if len(found) > 1:
            first = next(iter(self._pools))
            self._pools[first] = self._pools.pop(first)
        return found

    def add(self, ticket: Ticket) -> None:
        """A session waits. The caller has made room."""
        pool = self._pools.get(ticket.pool)
        if pool is None:
            pool = self._pools[ticket.pool] = Pool(self._ageing_s)
        pool.lanes[ticket.lane].push(ticket)
        ticket.is_waiting = True
        self.num_waiting[ticket.lane] += 1
        self._next += 1
        heapq.heappush(self._ends, (ticket.expires_at, self._next, ticket))

    def serve(self, ticket: Ticket, room: Lane) -> None:
        """A session that was one of its pool's heads got a replica."""
        self._pools[ticket.pool].serve(ticket, room)
        self._left(ticket)

    def remove(self, ticket: Ticket) -> None:
        """A session waits no more."""
        self._pools[ticket.pool].lanes[ticket.lane].remove(ticket)
        self._left(ticket)

    def _left(self, ticket: Ticket) -> None:
        ticket.is_waiting = False
        self.num_waiting[ticket.lane] -= 1
        if not len(self._pools[ticket.pool]):
            del self._pools[ticket.pool]
        if len(self._ends) > 2 * len(self) + 64:
            self._ends = [end for end in self._ends if end[2].is_waiting]
            heapq.heapify(self._ends)

    def victim(self, bar: Lane, lane: Lane, share: str) -> Ticket | None:
        """Who of the line `bar` has to leave for one of this line and share: the last of the
        share with most sessions there. None: the newcomer itself."""
        queues = [pool.lanes[bar] for pool in self._pools.values()]
        last = [(queue, ticket) for queue in queues if (ticket := queue.last_of_longest())]
        if not last:
            return None
        queue, ticket = max(last, key=lambda entry: entry[0].length(entry[1].share))
        num_own = sum(queue.length(share) for queue in queues)
        is_fair = bar < lane or queue.length(ticket.share) > num_own + 1
        return ticket if is_fair else None

    def expire(self, now: float) -> list[Ticket]:
        """Who has waited too long, for the caller to remove."""
        late = []
        while self._ends and (self._ends[0][0] <= now or not self._ends[0][2].is_waiting):
            ticket = heapq.heappop(self._ends)[2]
            if ticket.is_waiting:
                late.append(ticket)
        return late
