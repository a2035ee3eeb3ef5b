"""From rounds to the arrays of one call. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.inference.engines.base import Round
from services.inference.engines.openvino.graph import ATTENTION_ROWS, KEPT_ROWS, LOGIT_ROWS

Inputs: TypeAlias = dict[str, npt.NDArray[np.int64] | npt.NDArray[np.int32]]


def lay_out(rounds: Sequence[Round]) -> Inputs:
    """The arrays of make_paged's inputs, KV apart, one row per token."""
    counts = [len(part.tokens) for part in rounds]
    begins = list(accumulate(counts, initial=0))
    return {
        "input_ids": np.concatenate([part.tokens for part in rounds]).astype(np.int64),
        "position_ids": _ranges([part.past for part in rounds], counts),
        "past_lens": np.array([part.past for part in rounds], np.int32),
        "subsequence_begins": np.array(begins, np.int32),
        "block_indices": np.concatenate([part.blocks for part in rounds]).astype(np.int32),
        "block_indices_begins": np.array(
            list(accumulate((len(part.blocks) for part in rounds), initial=0)), np.int32
        ),
        "max_context_len": np.array(
            max(part.past + count for part, count in zip(rounds, counts, strict=True)), np.int32
        ),
        LOGIT_ROWS: _ranges(
            [end - part.num_rows for part, end in zip(rounds, begins[1:], strict=True)],
            [part.num_rows for part in rounds],
        ),
    }


def duplicate_single_rows(inputs: Inputs) -> Inputs:
    """Give every sequence of one row a copy of it inside attention, at the position behind.

    The copy's KV goes to the slot past the round's last token, the engine's scratch token.
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


def _ranges(starts: Sequence[int], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """[start, start + count) for each pair, in one array."""
    parts = [
        np.arange(start, start + count, dtype=np.int64)
        for start, count in zip(starts, counts, strict=True)
    ]
    return np.concatenate(parts)
