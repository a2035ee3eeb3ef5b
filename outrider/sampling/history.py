"""What the penalties know of the sequence: which ids it has, and how often the reply has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import Floats, Ids
from outrider.sampling.params import SamplingParams


class History:
    """Distinct ids of prompt and reply, each with its count in the reply.

    Adding an id is O(1); nothing is recounted when a penalty is applied.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._slots: dict[int, int] = {}
        self._ids: Ids = np.empty(64, dtype=np.int32)
        self._counts: Floats = np.empty(64, dtype=np.float64)
        for token in prompt:
            self._slot(token)

    def add(self, token: int) -> None:
        """Count one more token of the reply."""
        # First the slot: making one may move the counts.
        slot = self._slot(token)
        self._counts[slot] += 1.0

    def penalize(self, scores: Floats, params: SamplingParams, ids: Ids | None) -> None:
        """Apply repetition, presence and frequency penalties to `scores` [c] in place.

        Columns stand for the ascending `ids`, or for themselves.
        """
        columns, counts = self._columns(ids)
        seen = scores[columns]
        factor = params.repetition_penalty
        seen = np.where(seen > 0, seen / factor, seen * factor)
        seen -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
        scores[columns] = seen

    def _columns(self, ids: Ids | None) -> tuple[npt.NDArray[np.intp], Floats]:
        size = len(self._slots)
        seen, counts = self._ids[:size].astype(np.intp), self._counts[:size]
        if ids is None:
            return seen, counts
        at = np.minimum(np.searchsorted(ids, seen), len(ids) - 1)
        present = ids[at] == seen
        return at[present], counts[present]

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.resize(self._ids, 2 * slot)
                self._counts = np.resize(self._counts, 2 * slot)
            self._ids[slot], self._counts[slot] = token, 0.0
        return slot
