"""One request for vectors: which input is where, and that each is answered once (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outrider.errors import MalformedFrameError


@dataclass(slots=True)
class PendingInput:
    """One without an answer."""

    number: int
    frame: bytes
    """A serialised EmbedInput."""
    num_tokens: int
    """Estimated."""
    replica: str = ""
    """Name of the replica that it was sent to; empty: not placed yet."""
    sent_at: float = 0.0
    """When it was sent there."""
    lost: list[str] = field(default_factory=list)
    """Replicas that were lost while they had it."""
    unreached: set[str] = field(default_factory=set)
    """Replicas that it was sent to of late and never came to."""
    waits_until: float | None = None
    """When it has waited long enough for a replica; None: it has not had to wait yet since a
    replica had it."""


class EmbeddingRequest:
    """The inputs of a request, from `add` to their answer."""

    def __init__(self, max_inputs: int, max_lost_replicas: int) -> None:
        """`max_inputs`: of the request, over its life."""
        self._max_inputs = max_inputs
        self._max_lost = max_lost_replicas
        self._pending: dict[int, PendingInput] = {}
        self._seen: set[int] = set()
        self.is_whole = False
        """Whether no further inputs come."""

    @property
    def is_done(self) -> bool:
        """Whether every input has its answer."""
        return self.is_whole and not self._pending

    @property
    def pending(self) -> list[PendingInput]:
        """Inputs without an answer."""
        return list(self._pending.values())

    def add(self, number: int, frame: bytes, num_tokens: int) -> PendingInput:
        """One more. Raises MalformedFrameError for a number that was there."""
        if number in self._seen:
            raise MalformedFrameError(f"two inputs have the number {number}")
        if len(self._seen) >= self._max_inputs:
            raise MalformedFrameError(f"a request has at most {self._max_inputs} inputs")
        self._seen.add(number)
        made = self._pending[number] = PendingInput(number, frame, num_tokens)
        return made

    def placed(self, inputs: Iterable[PendingInput], replica: str, now: float = 0.0) -> None:
        """They are sent there."""
        for each in inputs:
            each.replica, each.sent_at = replica, now

    def answered(self, numbers: Sequence[int], replica: str) -> list[PendingInput]:
        """Record a replica's answers to inputs, each of which needs no other answer. Raises
        MalformedFrameError if one of them is already answered or was not sent there; then none
        counts."""
        found = [self._pending.get(number) for number in numbers]
        if len(set(numbers)) != len(numbers) or any(
            each is None or each.replica != replica for each in found
        ):
            raise MalformedFrameError(f"the replica {replica} answered inputs that it was not sent")
        return [self._pending.pop(number) for number in numbers]

    def given_up(self, number: int) -> PendingInput | None:
        """An input is answered without a replica; None: it was before."""
        return self._pending.pop(number, None)

    def lost(
        self, replica: str, *, had_them: bool = True
    ) -> tuple[list[PendingInput], list[PendingInput]]:
        """Record the loss of a replica; returns its inputs to place again, and those that have lost
        too many replicas. `had_them`: whether it may have seen them."""
        anew, spent = list[PendingInput](), list[PendingInput]()
        for each in self._pending.values():
            if each.replica == replica:
                each.replica = ""
                if had_them:
                    each.lost.append(replica)
                    each.unreached.clear()
                    each.waits_until = None
                else:
                    each.unreached.add(replica)
                (spent if len(each.lost) >= self._max_lost else anew).append(each)
        return anew, spent
