"""The OpenVINO engine: the contract on top of one compiled model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engines.base import (
    EngineInfo,
    Ids,
    Logits,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    SizingRule,
    check_block_ids,
    check_opening,
    check_slices,
    ladder,
    no_work,
)
from outrider.engines.config import EngineConfig
from outrider.engines.load_stage import ReportStage, ignore_stage
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.model import PagedModel
from outrider.errors import ConfigError, EngineError

_LADDER_ROWS = 32
"""Calls of up to so many rows are rounded up to few sizes, whether or not these have models of
their own: a size that the last call had costs least."""
_QUANTUM = 16
"""Larger calls are rounded up to a multiple of this: a number of rows that was never seen before
costs tens of milliseconds, the first time (decision 0004)."""


class OpenVinoEngine:
    """Implements base.Engine on the CPU.

    Exactness (decision 0002): with `exact`, a sequence of one row enters attention with two, so
    one kernel computes every row; its copy's KV lands in the scratch token. The kernel also
    clears the rest of the block that holds a slice's last token.
    """

    def __init__(
        self, model: ConvertedModel, config: EngineConfig, report: ReportStage = ignore_stage
    ) -> None:
        """Compile the model and allocate the pool; `report` is called with each stage. Raises
        EngineError, and ConfigError for a pool that is too small, or a model that the memory has no
        room for."""
        most = model.facts.max_context_tokens
        asked = config.max_context_tokens
        if asked > most:
            raise ConfigError(f"max_context_tokens is {asked}; the model has at most {most}")
        scratch_tokens = 1 if config.exact else 0
        self._model: PagedModel = PagedModel(
            model,
            config,
            scratch_tokens=scratch_tokens,
            sizing=SizingRule(ladder(max(config.max_fixed_rows, _LADDER_ROWS)), _QUANTUM),
            max_context_tokens=asked or most,
            report=report,
        )
        self._info = EngineInfo(
            name="openvino",
            vocabulary_size=model.facts.vocabulary_size,
            block_tokens=self._model.block_tokens,
            num_blocks=self._model.num_blocks,
            block_bytes=self._model.block_bytes,
            max_context_tokens=asked or most,
            min_rows=1,
            scratch_tokens=scratch_tokens,
            sizing=self._model.layout.sizing,
            exact=config.exact,
            precision=self._model.precision,
            fingerprint=self._model.fingerprint,
            pool_reason=self._model.pool_reason,
            kv_layout=self._model.kv_layout,
        )
        self._head_ids = model.head_ids
        self._opened: set[int] = set()
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def busy_s(self) -> float:
        return self._model.busy_s

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        self._check_not_closed()
        check_opening(self._info, self._opened, sequence, prompt)
        self._opened.add(sequence)

    def close_sequence(self, sequence: int) -> None:
        self._check_not_closed()
        self._opened.discard(sequence)

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        self._check_not_closed()
        check_slices(self._info, self._opened, slices)
        if not slices:
            return []
        first, *others = self._model.layout.calls(slices)
        logits = self._infer(first, overlapped_work)
        if others:
            # Each call overwrites the logits of the one before.
            logits = np.concatenate([logits.copy(), *(self._infer(it).copy() for it in others)])
        answers = []
        begin = 0
        named = self._head_ids is not None
        for part in slices:
            part_rows = logits[begin : begin + part.num_rows]
            answers.append(LogitsRows(part_rows, self._named(part_rows) if named else None))
            begin += part.num_rows
        return answers

    def copy_block(self, source: int, target: int) -> None:
        self._check_not_closed()
        check_block_ids(self._info, (source, target))
        self._model.kv.copy(source, target)

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        return self._model.kv.export(blocks)

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        self._model.kv.load(blocks, data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._opened.clear()
            self._model.release()

    def _infer(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> Logits:
        """[n, V] the rows that these ask for, of one call."""
        inputs = self._model.layout.inputs(slices)
        num_rows = sum(part.num_rows for part in slices)
        return self._model.infer(inputs, self._last_slot(slices[-1]), num_rows, overlapped_work)

    def _named(self, rows: Logits) -> Ids | None:
        """[r, c] the ids of a trimmed head's columns, the same in every row."""
        return None if self._head_ids is None else np.broadcast_to(self._head_ids, rows.shape)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; create a new one")

    def _last_slot(self, part: SequenceSlice) -> tuple[int, int]:
        """Block and slot of the slice's last token."""
        index, slot = divmod(part.past + len(part.tokens) - 1, self._info.block_tokens)
        return int(part.blocks[index]), slot
