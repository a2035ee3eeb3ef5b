"""An engine of the reference itself, which may be made to say something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outrider.engines.base import (
    EngineInfo,
    Ids,
    Logits,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.fidelity.reference import Reference


class ReferenceEngine:
    """The rows of a model file, with noise of a standard deviation on every logit."""

    def __init__(self, path: Path, *, noise: float = 0.0, num_candidates: int = 0) -> None:
        self._reference = Reference(path)
        self._noise = noise
        self._rows: dict[int, Logits] = {}
        self.slices: list[SequenceSlice] = []
        self.is_closed = False
        self.busy_s = 0.0
        self.info = EngineInfo(
            name="reference",
            vocabulary_size=0,
            block_tokens=32,
            num_blocks=100,
            block_bytes=0,
            max_context_tokens=3200,
            scratch_tokens=1,
            num_candidates=num_candidates,
        )

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        assert not self._rows, "a sequence was left open"
        rows = self._reference.logits(self._reference.states([prompt])[0])
        noise = np.random.default_rng(0).standard_normal(rows.shape, np.float32)
        self._rows[sequence] = rows + np.float32(self._noise) * noise

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        self.slices += slices
        overlapped_work()
        ends = [part.past + len(part.tokens) for part in slices]
        return [
            LogitsRows(self._rows[part.sequence][end - part.num_rows : end])
            for part, end in zip(slices, ends, strict=True)
        ]

    def close_sequence(self, sequence: int) -> None:
        self._rows.pop(sequence, None)

    def copy_block(self, source: int, target: int) -> None:
        raise NotImplementedError

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        raise NotImplementedError

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True
