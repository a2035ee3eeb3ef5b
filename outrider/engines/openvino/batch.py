"""From slices to the arrays of one call. Numpy only.

A call has tens of numbers, each time others: they are collected in lists, since a call of numpy
takes longer than Python needs for a dozen of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.engines.base import Ids, SequenceSlice, SizingRule
from outrider.engines.openvino.paging import ATTENTION_ROWS, KEPT_ROWS, LOGIT_ROWS

_Array: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Inputs: TypeAlias = dict[str, _Array]


def attention_rows(num_rows: int, *, exact: bool) -> int:
    """Rows in attention of a fixed call of `num_rows`: with duplication (decision 0002) the most
    possible, twice as many. Unused ones form a sequence that costs little."""
    return 2 * num_rows if exact else num_rows


@dataclass(frozen=True, slots=True)
class CallLayout:
    """How the calls of one engine are laid out."""

    sizing: SizingRule
    """Rows that calls are filled up to."""
    min_logits: int
    """Fewest rows of the output head: fewer are filled up, and what comes of it is dropped."""
    exact: bool
    """Whether a sequence of one row enters attention twice (decision 0002)."""
    spare_blocks: Ids
    """Blocks that receive the KV of padding rows."""
    max_rows: int = 0
    """Most rows of a call; more are computed in several, one after the other. 0: any number."""

    def calls(self, slices: Sequence[SequenceSlice]) -> list[list[SequenceSlice]]:
        """The slices, cut where they have to be, call by call."""
        if not self.max_rows or sum(len(part.tokens) for part in slices) <= self.max_rows:
            return [list(slices)]
        return list(_cut(slices, self.max_rows))

    def inputs(self, slices: Sequence[SequenceSlice]) -> Inputs:
        """The arrays of a call of at least one slice. Logits come in order of slices, padding
        behind them."""
        rows = _Rows(slices, duplicates=self.exact)
        num_rows = self.sizing.padded(rows.num_rows)
        num_entering = (
            attention_rows(num_rows, exact=self.exact)
            if num_rows <= self.sizing.max_prepared
            else self.sizing.rounded(rows.num_entering)
        )
        rows.pad(num_rows, num_entering, self.spare_blocks)
        asked = len(rows.logit_rows)
        rows.logit_rows += [0] * (self.num_logits(asked) - asked)
        return rows.inputs()

    def num_logits(self, num_asked: int) -> int:
        """Rows of the output head that are computed where so many are asked for."""
        return max(num_asked, self.min_logits) if num_asked else 0


def lay_out(slices: Sequence[SequenceSlice], *, duplicates: bool) -> Inputs:
    """The arrays of make_paged's inputs, KV apart, one row per token, without padding.

    `duplicates` gives every sequence of one row a copy of it inside attention, at the position
    behind: its KV goes to the slot past the slice's last token, the engine's scratch token.
    """
    return _Rows(slices, duplicates=duplicates).inputs()


def _cut(slices: Sequence[SequenceSlice], max_rows: int) -> Iterator[list[SequenceSlice]]:
    call, room = list[SequenceSlice](), max_rows
    for part in slices:
        count, begin = len(part.tokens), 0
        while begin < count:
            end = min(count, begin + room)
            asked = max(0, end - max(begin, count - part.num_rows))
            call.append(
                part._replace(tokens=part.tokens[begin:end], past=part.past + begin, num_rows=asked)
            )
            room -= end - begin
            begin = end
            if not room:
                yield call
                call, room = [], max_rows
    if call:
        yield call


class _Rows:
    """The rows of a call; `pad` adds rows whose results are not used."""

    def __init__(self, slices: Sequence[SequenceSlice], *, duplicates: bool) -> None:
        self._tokens = [part.tokens for part in slices]
        self._blocks = [part.blocks for part in slices]
        self._past_lens = [part.past for part in slices]
        self._duplicates = duplicates
        self._num_padding = 0
        self._positions = positions = list[int]()
        self._entering = entering = list[int]()
        self._kept = kept = list[int]()
        self._begins = begins = [0]
        self._block_begins = list(accumulate(map(len, self._blocks), initial=0))
        self.logit_rows = logit_rows = list[int]()
        longest = row = entered = 0
        for part, tokens, past in zip(slices, self._tokens, self._past_lens, strict=True):
            count = len(tokens)
            length = 2 if duplicates and count == 1 else count
            if count == 1:
                positions.append(past)
                kept.append(entered)
                entering += (row, row)
                if part.num_rows:
                    logit_rows.append(row)
            else:
                positions += range(past, past + count)
                kept += range(entered, entered + count)
                entering += range(row, row + count)
                logit_rows += range(row + count - part.num_rows, row + count)
            row += count
            entered += length
            begins.append(entered)
            longest = max(longest, past + length)
        self._longest = longest
        self.num_rows = row
        self.num_entering = entered
        """Rows in attention."""

    def pad(self, num_rows: int, num_entering: int, spare_blocks: Ids) -> None:
        """Fill up to `num_rows`, and up to `num_entering` in attention: the same number unless
        there are duplicates. To attention the padding is one more sequence, whose KV goes to blocks
        of its own."""
        self._num_padding = num_rows - self.num_rows
        nothing = [0] * self._num_padding
        self._positions += nothing
        missing = self._num_padding
        if self._duplicates:
            missing = num_entering - self.num_entering
            self._kept += nothing
            self._entering += [0] * missing
        if missing:
            self._past_lens.append(0)
            self._begins.append(self.num_entering + missing)
            self._blocks.append(spare_blocks)
            self._block_begins.append(self._block_begins[-1] + len(spare_blocks))
            self._longest = max(self._longest, missing)

    def inputs(self) -> Inputs:
        """The arrays."""
        ids = np.zeros(self.num_rows + self._num_padding, np.int64)
        np.concatenate(self._tokens, out=ids[: self.num_rows])
        inputs: Inputs = {
            "input_ids": ids,
            "position_ids": np.array(self._positions, np.int64),
            "past_lens": np.array(self._past_lens, np.int32),
            "subsequence_begins": np.array(self._begins, np.int32),
            "block_indices": np.concatenate(self._blocks, dtype=np.int32),
            "block_indices_begins": np.array(self._block_begins, np.int32),
            "max_context_len": np.array(self._longest, np.int32),
            LOGIT_ROWS: np.array(self.logit_rows, np.int64),
        }
        if self._duplicates:
            inputs[ATTENTION_ROWS] = np.array(self._entering, np.int32)
            inputs[KEPT_ROWS] = np.array(self._kept, np.int32)
        return inputs
