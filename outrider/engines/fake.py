"""A deterministic engine without a model, for tests and simulation.

Row p's logits are a hash of ids 0..p of its sequence, read through the KV pool it was given. As in
a transformer, the KV of a position depends on everything before it and on the position itself, so
a wrong block table, a wrong past, KV reused under another prefix, a leak between sequences or a
missing recompute all show as wrong logits.

Each slot holds two 64-bit words. `key` names the id and its position; `value` is a hash of all
keys up to it. Sums run over the slots in table order with a weight per position, wrap at 64 bits,
and are therefore exact in any order of computation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from outrider.codec.kv.layout import KvDtype, uniform_layout
from outrider.engines.base import (
    NO_SIZING,
    EngineInfo,
    Ids,
    Logits,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    SizingRule,
    check_block_ids,
    check_opening,
    check_slices,
    no_work,
)
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.errors import EngineError

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = 8.0
"""Logits lie in [0, 8): sampling at temperature 1 is neither uniform nor one-sided."""
_PROBE_TOKENS = 16
"""Length of the sequence whose rows give the fingerprint."""
_FAVOUR = 16.0
"""Added to the favourite's logit: it then wins against any other column."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """Shape and temper of a FakeEngine."""

    vocabulary_size: int = 64
    block_tokens: int = 16
    num_blocks: int = 256
    max_context_tokens: int = 2048
    min_rows: int = 1
    scratch_tokens: int = 1
    sizing: SizingRule = NO_SIZING
    """The SizingRule it reports; rounding costs it nothing."""
    num_candidates: int = 0
    """Columns of a row; 0: one per id."""
    repetition: float = 0.75
    """Share of rows whose greedy token follows from the last id only: greedy text then runs in
    short cycles, which a suffix drafter guesses."""
    fixed_ms: float = 0.0
    """Virtual cost of a call."""
    row_ms: float = 0.0
    """Virtual cost of a token in a call."""
    fail_on_step: int = 0
    """The call, counted from 1, that raises EngineError; 0 for none."""
    seed: int = 0
    """Another seed is another model: other weights, texts and fingerprint."""
    crash_id: int = -1
    """A call with this id among its tokens ends the process by SIGABRT, as a failed assertion of a
    real engine does; below 0: none does."""
    call_ms: float = 0.0
    """Real time that each call waits in addition to computing, so that replies last on fast
    machines, too, without using the CPU."""


class FakeEngine:
    """Implements base.Engine. Overwrites every slot that a slice may overwrite, whatever its number
    of rows."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.options = options = options or FakeOptions()
        self._keys = _noise(_words(options.num_blocks * options.block_tokens), options.seed + 1)
        self._values = _noise(self._keys, 1)
        self._weights = _noise(_words(options.max_context_tokens), options.seed + 2) | np.uint64(1)
        self._columns = _noise(_words(options.vocabulary_size), options.seed + 3)
        self._info = replace(_info(options), fingerprint=self._fingerprint())
        self._opened: set[int] = set()
        self._closed = False
        self.num_steps = 0
        """Calls of `step` so far, failed ones included."""
        self.step_ms = 0.0
        """Virtual duration of the last call."""
        self.total_ms = 0.0
        """Virtual duration of all calls."""
        self.busy_s = 0.0
        """See base.Engine."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        self._check_not_closed()
        check_opening(self._info, self._opened, sequence, prompt)
        self._opened.add(sequence)

    def close_sequence(self, sequence: int) -> None:
        self._check_not_closed()
        self._opened.discard(sequence)

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        self._check_not_closed()
        check_slices(self._info, self._opened, slices)
        self._count(slices)
        if self.options.crash_id >= 0:
            if any(self.options.crash_id in part.tokens for part in slices):
                os.abort()
        begin = time.perf_counter()
        slots = [self._slots(part) for part in slices]
        # All writes come before all reads: slices that share a slot by mistake spoil each other.
        for part, table in zip(slices, slots, strict=True):
            self._write_keys(part, table)
        self.busy_s += time.perf_counter() - begin
        if slices:
            overlapped_work()
        begin = time.perf_counter()
        for part, table in zip(slices, slots, strict=True):
            self._write_garbage(part, table)
        for part, table in zip(slices, slots, strict=True):
            self._write_values(part, table)
        rows = [self._rows(part, table) for part, table in zip(slices, slots, strict=True)]
        if self.options.call_ms:
            time.sleep(self.options.call_ms / 1e3)
        self.busy_s += time.perf_counter() - begin
        return rows

    def copy_block(self, source: int, target: int) -> None:
        self._check_not_closed()
        check_block_ids(self._info, (source, target))
        for words in (self._paged(self._keys), self._paged(self._values)):
            words[target] = words[source]

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        return np.stack(
            [self._paged(self._keys)[blocks], self._paged(self._values)[blocks]], axis=1
        ).tobytes()

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        if len(data) != len(blocks) * self._info.block_bytes:
            raise EngineError(
                f"{len(data)} bytes do not fill {len(blocks)} blocks of "
                f"{self._info.block_bytes} bytes; export and import equal engines"
            )
        index = np.asarray(blocks, np.intp)
        words = np.frombuffer(data, np.uint64).reshape(len(index), 2, self._info.block_tokens)
        self._paged(self._keys)[index] = words[:, 0]
        self._paged(self._values)[index] = words[:, 1]

    def close(self) -> None:
        self._closed = True

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; create a new one")

    def _count(self, slices: Sequence[SequenceSlice]) -> None:
        self.num_steps += 1
        self.step_ms = self.options.fixed_ms + self.options.row_ms * sum(
            len(part.tokens) for part in slices
        )
        self.total_ms += self.step_ms
        if self.num_steps == self.options.fail_on_step:
            raise EngineError(f"call {self.num_steps} fails as configured")

    def _fingerprint(self) -> bytes:
        """Fingerprint of the rows of one sequence, computed without the pool."""
        options = self.options
        num_tokens = min(_PROBE_TOKENS, options.max_context_tokens)
        ids = probe_ids(options.vocabulary_size, num_tokens)
        keys = _keys(ids, 0)
        values = _mix(np.cumsum(keys * self._weights[:num_tokens], dtype=np.uint64))
        return fingerprint_of(self._score(keys, values, ids))

    def _paged(self, words: Words) -> Words:
        return words.reshape(self._info.num_blocks, self._info.block_tokens)

    def _slots(self, part: SequenceSlice) -> npt.NDArray[np.int64]:
        """Pool slots of all positions up to the end of the block of the last scratch token."""
        size = self._info.block_tokens
        inside = np.arange(size, dtype=np.int64)
        touched = part.past + len(part.tokens) + self._info.scratch_tokens
        blocks = part.blocks[: -(-touched // size)].astype(np.int64)
        return (blocks[:, None] * size + inside).reshape(-1)

    def _write_keys(self, part: SequenceSlice, slots: npt.NDArray[np.int64]) -> None:
        end = part.past + len(part.tokens)
        self._keys[slots[part.past : end]] = _keys(part.tokens, part.past)

    def _write_garbage(self, part: SequenceSlice, slots: npt.NDArray[np.int64]) -> None:
        scratch = slots[part.past + len(part.tokens) :]
        self._keys[scratch] = _noise(_words(len(scratch)), self.num_steps)
        self._values[scratch] = _noise(_words(len(scratch)), -self.num_steps)

    def _write_values(self, part: SequenceSlice, slots: npt.NDArray[np.int64]) -> None:
        end = part.past + len(part.tokens)
        keys = np.cumsum(self._keys[slots[:end]] * self._weights[:end], dtype=np.uint64)
        self._values[slots[part.past : end]] = _mix(keys[part.past :])

    def _rows(self, part: SequenceSlice, slots: npt.NDArray[np.int64]) -> LogitsRows:
        logits = self._logits(part, slots)
        if not self.options.num_candidates:
            return LogitsRows(logits)
        best = np.argsort(-logits, axis=1, kind="stable")[:, : self.options.num_candidates]
        return LogitsRows(np.take_along_axis(logits, best, axis=1), best.astype(np.int32))

    def _logits(self, part: SequenceSlice, slots: npt.NDArray[np.int64]) -> Logits:
        if part.num_rows == 0:
            return np.empty((0, self._info.vocabulary_size), np.float32)
        table = slots[: part.past + len(part.tokens)]
        return self._score(self._keys[table], self._values[table], part.tokens[-part.num_rows :])

    def _score(self, keys: Words, values: Words, last: Ids) -> Logits:
        """[n, V] the rows of the `last` n ids of a sequence with these words."""
        words = (values ^ keys) * self._weights[: len(keys)]
        states = np.cumsum(words, dtype=np.uint64)[-len(last) :]
        logits = _unit(_mix(states[:, None] + self._columns)) * np.float32(_SPREAD)
        habitual = np.flatnonzero(_unit(_mix(states)) < self.options.repetition)
        names = last.astype(np.uint64)
        favourites = _mix(names + self._columns[0]) % np.uint64(self.options.vocabulary_size)
        logits[habitual, favourites[habitual]] += np.float32(_FAVOUR)
        return logits


def _info(options: FakeOptions) -> EngineInfo:
    return EngineInfo(
        name="fake",
        vocabulary_size=options.vocabulary_size,
        block_tokens=options.block_tokens,
        num_blocks=options.num_blocks,
        block_bytes=options.block_tokens * 16,
        # A key and a value of 64 bits per token.
        kv_layout=uniform_layout(
            KvDtype.F32, num_layers=1, num_heads=1, block_tokens=options.block_tokens, head_size=2
        ),
        max_context_tokens=options.max_context_tokens,
        min_rows=options.min_rows,
        scratch_tokens=options.scratch_tokens,
        sizing=options.sizing,
        num_candidates=options.num_candidates,
    )


def _keys(ids: Ids, first: int) -> Words:
    """Keys of these ids at positions from `first` on."""
    positions = np.arange(first, first + len(ids), dtype=np.uint64) << np.uint64(32)
    return _mix(positions + ids.astype(np.uint64))


def _words(count: int) -> Words:
    return np.arange(count, dtype=np.uint64)


def _noise(words: Words, stream: int) -> Words:
    return _mix(_mix(words) + np.uint64(stream * int(_GOLDEN) % 2**64))


def _mix(words: Words) -> Words:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64-bit words."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _unit(words: Words) -> npt.NDArray[np.float32]:
    """The top 24 bits as a float32 in [0, 1)."""
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
