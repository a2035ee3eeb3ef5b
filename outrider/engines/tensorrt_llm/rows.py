"""Turns prompt log probabilities into rows (pure).

The runtime answers with one mapping per prompt position whose KV it computed, and none for those
from its cache. So rows are counted from the end: the last one is behind the last prompt token.

A mapping holds the likeliest ids with ranks 1, 2, ..., and behind them, from 1.3.0rc11 on, one more
entry for the token that really followed; under reuse that is another position's token. Its rank
counts the ids above it, so it may share a rank with an id of equal score: the first of a rank is
the row's own, whatever was drafted.

A checkpoint may score more ids than the vocabulary has (padding of its embedding). They are removed
from each row, so that none can be chosen; a row with too few ids left is not used.
"""

from __future__ import annotations

import numpy as np

from outrider.engines.base import LogitsRows
from outrider.engines.tensorrt_llm.api import TokenLogprobs
from outrider.errors import EngineError

NO_ID = -1
"""Fills the place of an id missing from a row."""


def last_rows(
    answer: TokenLogprobs | None,
    num_rows: int,
    num_candidates: int,
    num_ids: int,
    num_ranks: int = 0,
) -> LogitsRows:
    """The last num_rows rows of an answer, or as many as it has: [r, c] with r <= num_rows.

    Each has its num_candidates likeliest ids below num_ids, from ranks 1 to num_ranks (0:
    num_candidates). A row with too few of them ends in NO_ID; `whole_rows` cuts before it. Raises
    EngineError if a row has no entry for a rank.
    """
    wanted = (answer or ())[-num_rows:] if num_rows else ()
    shape = (len(wanted), num_candidates)
    logits, ids = np.full(shape, -np.inf, np.float32), np.full(shape, NO_ID, np.int32)
    for row, candidates in enumerate(wanted):
        ranked: dict[int | None, tuple[int, float]] = {}
        for token, one in candidates.items():
            ranked.setdefault(one.rank, (token, one.logprob))
        column = 0
        for rank in range(1, (num_ranks or num_candidates) + 1):
            if column == num_candidates:
                break
            if rank not in ranked:
                raise EngineError(
                    f"a row lacks the id of rank {rank} of {num_ranks or num_candidates}; "
                    "check prompt_logprobs in this version of TensorRT-LLM"
                )
            token, logprob = ranked[rank]
            if token < num_ids:
                ids[row, column], logits[row, column] = token, logprob
                column += 1
    return LogitsRows(logits, ids)


def whole_rows(rows: LogitsRows) -> LogitsRows:
    """The rows before the first one with NO_ID."""
    assert rows.ids is not None
    lacking = np.flatnonzero((rows.ids == NO_ID).any(axis=1))
    count = int(lacking[0]) if len(lacking) else len(rows.ids)
    return LogitsRows(rows.logits[:count], rows.ids[:count])


def leading_rows(first: LogitsRows, last: LogitsRows, num_rows: int) -> LogitsRows:
    """The first row, followed by the last ones if these reach up to it; otherwise only the
    first."""
    if len(last.logits) < num_rows - 1:
        return first
    assert first.ids is not None
    assert last.ids is not None
    behind = slice(len(last.logits) - (num_rows - 1), None)
    return LogitsRows(
        np.concatenate([first.logits, last.logits[behind]]),
        np.concatenate([first.ids, last.ids[behind]]),
    )
