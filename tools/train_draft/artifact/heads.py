"""Which ids the draft's head keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from tools.train_draft.corpus.records import Reply

_RUNNERS_UP = 4
"""Likeliest ids of each row that count too: they show what the target nearly said."""


def head_ids(
    replies: Iterable[Reply], num_rows: int, always: Collection[int], vocabulary_size: int
) -> npt.NDArray[np.uint32]:
    """[num_rows] ids, ascending: those of `always`, then the most frequent of the target's text.

    An id said counts 1, one that was among the row's likeliest its probability. Ids that never
    came up follow in id order: byte-level BPE numbers them by how frequent they were when the
    vocabulary was made.
    """
    weights = np.zeros(vocabulary_size)
    for reply in replies:
        weights += np.bincount(reply.ids, minlength=vocabulary_size)
        top = reply.top_ids[:, :_RUNNERS_UP].ravel()
        mass = np.exp(reply.top_logprobs[:, :_RUNNERS_UP].astype(np.float64)).ravel()
        weights += np.bincount(top, mass, minlength=vocabulary_size)
    weights[list(always)] = np.inf
    ranked = np.argsort(-weights, kind="stable")
    return np.sort(ranked[:num_rows]).astype(np.uint32)


def coverage(replies: Iterable[Reply], ids: npt.NDArray[np.uint32]) -> float:
    """Share of the replies' tokens that a head of these ids can say."""
    counts = Counter(token for reply in replies for token in reply.ids.tolist())
    kept = set(ids.tolist())
    return sum(n for token, n in counts.items() if token in kept) / max(1, counts.total())
