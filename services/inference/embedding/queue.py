"""The queue of an embedding replica: inputs wait for a tokenizer, then for an engine (pure).

    text --next_text--> with a tokenizer --tokenized--> token buffer --next_batch--> engine
    ids --------------------------------------------------^

A batch has texts of one padded length (decision 0025), within a budget of tokens; 1, 2, 4, 8, ...
of them, since an engine prepares itself for each new number and length, and few enough to leave
other idle engines their part. Its length is that of the longest waiting text in the highest waiting
class; that of the first text once it has waited for `max_wait_ms`; and in at most one call of four,
whatever its class, that of a text that has waited for `starvation_ms`: an older backlog leaves the
other calls to higher classes. Within a class tenants take turns (fair_line.py): a flood from one
delays another by only the running call. Everything held is bounded: further inputs are refused, and
texts stay untokenized while the token buffer is full.

Keys are the caller's. Times are in seconds on the clock of `now`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.engines.embedding import Ids, padded_tokens
from outrider.errors import FrameTooLargeError, OverloadedError
from outrider.session.types import Priority
from services.inference.embedding.fair_line import FairLine, TenantShares
from services.inference.embedding.limits import EmbeddingLimits

_CLASSES: Final = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
STARVATION_CALLS: Final = 4
"""Starving inputs get one of this many calls, before higher classes."""
_RETRY_MS: Final = 250
_BYTES_PER_TOKEN: Final = 4
"""Estimated bytes per token of text that is not tokenized yet, and of received ids."""


@dataclass(slots=True)
class _Input:
    key: int
    tenant: str
    priority: Priority
    place: float
    """Place among inputs of its class."""
    arrived_at: float
    deadline_at: float | None
    num_bytes: int
    ids: Ids | None = None

    @property
    def estimated_tokens(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        return self.num_bytes // _BYTES_PER_TOKEN + 2


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
        """Times that a higher class went before an input that starves, since that had a turn."""

    def choose(self, highest: _Input, starving: _Input) -> _Input:
        """The input whose turn it is."""
        if starving is highest:
            return highest
        self._num_passed_over = (self._num_passed_over + 1) % STARVATION_CALLS
        return highest if self._num_passed_over else starving


class EmbeddingQueue:
    """All inputs of a replica, from `add` to `finished`."""

    def __init__(self, limits: EmbeddingLimits) -> None:
        self._limits = limits
        self._inputs: dict[int, _Input] = {}
        self._texts = {it: FairLine() for it in _CLASSES}
        self._ready = {it: FairLine() for it in _CLASSES}
        self._lengths: dict[Priority, dict[int, FairLine]] = {it: {} for it in _CLASSES}
        """The same keys as in `_ready`, by padded length."""
        self._shares = {it: TenantShares() for it in _CLASSES}
        self._reached = dict.fromkeys(_CLASSES, 0.0)
        """The last place that left a class's lines: while these are empty, they begin there."""
        self._text_turns = _StarvationTurns()
        self._call_turns = _StarvationTurns()
        self._num_bytes = 0
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
        tenant: str = "",
    ) -> None:
        """An input of so many bytes, with `ids` if it needs no tokenizer. Raises OverloadedError,
        FrameTooLargeError; then it is not there."""
        limits = self._limits
        if num_bytes > limits.max_input_bytes:
            raise FrameTooLargeError(
                f"an input has {num_bytes} bytes, at most {limits.max_input_bytes} are "
                "allowed; shorten it"
            )
        if (
            len(self._inputs) >= limits.max_inputs
            or self._num_bytes + num_bytes > limits.max_text_bytes
        ):
            raise OverloadedError(
                f"{len(self._inputs)} inputs wait here already; send fewer at once, or try again",
                retry_delay_ms=_RETRY_MS,
            )
        made = _Input(key, tenant, priority, 0.0, now, deadline_at, num_bytes, ids)
        lines = (self._texts[priority], self._ready[priority])
        begins_at = min((line.begins_at for line in lines if line), default=self._reached[priority])
        share = self._shares[priority]
        made.place = share.place(tenant, made.estimated_tokens, begins_at)
        self._inputs[key] = made
        self._num_bytes += num_bytes
        self._num_estimated_tokens += made.estimated_tokens
        if ids is None:
            self.num_untokenized += 1
            self._texts[priority].add(key, made.place)
        else:
            self._buffer(made, ids)

    def next_text(self, now: float) -> int | None:
        """The next text for a tokenizer, to be followed by `tokenized` or `finished`; None if no
        text waits or its tokens have no room."""
        if self.num_buffered_tokens >= self._limits.max_buffered_tokens:
            return None
        first = self._first(self._texts, self._text_turns, now)
        if first is None:
            return None
        self._texts[first.priority].discard(first.key)
        self._reach(first)
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
        lines = [line for it in _CLASSES if (line := self._lengths[it].get(padded)) is not None]
        there = sum(map(len, lines))
        most = min(most, -(-there // num_idle))
        most = 1 << most.bit_length() - 1
        found: list[_Input] = []
        for priority in (first, *(it for it in _CLASSES if it is not first)):
            line = self._lengths[priority].get(padded)
            if line is not None:
                found += [self._inputs[key] for key in line.take(most - len(found))]
        for each in found:
            self._unbuffer(each)
            self._reach(each)
        texts = tuple(each.ids for each in found if each.ids is not None)
        return EmbeddingBatch(tuple(each.key for each in found), texts, padded)

    def finished(self, key: int) -> bool:
        """An input is done: it was answered, or is no longer wanted. False: it was finished
        before."""
        found = self._inputs.pop(key, None)
        if found is None:
            return False
        self._num_bytes -= found.num_bytes
        self._num_estimated_tokens -= found.estimated_tokens
        self.num_untokenized -= found.ids is None
        self._shares[found.priority].left(found.tenant)
        self._texts[found.priority].discard(key)
        if key in self._ready[found.priority]:
            self._unbuffer(found)
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
        found.ids = ids
        self.num_buffered_tokens += len(ids)
        self._ready[found.priority].add(found.key, found.place)
        lengths = self._lengths[found.priority]
        lengths.setdefault(padded_tokens(len(ids)), FairLine()).add(found.key, found.place)

    def _unbuffer(self, found: _Input) -> None:
        assert found.ids is not None, "it is in the token buffer"
        padded = padded_tokens(len(found.ids))
        self.num_buffered_tokens -= len(found.ids)
        self._ready[found.priority].discard(found.key)
        lengths = self._lengths[found.priority]
        line = lengths.get(padded)
        if line is not None:  # those that a batch took are gone from it already
            line.discard(found.key)
            if not line:
                del lengths[padded]

    def _reach(self, left: _Input) -> None:
        """An input left the lines for a tokenizer or an engine."""
        self._reached[left.priority] = max(self._reached[left.priority], left.place)

    def _choose(self, now: float) -> tuple[Priority, int] | None:
        """The class and the length of the next batch."""
        first = self._first(self._ready, self._call_turns, now)
        if first is None:
            return None
        if (now - first.arrived_at) * 1e3 < self._limits.max_wait_ms:
            return first.priority, max(self._lengths[first.priority])
        assert first.ids is not None, "it is in the token buffer"
        return first.priority, padded_tokens(len(first.ids))

    def _first(
        self, lines: dict[Priority, FairLine], turns: _StarvationTurns, now: float
    ) -> _Input | None:
        """The first input of the highest class that waits, or at times one that starves; it is
        served now. None: nothing waits."""
        firsts = [self._inputs[line.first] for line in lines.values() if line]
        if not firsts:
            return None
        oldest = min(firsts, key=lambda each: each.arrived_at)
        if (now - oldest.arrived_at) * 1e3 < self._limits.starvation_ms:
            return firsts[0]
        return turns.choose(firsts[0], oldest)
