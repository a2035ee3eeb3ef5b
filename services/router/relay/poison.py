"""Which request killed its replica, if one did. Pure.

A replica's loss does not say which request caused it. A session that had tokens from the replica
has shown that it can be served: it is no suspect and moves on at once. A session without tokens may
be the cause: suspects are opened again a few at a time, one at first, one more with each that gets
a token: 1, 2, 4, 8 (TCP slow start, RFC 5681, section 3.1). So a request that kills replicas is
alone on its second one, and is ended when that is lost too. A request that kills its first replica
in the middle of its reply costs a third one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True, eq=False)
class LossRecord:
    """The replicas that were lost with one session. Changed by PoisonDetector alone."""

    num_lost: int = 0
    """Replicas lost with it, one after the other, without a token from any of them."""
    is_proven: bool = False
    """Whether it had a token from the replica that it is on."""


class PoisonDetector:
    """The suspects of one model, in the order in which they are tried again."""

    def __init__(self, max_lost: int) -> None:
        self._max_lost = max_lost
        # Ordered sets, both.
        self._suspects: dict[LossRecord, None] = {}
        self._on_trial: dict[LossRecord, None] = {}
        self._num_allowed = 1
        """Suspects that may be on trial at once."""

    def __len__(self) -> int:
        return len(self._suspects) + len(self._on_trial)

    def replica_lost(
        self, records: Sequence[LossRecord], *, is_proof_valid: bool = True
    ) -> LossRecord | None:
        """A replica was lost with these sessions: the poisonous one, if only one can be.

        `is_proof_valid`: whether tokens from the replica clear a session. They do not where an
        engine call failed: then it is known which sessions were in it.
        """
        suspects = {record: None for record in records if not (record.is_proven and is_proof_valid)}
        for record in records:
            record.num_lost += record in suspects
            record.is_proven = False
            self._on_trial.pop(record, None)
        poisonous = [record for record in records if record.num_lost >= self._max_lost]
        if suspects:
            self._num_allowed = 1
        self._suspects.update(suspects)
        if len(poisonous) != 1:
            return None
        self.forget(poisonous[0])
        return poisonous[0]

    def may_open(self, record: LossRecord) -> bool:
        """Whether it may be opened again now: it is no suspect, or among the next to be tried."""
        if record not in self._suspects:
            return True
        room = max(0, self._num_allowed - len(self._on_trial))
        return any(first is record for first in islice(self._suspects, room))

    def opened(self, record: LossRecord) -> None:
        """It was opened again."""
        if record in self._suspects:
            del self._suspects[record]
            self._on_trial[record] = None

    def deferred(self, record: LossRecord) -> None:
        """No replica could have it: the others of the suspects are tried before it."""
        if record in self._suspects:
            del self._suspects[record]
            self._suspects[record] = None

    def left_replica(self, record: LossRecord) -> None:
        """It left a replica that was not lost, or was refused by it: nothing was learned."""
        record.is_proven = False
        if record in self._on_trial:
            del self._on_trial[record]
            self._suspects = {record: None, **self._suspects}

    def proved(self, record: LossRecord) -> None:
        """It had a token from its replica: it is no suspect any more."""
        record.is_proven = True
        record.num_lost = 0
        if record in self._on_trial:
            del self._on_trial[record]
            self._num_allowed += 1

    def forget(self, record: LossRecord) -> None:
        """Its session ended."""
        self._on_trial.pop(record, None)
        self._suspects.pop(record, None)
