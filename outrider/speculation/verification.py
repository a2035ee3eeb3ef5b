"""The acceptance rule: a draft is accepted if it is the token that the sampler chooses there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.errors import EngineError
from outrider.sampling.logprobs import token_logprobs
from outrider.sampling.sampler import Sampler
from outrider.session.types import TokenLogprobs


class Verification(NamedTuple):
    """The result of verifying the drafts of one call: what it commits."""

    ids: tuple[int, ...]
    """Committed tokens in order: the accepted drafts, then at most one more."""
    accepted: int
    """How many of `ids`, from the first on, are drafts."""
    num_lossy: int
    """How many of those drafts were let through though the sampler chose another."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each of `ids`, if the session wants them."""


def verify(
    sampler: Sampler,
    logits_rows: npt.NDArray[np.float32],
    ids_rows: npt.NDArray[np.int32] | None,
    drafts: Sequence[int],
    position: int,
    reply_push: Callable[[int], bool],
    choices: Sequence[int] = (),
) -> Verification:
    """Verify drafts against the rows [r, c]; row i is for absolute position `position + i`.

    At each row the sampler chooses. A draft equal to the choice is accepted and the next row
    counts; otherwise the choice is committed and the rest is void. The row after the last draft
    gives one token more. `logits_rows` has len(drafts) + 1 rows, or only the first of them: drafts
    without a row are void. Every committed id is observed and pushed; `reply_push` returns whether
    the reply is over, which ends the step. With shared noise (arXiv 2408.07978) the committed text
    is that of the model without drafts, for any drafts whatsoever, at any temperature.

    Lossy, with `acceptance_threshold` above 0: a draft at least that likely is accepted though
    another was chosen. `choices` are the sampler's choices at the first rows, as far as known.
    Raises EngineError when rows are missing or not valid.
    """
    num_drafts = len(drafts)
    _check_rows(len(logits_rows), num_drafts)
    num_logprobs = sampler.params.num_logprobs
    if not num_drafts and num_logprobs < 0:  # as most calls of many sessions
        columns = None if ids_rows is None else ids_rows[0]
        chosen = choices[0] if choices else sampler.choose(logits_rows[0], position, columns)
        sampler.observe(chosen)
        reply_push(chosen)
        return Verification((chosen,), 0, 0)
    ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    accepted = num_lossy = 0
    for index, row in enumerate(logits_rows):
        draft = drafts[index] if index < num_drafts else None
        columns = None if ids_rows is None else ids_rows[index]
        known = index < len(choices)
        chosen = choices[index] if known else sampler.choose(row, position + index, columns)
        if draft is not None and draft != chosen and _tolerable(sampler, row, draft, columns):
            num_lossy += 1
            chosen = draft
        ids.append(chosen)
        accepted += chosen == draft
        if num_logprobs >= 0:
            logprobs.append(token_logprobs(row, chosen, num_logprobs, columns))
        sampler.observe(chosen)
        if reply_push(chosen) or chosen != draft:
            break
    return Verification(tuple(ids), accepted, num_lossy, tuple(logprobs))


def _check_rows(num_rows: int, num_drafts: int) -> None:
    if not 1 <= num_rows <= num_drafts + 1:
        raise EngineError(f"{num_drafts} drafts have 1 to {num_drafts + 1} rows, not {num_rows}")


def _tolerable(
    sampler: Sampler,
    row: npt.NDArray[np.float32],
    draft: int,
    columns: npt.NDArray[np.int32] | None,
) -> bool:
    threshold = sampler.params.acceptance_threshold
    return threshold > 0.0 and sampler.probability(row, draft, columns) >= threshold


def common_prefix_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Number of leading items (ids or characters) that are equal."""
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    return min(len(left), len(right))
