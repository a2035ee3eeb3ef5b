"""How long documents are, over all shards. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one shard, in order."""

    parts: npt.NDArray[np.int64]
    """[rows] which part of its document each row is."""
    tokens: npt.NDArray[np.int64]
    """[rows]"""


def document_lengths(shards: Iterable[Part]) -> npt.NDArray[np.int64]:
    """Tokens of each document; a row that is no first part belongs to the row before it."""
    rows = list(shards)
    if not rows:
        return np.zeros(0, np.int64)
    parts = np.concatenate([one.parts for one in rows])
    tokens = np.concatenate([one.tokens for one in rows])
    if not len(tokens):
        return tokens
    begins = np.flatnonzero((parts == 0) | (np.arange(len(parts)) == 0))
    return np.asarray(np.add.reduceat(tokens, begins), np.int64)


def percentiles(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    """Name to tokens: of so many documents none is longer. Empty without documents."""
    if not len(lengths):
        return {}
    ranked = np.sort(lengths)
    at = [max(0, int(np.ceil(share * len(ranked))) - 1) for share in QUANTILES]
    names = [f"p{share * 100:g}" if share < 1 else "max" for share in QUANTILES]
    return {name: int(ranked[index]) for name, index in zip(names, at, strict=True)}
