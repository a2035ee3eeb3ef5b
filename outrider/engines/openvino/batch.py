"""From slices to the arrays of one call. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Rows in attention of a call of `num_rows` that is fixed: with duplication (decision 0002)
    twice as many as there are at most; what is not needed is a sequence that costs little."""
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
    """Where the KV of rows that nobody asked for lands."""

    def inputs(self, slices: Sequence[SequenceSlice]) -> Inputs:
        """The arrays of a call of at least one slice. Logits come in order of slices, padding
        behind them."""
        inputs = lay_out(slices)
        if self.exact:
            inputs = duplicate_single_rows(inputs)
        num_rows = self.sizing.padded(len(inputs["input_ids"]))
        entering = len(inputs.get(ATTENTION_ROWS, ()))
        num_attention_rows = (
            attention_rows(num_rows, exact=self.exact)
            if num_rows <= self.sizing.max_prepared
            else self.sizing.rounded(entering)
        )
        padded = pad(inputs, num_rows, num_attention_rows, self.spare_blocks)
        asked = len(padded[LOGIT_ROWS])
        padded[LOGIT_ROWS] = _extended(padded[LOGIT_ROWS], self.num_logits(asked) - asked)
        return padded

    def num_logits(self, num_asked: int) -> int:
        """Rows of the output head that are computed where so many are asked for."""
        return max(num_asked, self.min_logits) if num_asked else 0


def lay_out(slices: Sequence[SequenceSlice]) -> Inputs:
    """The arrays of make_paged's inputs, KV apart, one row per token."""
    counts = [len(part.tokens) for part in slices]
    begins = list(accumulate(counts, initial=0))
    return {
        "input_ids": np.concatenate([part.tokens for part in slices]).astype(np.int64),
        "position_ids": _ranges([part.past for part in slices], counts),
        "past_lens": np.array([part.past for part in slices], np.int32),
        "subsequence_begins": np.array(begins, np.int32),
        "block_indices": np.concatenate([part.blocks for part in slices]).astype(np.int32),
        "block_indices_begins": np.array(
            list(accumulate((len(part.blocks) for part in slices), initial=0)), np.int32
        ),
        "max_context_len": np.array(
            max(part.past + count for part, count in zip(slices, counts, strict=True)), np.int32
        ),
        LOGIT_ROWS: _ranges(
            [end - part.num_rows for part, end in zip(slices, begins[1:], strict=True)],
            [part.num_rows for part in slices],
        ),
    }


def duplicate_single_rows(inputs: Inputs) -> Inputs:
    """Give every sequence of one row a copy of it inside attention, at the position behind.

    The copy's KV goes to the slot past the slice's last token, the engine's scratch token.
    """
    begins = inputs["subsequence_begins"]
    counts = np.diff(begins)
    entering = np.repeat(counts, counts)
    # Row i enters 2 times if it is its sequence's only one, else once.
    copies = np.where(entering == 1, 2, 1)
    ends = np.cumsum(copies)
    return inputs | {
        ATTENTION_ROWS: np.repeat(np.arange(len(copies), dtype=np.int32), copies),
        KEPT_ROWS: (ends - copies).astype(np.int32),
        "subsequence_begins": np.concatenate(([0], ends[begins[1:] - 1])).astype(np.int32),
        "max_context_len": np.array(
            np.max(inputs["past_lens"] + np.where(counts == 1, 2, counts)), np.int32
        ),
    }


def pad(inputs: Inputs, num_rows: int, num_attention_rows: int, spare_blocks: Ids) -> Inputs:
    """Add rows that nobody asks for: up to `num_rows`, and up to `num_attention_rows` in attention
    (the same number unless duplicate_single_rows made the inputs).

    To attention they are one more sequence, whose KV lands in blocks that nobody else has.
    """
    missing = num_rows - len(inputs["input_ids"])
    padded: Inputs = dict(inputs)
    for name in ("input_ids", "position_ids", KEPT_ROWS):
        if name in inputs:
            padded[name] = _extended(inputs[name], missing)
    if ATTENTION_ROWS in inputs:
        missing = num_attention_rows - len(inputs[ATTENTION_ROWS])
        padded[ATTENTION_ROWS] = _extended(inputs[ATTENTION_ROWS], missing)
    return padded | _spare_sequence(inputs, missing, spare_blocks) if missing else padded


def _spare_sequence(inputs: Inputs, num_rows: int, blocks: Ids) -> Inputs:
    """What tells the sequences apart, with one more at the end."""
    indices, begins = inputs["block_indices"], inputs["subsequence_begins"]
    return {
        "past_lens": _extended(inputs["past_lens"], 1),
        "subsequence_begins": _followed(begins, int(begins[-1]) + num_rows),
        "block_indices": np.concatenate((indices, blocks)).astype(np.int32),
        "block_indices_begins": _followed(
            inputs["block_indices_begins"], len(indices) + len(blocks)
        ),
        "max_context_len": np.array(max(int(inputs["max_context_len"]), num_rows), np.int32),
    }


def _extended(array: _Array, num_zeros: int) -> _Array:
    return np.concatenate((array, np.zeros(num_zeros, array.dtype)))


def _followed(array: _Array, value: int) -> _Array:
    return np.concatenate((array, np.array([value], array.dtype)))


def _ranges(starts: Sequence[int], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """[start, start + count) for each pair, in one array."""
    parts = [
        np.arange(start, start + count, dtype=np.int64)
        for start, count in zip(starts, counts, strict=True)
    ]
    return np.concatenate(parts)
