"""From prompt log probabilities to rows (pure).

The runtime answers with one mapping per prompt position whose KV it computed; what it took from
its cache has none. So rows are counted from the end: the last one is behind the last prompt token.

A mapping holds the likeliest ids with ranks 1, 2, ..., and behind them, from 1.3.0rc11 on, one more
entry for the token that really followed; under reuse that is another position's token. Its rank
counts the ids above it, so it may share a rank with an id of equal score: the first of a rank is
the row's own, whatever was drafted.
"""

from __future__ import annotations

import numpy as np

from outrider.engines.base import LogitsRows
from outrider.engines.tensorrt_llm.api import TokenLogprobs
from outrider.errors import EngineError


def last_rows(answer: TokenLogprobs | None, num_rows: int, num_candidates: int) -> LogitsRows:
    """The last num_rows rows of an answer, or as many as it has: [r, c] with r <= num_rows.

    Raises EngineError for a row without its num_candidates likeliest ids.
    """
    wanted = (answer or ())[-num_rows:] if num_rows else ()
    shape = (len(wanted), num_candidates)
    logits, ids = np.empty(shape, np.float32), np.empty(shape, np.int32)
    for row, candidates in enumerate(wanted):
        ranked: dict[int | None, tuple[int, float]] = {}
        for token, one in candidates.items():
            ranked.setdefault(one.rank, (token, one.logprob))
        for column in range(num_candidates):
            if column + 1 not in ranked:
                raise EngineError(
                    f"a row lacks the id of rank {column + 1} of {num_candidates}; "
                    "check prompt_logprobs in this version of TensorRT-LLM"
                )
            ids[row, column], logits[row, column] = ranked[column + 1]
    return LogitsRows(logits, ids)


def leading_rows(first: LogitsRows, last: LogitsRows, num_rows: int) -> LogitsRows:
    """The first row, followed by the last ones if these reach up to it; else alone."""
    if len(last.logits) < num_rows - 1:
        return first
    assert first.ids is not None
    assert last.ids is not None
    behind = slice(len(last.logits) - (num_rows - 1), None)
    return LogitsRows(
        np.concatenate([first.logits, last.logits[behind]]),
        np.concatenate([first.ids, last.ids[behind]]),
    )
