"""An engine that says again what another one said: the text of a real model, at a set pace.

So drafts are right as often as they are for that model, and a call takes what a call of a larger
one would. A row is the recorded one as long as the ids before it, as far as they are in the same
call, are the recorded ones; behind a draft that was wrong it is another. Chats that were not
recorded are answered as `PacedEngine` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bench.harness.paced_engine import PacedEngine, rows_of
from outrider.engines.base import Ids, LogitsRows, SequenceSlice
from outrider.engines.fake import FakeOptions

Replies: TypeAlias = Mapping[tuple[int, ...], tuple[int, ...]]
"""The reply's ids, its last one included, by the prompt's."""


def write_replies(path: Path, replies: Replies) -> None:
    """Keep them in a file for the replica's process."""
    path.write_text(json.dumps(list(replies.items())), encoding="utf-8")


def read_replies(path: Path) -> Replies:
    """The inverse of `write_replies`."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {tuple(prompt): tuple(reply) for prompt, reply in rows}


class RecordedEngine(PacedEngine):
    """Greedy replies alone: the recorded id is each row's likeliest."""

    def __init__(
        self, replies: Replies, ordinary: Sequence[int], options: FakeOptions, num_blocks: int
    ) -> None:
        super().__init__(ordinary, options, num_blocks)
        self._replies = replies
        self._texts: dict[int, npt.NDArray[np.int32]] = {}
        """By open sequence: prompt and reply."""

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        super().open(sequence, prompt, salt, num_candidates)
        ids = tuple(prompt.tolist())
        if ids in self._replies:
            self._texts[sequence] = np.array(ids + self._replies[ids], np.int32)

    def close_sequence(self, sequence: int) -> None:
        super().close_sequence(sequence)
        self._texts.pop(sequence, None)

    def _answer(self, slices: Sequence[SequenceSlice]) -> list[LogitsRows]:
        answers = super()._answer(slices)
        for at, part in enumerate(slices):
            text = self._texts.get(part.sequence)
            if text is not None and part.num_rows:
                answers[at] = rows_of(self._said(part, text)[-part.num_rows :])
        return answers

    def _said(self, part: SequenceSlice, text: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """[n, candidates] the rows of all tokens of a slice."""
        end = part.past + len(part.tokens)
        # One more than the call reads; behind the recorded text follows nothing that is asked.
        known = np.concatenate([text, np.zeros(max(0, end + 1 - len(text)), np.int32)])
        is_recorded = np.logical_and.accumulate(part.tokens == known[part.past : end])
        following = known[part.past + 1 : end + 1]
        best = np.where(is_recorded, following, following + 1) % self.info.vocabulary_size
        columns = best[:, None] + np.arange(self.info.num_candidates)
        return (columns % self.info.vocabulary_size).astype(np.int32)
