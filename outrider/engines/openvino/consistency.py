"""Which calls of this engine, on this CPU, compute the same bits; found by trying at start-up.

Kernels are chosen by the number of rows of a product, and with another kernel the last bits may
change. The numbers concerned depend on the CPU: with bf16 on one with AMX, products of up to four
rows differ from larger ones (decision 0002). So each size of call computes the same tokens once,
before the engine serves, and calls of a size that differs are padded to one that does not. In f32
without VNNI instructions large calls differ, from some 90 rows on: a larger call is then computed
as several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from outrider.engines.base import Logits
from outrider.errors import EngineError

PROBE_ROWS: Final = 48
"""Rows of the call that the others are compared with."""
_HEAD_PROBE_ROWS: Final = 16
"""Rows of the calls that try numbers of rows of the output head."""
_LARGER_ROWS: Final = (64, 128)
LONG_PROBE_ROWS: Final = 256
"""Rows of a call like a large chunk of a prompt."""
_CHUNK_ROWS: Final = 32
"""Rows of the calls into which the long probe is cut, to compare."""
_INEXACT_ROWS: Final = (1, 4)
"""Rows of further calls that go into the fingerprint of engines whose calls need not agree."""
_FEW_LOGITS: Final = (1, 2, 4, 8)
"""Rows of the output head that are tried; kernels differ for the fewest."""
_COMPARED_LOGITS: Final = 8
"""Rows compared of a long call."""

Compute: TypeAlias = Callable[[int, int, int], Logits]
"""compute(past, n, r): the logits [r, V] of the last r of n probe tokens, the first of which is at
position `past`, in a call of n rows. The KV before it is that of earlier calls. A later call may
overwrite the result."""


class Agreement(NamedTuple):
    """Calls that give the same bits."""

    min_logits: int
    """Fewest rows of the output head."""
    min_rows: int
    """Fewest rows of a call."""
    max_rows: int
    """Most rows of a call; 0: any number."""


def compute_reference(compute: Compute, max_tokens: int) -> Logits:
    """[n, V] what every other call is compared with, of the probe's first n tokens."""
    most = min(PROBE_ROWS, max_tokens)
    return compute(0, most, most).copy()


def compute_samples(compute: Compute, max_tokens: int) -> Logits:
    """[n, V] what calls of few and of many rows compute, where they need not agree."""
    counts = [count for count in _INEXACT_ROWS if count <= max_tokens]
    few = [compute(0, count, count).copy() for count in counts]
    return np.concatenate([*few, compute_reference(compute, max_tokens)])


def least_logits(compute: Compute, max_tokens: int) -> int:
    """The least number of rows of the output head from which on all numbers give the same bits."""
    most = min(_HEAD_PROBE_ROWS, max_tokens)
    reference = compute(0, most, most).copy()
    return _least(
        [count for count in _FEW_LOGITS if count < most],
        most,
        lambda count: same_bits(compute(0, most, count), reference[-count:]),
    )


def least_rows(compute: Compute, reference: Logits, sizes: Sequence[int]) -> int:
    """The least of `sizes` from which on calls of all sizes give the same bits."""
    most = len(reference)
    return _least(
        [size for size in sizes if size < most],
        most,
        lambda size: same_bits(compute(0, size, size), reference[:size]),
    )


def most_rows(compute: Compute, reference: Logits, max_tokens: int) -> int:
    """The most rows of a call up to which all sizes give the same bits; 0: no limit. A size for
    which the context has no room is not tried and counts as one that differs. Raises EngineError if
    text would depend on how a prompt is cut into such calls."""
    most = PROBE_ROWS
    for num_rows in _LARGER_ROWS:
        if num_rows > max_tokens:
            break
        if not same_bits(compute(0, num_rows, num_rows)[: len(reference)], reference):
            break
        most = num_rows
    if max_tokens < LONG_PROBE_ROWS:
        return most
    in_chunks = _last_logits(compute, _CHUNK_ROWS)
    if most == _LARGER_ROWS[-1] and same_bits(_last_logits(compute, LONG_PROBE_ROWS), in_chunks):
        return 0
    if not same_bits(_last_logits(compute, most), in_chunks):
        raise EngineError(
            f"on this CPU calls of {most} rows compute other bits than the same tokens in calls of "
            f"{_CHUNK_ROWS}, so text would depend on how prompts are cut; set precision to another "
            "one (bf16 or f32), or exact to false if that may be"
        )
    return most


def _last_logits(compute: Compute, num_rows: int) -> Logits:
    """Last logits of the long probe, computed in calls of `num_rows`."""
    begins = range(0, LONG_PROBE_ROWS, num_rows)
    for past in begins:
        rows = compute(past, min(num_rows, LONG_PROBE_ROWS - past), _COMPARED_LOGITS)
    return rows.copy()


def same_bits(one: Logits, other: Logits) -> bool:
    """Whether two arrays are equal to the last bit."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _least(candidates: Sequence[int], most: int, agrees: Callable[[int], bool]) -> int:
    """The smallest candidate from which on all agree with `most`, which agrees with itself."""
    least = most
    for candidate in sorted(candidates, reverse=True):
        if not agrees(candidate):
            break
        least = candidate
    return least
