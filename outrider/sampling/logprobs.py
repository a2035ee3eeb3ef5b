"""Log probabilities of a reply's tokens, and of the likeliest tokens in their places.

They are those of the model itself: the log-softmax of its row of scores before penalties, biases,
temperature, filters, grammar and noise (vLLM's `raw_logprobs`, its default). So they do not depend
on how the reply is sampled, nor on drafts, batch or replica: like the row, they depend only on the
ids before the place.

Computed in float64 from the row, then rounded to float32, which is what travels. numpy's exp and
log may differ in the last bit of a float64 between CPU families: a rounded value then differs for
about one in ten million. Within one model identity they are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.sampling.gumbel import Ids
from outrider.session.types import MIN_LOGPROB, ScoredToken, TokenLogprobs


def token_logprobs(
    row: npt.NDArray[np.float32], chosen: int, count: int, ids: Ids | None = None
) -> TokenLogprobs:
    """Log probabilities of the token `chosen` and the `count` likeliest (fewer if the row has
    fewer), from the model's row [c], whose best is finite. Column j is id j; with candidate `ids`
    [c] the row already has log probabilities, and `chosen` is among them."""
    total = _log_sum_exp(row) if ids is None else 0.0

    def scored(column: int) -> ScoredToken:
        value = min(0.0, max(MIN_LOGPROB, float(row[column]) - total))
        token = column if ids is None else int(ids[column])
        return ScoredToken(token, float(np.float32(value)))

    own = chosen if ids is None else int(np.flatnonzero(ids == chosen)[0])
    return TokenLogprobs(scored(own), tuple(map(scored, _likeliest(row, count, ids))))


def _log_sum_exp(row: npt.NDArray[np.float32]) -> float:
    values = row.astype(np.float64)
    top = values.max()
    return float(top) + math.log(float(np.exp(np.subtract(values, top, out=values)).sum()))


def _likeliest(row: npt.NDArray[np.float32], count: int, ids: Ids | None) -> Sequence[int]:
    """Columns of the `count` largest by score, then by lowest id."""
    if count <= 0:
        return ()
    near = np.arange(len(row))
    if count < len(row):
        least = np.partition(row, len(row) - count)[len(row) - count]
        near = np.flatnonzero(row >= least)  # all that are equal to the last one too
    names = near if ids is None else ids[near]
    order = np.lexsort((names, -row[near]))[:count]
    return [int(column) for column in near[order]]
