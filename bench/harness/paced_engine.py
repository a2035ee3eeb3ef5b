"""An engine without a model: a call takes a set time, and almost no processor time.

A greedy token follows from the chat, its position and the last id, so that no draft is right. For a
set share of tokens it follows from the chat and the last id alone: such text repeats itself, and
drafts are often right. No chat's text is like another's: what is learnt from earlier chats would
make later ones cheaper. The ids are those of ordinary text, and as frequent: the n-th of them comes
in proportion to 1/n (G. K. Zipf, Human Behavior and the Principle of Least Effort, 1949). A row has
the scores of a few candidates, as rows of an engine on a GPU do: sampling is measured no further.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from outrider.engines.base import (
    EngineInfo,
    Ids,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.engines.fake import FakeEngine, FakeOptions

_NUM_CANDIDATES: Final = 4
_NUM_DRAWS: Final = 1 << 16
_HABITS: Final = np.uint64(12)
"""Ids that the repeating part of a chat's text is made of."""
_SCORES: Final = np.array([[-0.1, -3.0, -4.0, -5.0]], np.float32)


class PacedEngine(FakeEngine):
    """Keeps no KV: the scheduler's and the pool's work does not depend on what is in it."""

    def __init__(self, ordinary: Sequence[int], options: FakeOptions, num_blocks: int) -> None:
        """`ordinary`: the ids that it chooses from, the most frequent first."""
        super().__init__(options)
        self._paced_info = replace(
            super().info, num_blocks=num_blocks, num_candidates=_NUM_CANDIDATES
        )
        self._ordinary = np.array(ordinary, np.int32)
        ranks = np.float64(len(ordinary)) ** (np.arange(_NUM_DRAWS) / _NUM_DRAWS)
        self._ranks = ranks.astype(np.int64) - 1
        """[draw] place in `_ordinary`."""
        self._salts: dict[int, int] = {}
        self._past: dict[int, int] = {}
        self.fixed_ms = 1.0
        self.row_ms = 0.0
        """A call takes `fixed_ms`, and `row_ms` for each token that it computes, at least."""
        self.repetition = 0.0
        """Share of rows that follow from the last id alone."""
        self.num_tokens = 0
        """Tokens that became final, prompts left out."""
        self.num_calls = 0
        """Calls that have ended."""
        self.busy_ms = 0.0
        """What all calls were set to take."""
        self.cpu_ns = 0
        """Processor time of all calls, the work that overlaps with them left out."""
        self.thread = 0
        """The one that calls it."""
        self.call_ended: Callable[[], None] | None = None
        """Called behind each call, in that thread."""

    @property
    def info(self) -> EngineInfo:
        return getattr(self, "_paced_info", super().info)

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        super().open(sequence, prompt, salt, num_candidates)
        self._salts[sequence] = hash(bytes(prompt.data)) & 0xFFFFFFFF

    def close_sequence(self, sequence: int) -> None:
        super().close_sequence(sequence)
        self._salts.pop(sequence, None)
        self._past.pop(sequence, None)

    def copy_block(self, source: int, target: int) -> None:
        """There is nothing to copy."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        begin, begin_ns = time.monotonic(), time.thread_time_ns()
        self.thread = threading.get_native_id()
        rows = self._answer(slices)
        self.cpu_ns += time.thread_time_ns() - begin_ns
        if slices:
            overlapped_work()
        begin_ns = time.thread_time_ns()
        num_tokens = sum(len(part.tokens) for part in slices)
        took_s = (self.fixed_ms + self.row_ms * num_tokens) / 1e3
        time.sleep(max(0.0, begin + took_s - time.monotonic()))
        self.num_calls += 1
        self.busy_ms += took_s * 1e3
        if self.call_ended is not None:
            self.call_ended()
        self.cpu_ns += time.thread_time_ns() - begin_ns
        return rows

    def _answer(self, slices: Sequence[SequenceSlice]) -> list[LogitsRows]:
        asked = [part for part in slices if part.num_rows]
        if not asked:
            return [_none() for _ in slices]
        for part in asked:
            before = self._past.get(part.sequence)
            if before is not None:
                self.num_tokens += part.past - before
            # The prompt's last token is computed in this call, the first one is final after it.
            self._past[part.sequence] = (
                part.past if before is not None else part.past + len(part.tokens) - 1
            )
        last = np.concatenate([part.tokens[-part.num_rows :] for part in asked]).astype(np.uint64)
        position = np.concatenate([_positions(part) for part in asked]).astype(np.uint64)
        salt = np.repeat(
            np.array([self._salts[part.sequence] for part in asked], np.uint64),
            [part.num_rows for part in asked],
        )
        ids = iter(np.split(self._choose(last, position, salt), _ends(asked)))
        return [rows_of(next(ids)) if part.num_rows else _none() for part in slices]

    def _choose(
        self,
        last: npt.NDArray[np.uint64],
        position: npt.NDArray[np.uint64],
        salt: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int32]:
        """[n, candidates]"""
        drawn = _mix(_mix(last + (position << np.uint64(32))) + salt)
        is_habit = drawn % np.uint64(1024) < np.uint64(int(1024 * self.repetition))
        habit = _mix(_mix(last + salt) % _HABITS + salt)
        word = np.where(is_habit, habit, drawn >> np.uint64(10))
        best = self._ranks[word % np.uint64(_NUM_DRAWS)]
        columns = best[:, None] + np.arange(_NUM_CANDIDATES)
        chosen: npt.NDArray[np.int32] = self._ordinary[columns % len(self._ordinary)]
        return chosen


def _positions(part: SequenceSlice) -> npt.NDArray[np.int64]:
    end = part.past + len(part.tokens)
    return np.arange(end - part.num_rows, end)


def _ends(asked: Sequence[SequenceSlice]) -> npt.NDArray[np.int64]:
    return np.cumsum([part.num_rows for part in asked])[:-1]


def rows_of(ids: npt.NDArray[np.int32]) -> LogitsRows:
    """Rows of these candidates, [n, candidates], the likeliest first."""
    return LogitsRows(np.repeat(_SCORES, len(ids), axis=0), ids)


def _none() -> LogitsRows:
    return LogitsRows(
        np.empty((0, _NUM_CANDIDATES), np.float32), np.empty((0, _NUM_CANDIDATES), np.int32)
    )


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser, as in outrider.engines.fake."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
