"""The queue of one class: fair between shares, the earliest deadline first within each. Pure.

A share is a tenant's; clients that belong to none have one for each address prefix.
Between shares: start-time fair queueing (Goyal, Vin, Cheng: "Start-time fair queuing", SIGCOMM
1996). A share's next session starts at the virtual time at which its last one finished, or now if
it had none waiting; it finishes `cost / weight` later; the least start goes first and is the
virtual time from then on. While two shares wait, what they got per weight differs by at most one
session of each (theorem 1 there), however long either's queue is.
Within a share the order has no effect on others: earliest deadline first (Liu, Layland, 1973).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

from services.router.admission.ticket import Ticket

MAX_IDLE_FLOWS: Final = 1024
"""Shares with nothing waiting whose last finish is remembered."""

_Entry = tuple[float, int, Ticket]


@dataclass(slots=True, eq=False)
class _Flow:
    """One share's waiting sessions."""

    start: float = 0.0
    """Virtual time at which its next session starts."""
    finish: float = 0.0
    """Virtual time at which its last one finished."""
    waiting: list[_Entry] = field(default_factory=list)
    """By deadline; the number keeps equal ones in the order of arrival."""


class FairQueue:
    """Waiting sessions of one class."""

    def __init__(self) -> None:
        self._virtual = 0.0
        self._flows: dict[str, _Flow] = {}
        self._starts: list[tuple[float, str]] = []
        """Shares with sessions waiting, by start."""
        self._entries: dict[int, _Entry] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_shares(self) -> int:
        """Shares with sessions waiting."""
        return len(self._starts)

    def length(self, share: str) -> int:
        """Waiting sessions of a share."""
        flow = self._flows.get(share)
        return len(flow.waiting) if flow else 0

    def oldest(self) -> Ticket | None:
        """Who has been here longest."""
        entry = next(iter(self._entries.values()), None)
        return entry[2] if entry else None

    def push(self, ticket: Ticket) -> None:
        """A session joins."""
        flow = self._flows.setdefault(ticket.share, _Flow())
        if not flow.waiting:
            flow.start = max(self._virtual, flow.finish)
            insort(self._starts, (flow.start, ticket.share))
        self._next += 1
        entry = self._entries[ticket.session] = (ticket.expires_at, self._next, ticket)
        insort(flow.waiting, entry)

    def peek(self) -> Ticket | None:
        """Whose turn it is."""
        return self._flows[self._starts[0][1]].waiting[0][2] if self._starts else None

    def serve(self, ticket: Ticket) -> None:
        """Its turn was taken: the one that `peek` gave leaves, and its share is charged."""
        flow = self._flows[ticket.share]
        self._virtual = flow.start
        flow.finish = flow.start + ticket.cost_tokens / ticket.weight
        self._drop(ticket, flow)
        if flow.waiting:
            del self._starts[bisect_left(self._starts, (flow.start, ticket.share))]
            flow.start = flow.finish
            insort(self._starts, (flow.start, ticket.share))
        self._forget()

    def remove(self, ticket: Ticket) -> None:
        """It leaves without a turn, for which its share is not charged."""
        self._drop(ticket, self._flows[ticket.share])
        self._forget()

    def last_of_longest(self) -> Ticket | None:
        """Who makes room: of the share with most waiting, the one whose turn is farthest off
        (longest queue drop: Suter et al., "Buffer management schemes for supporting TCP in gigabit
        routers with per-flow queueing", 1999)."""
        if not self._starts:
            return None
        _, share = max(self._starts, key=lambda entry: (self.length(entry[1]), entry))
        return self._flows[share].waiting[-1][2]

    def _drop(self, ticket: Ticket, flow: _Flow) -> None:
        entry = self._entries.pop(ticket.session)
        del flow.waiting[bisect_left(flow.waiting, entry[:2], key=lambda other: other[:2])]
        if not flow.waiting:
            del self._starts[bisect_left(self._starts, (flow.start, ticket.share))]

    def _forget(self) -> None:
        """Shares that start no later than new ones, and of too many the nearest to that."""
        if not self._entries:
            self._flows, self._virtual = {}, 0.0
        elif len(self._flows) - len(self._starts) > MAX_IDLE_FLOWS:
            idle = sorted((flow.finish, t) for t, flow in self._flows.items() if not flow.waiting)
            num_excess = len(idle) - MAX_IDLE_FLOWS // 2
            for count, (finish, share) in enumerate(idle):
                if count < num_excess or finish <= self._virtual:
                    del self._flows[share]
