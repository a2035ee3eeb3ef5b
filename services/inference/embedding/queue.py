"""The queue of an embedding replica: inputs wait for a tokenizer, then for an engine (pure).

    text --next_text--> with a tokenizer --tokenized--> token buffer --next_batch--> engine
    ids --------------------------------------------------^

A batch has texts of one padded length (decision 0025), within a budget of tokens; 1, 2, 4, 8, ...
of them, since an engine prepares itself for each new number and length, and few enough to leave
other idle engines their part. Its length is that of the longest waiting text in the highest waiting
class; that of the first text once it has waited for `max_wait_ms`; and in at most one call of four,
whatever its class, that of a text that has waited for `starvation_ms`: an older backlog leaves the
other calls to higher classes. Within a class those who ask take turns by tokens, at the tokenizers
and at the engines: a flood from one delays another by only the running call. Everything held is
bounded: for further inputs whoever has most here loses the newest ones, and texts stay untokenized
while the token buffer is full.

Keys are the caller's. Times are in seconds on the clock of `now`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outrider.engines.embedding import Ids, padded_tokens
from outrider.errors import FrameTooLargeError, OverloadedError
from outrider.fair_work.shares import Shares
from outrider.fair_work.turns import ANYBODY, Requester, TurnClock, Turns
from outrider.session.types import Priority
from services.inference.embedding_limits import EmbeddingLimits

_CLASSES: Final = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
STARVATION_CALLS: Final = 4
"""Starving inputs get one of this many calls, before higher classes."""
_RETRY_MS: Final = 250
_BYTES_PER_TOKEN: Final = 4
"""Estimated bytes per token of text that is not tokenized yet, and of received ids."""


@dataclass(slots=True, eq=False)
class _Input:
    key: int
    requester: Requester
    priority: Priority
    arrived_at: float
    deadline_at: float | None
    num_bytes: int
    ids: Ids | None = None
    padded_tokens: int = 0
    """Length of its row in an engine call; 0: not tokenized yet."""
    rank: float = 0.0
    """Set by `Turns`."""

    @property
    def flow(self) -> str:
        return self.requester.origin

    @property
    def number(self) -> int:
        return self.key

    @property
    def size(self) -> int:
        return self.num_bytes

    @property
    def estimated_tokens(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        return self.num_bytes // _BYTES_PER_TOKEN + 2

    @property
    def cost(self) -> float:
        """Cost in the fair queues: estimated tokens."""
        return self.estimated_tokens


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """One engine call."""

    keys: tuple[int, ...]
    texts: tuple[Ids, ...]
    padded_tokens: int
    """Length of each row."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the texts, without padding."""
        return sum(map(len, self.texts))


class _StarvationTurns:
    """Turns of starving inputs, for one kind of taker: the engines or the tokenizers."""

    def __init__(self) -> None:
        self._num_passed_over = 0
        """Number of times that a higher class was served before a starving input, since one of
        those had its turn."""

    def choose(self, highest: _Input, starving: _Input) -> _Input:
        """The input to serve now."""
        if starving is highest:
            return highest
        self._num_passed_over = (self._num_passed_over + 1) % STARVATION_CALLS
        return highest if self._num_passed_over else starving


class EmbeddingQueue:
    """All inputs of a replica, from `add` to `finished`."""

    def __init__(self, limits: EmbeddingLimits) -> None:
        self._limits = limits
        self._inputs: dict[int, _Input] = {}
        self._texts = {it: Turns[_Input]() for it in _CLASSES}
        self._ready: dict[Priority, dict[int, Turns[_Input]]] = {it: {} for it in _CLASSES}
        """By padded length."""
        self._clocks = {it: TurnClock() for it in _CLASSES}
        """Clocks of the queues in `_ready`, by class."""
        self._text_turns = _StarvationTurns()
        self._call_turns = _StarvationTurns()
        self._shares: Shares[_Input] = Shares()
        """Of the inputs that are not finished."""
        self._num_estimated_tokens = 0
        self.num_untokenized = 0
        """Texts that wait for a tokenizer, or are in one."""
        self.num_buffered_tokens = 0
        """In the token buffer."""

    def __len__(self) -> int:
        """Inputs that are not finished."""
        return len(self._inputs)

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs, estimated for those not tokenized yet."""
        return self._num_estimated_tokens

    def add(
        self,
        key: int,
        num_bytes: int,
        priority: Priority,
        deadline_at: float | None,
        now: float,
        *,
        ids: Ids | None = None,
        requester: Requester = ANYBODY,
    ) -> list[int]:
        """An input of so many bytes, with `ids` if it needs no tokenizer. `key` is above all
        earlier ones. Returns the inputs that have lost their place to it; the caller finishes them.
        Raises OverloadedError, FrameTooLargeError; then it is not there."""
        limits = self._limits
        if num_bytes > limits.max_input_bytes:
            raise FrameTooLargeError(
                f"an input has {num_bytes} bytes, at most {limits.max_input_bytes} are "
                "allowed; shorten it"
            )
        made = _Input(key, requester, priority, now, deadline_at, num_bytes, ids)
        given_up = self._shares.admit(made, limits.max_inputs, limits.max_text_bytes)
        if given_up is None:
            raise OverloadedError(
                f"{len(self._inputs)} inputs wait here already; send fewer at once, or try again",
                retry_delay_ms=_RETRY_MS,
            )
        for one in given_up:
            self._shares.add(one)  # until it is finished
        self._inputs[key] = made
        self._num_estimated_tokens += made.estimated_tokens
        if ids is None:
            self.num_untokenized += 1
            self._texts[priority].push(made)
        else:
            self._buffer(made, ids)
        return [one.key for one in given_up]

    def next_text(self, now: float) -> int | None:
        """The next text for a tokenizer, to be followed by `tokenized` or `finished`; None if no
        text waits or its tokens have no room."""
        if self.num_buffered_tokens >= self._limits.max_buffered_tokens:
            return None
        firsts = [first for it in _CLASSES if (first := self._texts[it].peek()) is not None]
        first = self._first(firsts, self._text_turns, now)
        if first is None:
            return None
        self._texts[first.priority].pop(first)
        return first.key

    def tokenized(self, key: int, ids: Ids) -> None:
        """The tokens of a text that `next_text` gave."""
        found = self._inputs.get(key)
        if found is None:
            return  # finished meanwhile: cancelled, or too late
        self.num_untokenized -= 1
        self._num_estimated_tokens += len(ids) - found.estimated_tokens
        self._buffer(found, ids)

    def next_batch(self, now: float, num_idle: int = 1) -> EmbeddingBatch | None:
        """The next engine call, whose inputs are `finished` later; None: nothing is ready.
        `num_idle`: idle engines, including the one that asks."""
        chosen = self._choose(now)
        if chosen is None:
            return None
        first, padded = chosen
        most = min(self._limits.max_batch_texts, max(1, self._limits.max_batch_tokens // padded))
        there = sum(len(self._ready[it].get(padded, ())) for it in _CLASSES)
        most = min(most, -(-there // num_idle))
        most = 1 << most.bit_length() - 1
        found: list[_Input] = []
        for priority in (first, *(it for it in _CLASSES if it is not first)):
            queue = self._ready[priority].get(padded)
            while queue is not None and len(found) < most and (each := queue.peek()) is not None:
                queue.pop(each)
                self._unbuffered(each)
                found.append(each)
        texts = tuple(each.ids for each in found if each.ids is not None)
        return EmbeddingBatch(tuple(each.key for each in found), texts, padded)

    def finished(self, key: int) -> bool:
        """An input is done: it was answered, or is no longer wanted. False: it was finished
        before."""
        found = self._inputs.pop(key, None)
        if found is None:
            return False
        self._shares.remove(found)
        self._num_estimated_tokens -= found.estimated_tokens
        self.num_untokenized -= found.ids is None
        texts = self._texts[found.priority]
        if found in texts:
            texts.remove(found)
        elif found.ids is not None:
            ready = self._ready[found.priority].get(found.padded_tokens)
            if ready is not None and found in ready:
                ready.remove(found)
                self._unbuffered(found)
        return True

    def expired(self, now: float) -> list[int]:
        """Inputs whose deadline has passed; the caller finishes them. Takes time in proportion to
        all that wait."""
        return [
            each.key
            for each in self._inputs.values()
            if each.deadline_at is not None and each.deadline_at <= now
        ]

    def _buffer(self, found: _Input, ids: Ids) -> None:
        found.ids, found.padded_tokens = ids, padded_tokens(len(ids))
        self.num_buffered_tokens += len(ids)
        ready, padded = self._ready[found.priority], found.padded_tokens
        if padded not in ready:
            ready[padded] = Turns(self._clocks[found.priority])
        ready[padded].push(found)

    def _unbuffered(self, found: _Input) -> None:
        """It left the token buffer."""
        assert found.ids is not None, "it was in the token buffer"
        self.num_buffered_tokens -= len(found.ids)
        ready, padded = self._ready[found.priority], found.padded_tokens
        if not len(ready[padded]):
            del ready[padded]

    def _choose(self, now: float) -> tuple[Priority, int] | None:
        """The class and the length of the next batch."""
        firsts = [_first_of(queues.values()) for queues in self._ready.values() if queues]
        first = self._first(firsts, self._call_turns, now)
        if first is None:
            return None
        if (now - first.arrived_at) * 1e3 < self._limits.max_wait_ms:
            return first.priority, max(self._ready[first.priority])
        return first.priority, first.padded_tokens

    def _first(self, firsts: list[_Input], turns: _StarvationTurns, now: float) -> _Input | None:
        """The input to serve now: the first one of the highest class, or in some turns one that
        starves. None: nothing waits."""
        if not firsts:
            return None
        oldest = min(firsts, key=lambda each: each.arrived_at)
        if (now - oldest.arrived_at) * 1e3 < self._limits.starvation_ms:
            return firsts[0]
        return turns.choose(firsts[0], oldest)


def _first_of(queues: Iterable[Turns[_Input]]) -> _Input:
    """The item with the least start in these queues, at least one of which has items; of equal
    starts, the one that arrived first."""
    firsts = [head for queue in queues if (head := queue.head()) is not None]
    return min(firsts, key=lambda first: (first[0], first[1].arrived_at))[1]
