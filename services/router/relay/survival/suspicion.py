"""Which request killed its replica, if one did. Pure.

A replica's end says nothing of whose fault it was. What had tokens from it has shown that it can be
served: that is no strike, and it moves on at once. What had none may be what killed it: of these,
few are opened again at a time, one at first, one more with each that gets a token: 1, 2, 4, 8 (the
slow start of TCP, RFC 5681, section 3.1). So the request that kills replicas stands alone when it
kills its second one, and is ended. One that first kills in the middle of its reply costs a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True, eq=False)
class Record:
    """What speaks against one session. Changed by Suspects alone."""

    num_lost: int = 0
    """Replicas lost with it, one after the other, without a token from any of them."""
    is_proven: bool = False
    """Whether it had a token from the replica that it is on."""


class Suspects:
    """The sessions under suspicion, in the order in which they are tried."""

    def __init__(self, max_lost: int) -> None:
        self._max_lost = max_lost
        # Ordered sets, both.
        self._line: dict[Record, None] = {}
        self._on_trial: dict[Record, None] = {}
        self._num_allowed = 1

    def __len__(self) -> int:
        return len(self._line) + len(self._on_trial)

    def died(self, records: Sequence[Record], *, excuses: bool = True) -> Record | None:
        """A replica was lost with these sessions: the one that did it, if there is no doubt.

        `excuses`: tokens before speak for a session. They do not where an engine call failed: then
        it is known which sessions were in it.
        """
        suspects = {record: None for record in records if not (record.is_proven and excuses)}
        for record in records:
            record.num_lost += record in suspects
            record.is_proven = False
            self._on_trial.pop(record, None)
        accused = [record for record in records if record.num_lost >= self._max_lost]
        if suspects:
            self._num_allowed = 1
        self._line.update(suspects)
        if len(accused) != 1:
            return None
        self.forget(accused[0])
        return accused[0]

    def may_go(self, record: Record) -> bool:
        """Whether it may be opened again now: no suspect, or its turn has come."""
        if record not in self._line:
            return True
        room = max(0, self._num_allowed - len(self._on_trial))
        return any(first is record for first in islice(self._line, room))

    def went(self, record: Record) -> None:
        """It was opened again."""
        if record in self._line:
            del self._line[record]
            self._on_trial[record] = None

    def came_back(self, record: Record) -> None:
        """It left the replica, or was not taken; nothing is known that was not known before."""
        record.is_proven = False
        if record in self._on_trial:
            del self._on_trial[record]
            self._line = {record: None, **self._line}

    def proved(self, record: Record) -> None:
        """It had a token from its replica: nothing speaks against it any more."""
        record.is_proven, record.num_lost = True, 0
        if record in self._on_trial:
            del self._on_trial[record]
            self._num_allowed += 1

    def forget(self, record: Record) -> None:
        """It has ended."""
        self._on_trial.pop(record, None)
        self._line.pop(record, None)
