"""The compiled models on one KV pool, and the proof that each call computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from outrider.engines.base import Logits, OverlappedWork, SequenceSlice, SizingRule, no_work
from outrider.engines.config import EngineConfig
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.engines.footprint import RESERVE_BYTES, check_pool, compiled_bytes, footprint
from outrider.engines.free_memory import free_memory, known_free_memory
from outrider.engines.kv_budget import BlockShape
from outrider.engines.load_stage import LoadStage, ReportStage, ignore_stage
from outrider.engines.openvino import agreed_calls
from outrider.engines.openvino.batch import CallLayout, Inputs
from outrider.engines.openvino.compiling import Compiler
from outrider.engines.openvino.consistency import (
    LONG_PROBE_ROWS,
    PROBE_ROWS,
    Agreement,
    compute_reference,
    compute_samples,
    least_logits,
    least_rows,
    most_rows,
    same_bits,
)
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.fixed_sizes import choose_sizes
from outrider.engines.openvino.kv import KvTensors
from outrider.engines.openvino.preparation import Preparation
from outrider.engines.openvino.request import Request
from outrider.errors import EngineError

log = structlog.get_logger()

_ANY = 0
"""In place of a number of rows: the model that takes any."""


class PagedModel:
    """The transformed model, compiled, on a KV pool of `num_blocks` blocks.

    With one thread, OpenVINO 2026.4 does not report an error of its shape inference: the call
    returns, the output is the previous call's, and later calls may do nothing either. So every
    call marks the memory it must write and looks whether it did. A model that failed once
    refuses all further calls: its state is unknown.
    """

    def __init__(
        self,
        model: ConvertedModel,
        config: EngineConfig,
        *,
        scratch_tokens: int,
        sizing: SizingRule,
        max_context_tokens: int,
        report: ReportStage = ignore_stage,
    ) -> None:
        """Compile, and find out which calls compute the same bits; `report` is called with both
        stages. Models for calls of exactly so
        many rows as some of `sizing.sizes` follow in the background, unless config.prepare_first.
        Raises EngineError, InsufficientMemoryError for a model or a pool that does not fit into the
        memory that is free, and ConfigError for a pool that is too small."""
        self._weights_bytes = model.weights.stat().st_size
        _check_memory(model, self._weights_bytes, config)
        report(LoadStage.COMPILE)
        compiler = Compiler(model, config)
        self.precision = compiler.precision
        free = compiler.free()
        self.block_bytes = KvTensors.block_bytes(free)
        self.block_tokens = KvTensors.block_tokens(free)
        self.kv_layout = KvTensors.layout(free)
        shape = BlockShape(self.block_bytes, self.block_tokens, scratch_tokens)
        size = config.kv_budget().decide(shape, free_memory)
        self.num_blocks = size.num_blocks
        self.pool_reason = size.reason
        check_pool(self.num_blocks * self.block_bytes, known_free_memory())
        spare = np.arange(2 * _num_spare_blocks(sizing, self.block_tokens), dtype=np.int32)
        spare += self.num_blocks
        padding_blocks, self._trial_blocks = np.split(spare, 2)
        self.kv = KvTensors(free, self.num_blocks + len(spare))
        self._requests = {_ANY: Request(free, self.kv)}
        self._failure = ""
        self._preparation: Preparation | None = None
        self.busy_s = 0.0
        """See base.Engine."""
        self._vocabulary_size = model.facts.vocabulary_size
        self.layout = CallLayout(sizing, 1, config.exact, padding_blocks)
        """How calls are laid out; with `exact` they are filled up, and cut, so far that all agree.
        """
        room = self.num_blocks * self.block_tokens - scratch_tokens
        max_tokens = min(room, max_context_tokens - scratch_tokens)
        report(LoadStage.COMPARE)
        reference = self._agree(max_tokens, model.directory, free)
        self.fingerprint = fingerprint_of(reference)
        """See EngineInfo."""
        prepare = partial(self._prepare, compiler, reference)
        fixed = self._fixed_sizes(config)
        self._preparation = preparation = Preparation(fixed, prepare, compiler.finish)
        if config.prepare_first:
            preparation.wait()

    def infer(
        self,
        inputs: Inputs,
        last_slot: tuple[int, int],
        num_rows: int,
        overlapped_work: OverlappedWork = no_work,
    ) -> Logits:
        """[num_rows, V] logits, in memory that a later call may overwrite.

        `last_slot` is the block and the slot of a token of this call; `overlapped_work` is called
        while it computes. Raises EngineError.
        """
        if self._failure:
            raise EngineError(f"the model failed before ({self._failure}); restart the engine")
        with self._failing():
            request = self._start(inputs, last_slot)
        try:
            overlapped_work()
        finally:
            with self._failing():
                logits = self._finish(request, last_slot, num_rows)
        if self._preparation is not None:
            self._preparation.called()
        return logits

    def release(self) -> None:
        """Give the memory back; no call may follow."""
        if self._preparation is not None:
            self._preparation.stop()
        self._requests.clear()
        self.kv.release()

    def _agree(self, max_tokens: int, directory: Path, compiled: Any) -> Logits:
        """Find the layout with which all calls compute the same bits (consistency), or recall it
        (agreed_calls); returns the probe's logits [n, V]. Without `exact`, the logits of calls of
        several sizes. Raises EngineError if no such layout exists."""
        if not self.layout.exact:
            return compute_samples(self._compute_probe, max_tokens)
        reference = compute_reference(self._compute_probe, max_tokens)
        facts = agreed_calls.known_facts(
            directory, compiled, self._layout_facts(reference, max_tokens)
        )
        known = agreed_calls.recall(directory, facts) if facts is not None else None
        found = known or self._compare(reference, max_tokens)
        if known is None and facts is not None:
            agreed_calls.remember(directory, facts, found)
        self._lay_out(found)
        log.info(
            "calls_agree",
            min_rows=found.min_rows,
            min_logits=found.min_logits,
            max_rows=found.max_rows or None,
            remembered=known is not None,
        )
        return reference

    def _compare(self, reference: Logits, max_tokens: int) -> Agreement:
        """Compute calls of all sizes; each comparison keeps to what those before it found. Raises
        EngineError."""
        compute, sizing = self._compute_probe, self.layout.sizing
        found = Agreement(least_logits(compute, max_tokens), min_rows=1, max_rows=0)
        self._lay_out(found)
        tried = [*sizing.sizes, sizing.padded(sizing.max_prepared + 1)]
        found = found._replace(min_rows=least_rows(compute, reference, tried))
        self._lay_out(found)
        return found._replace(max_rows=most_rows(compute, reference, max_tokens))

    def _lay_out(self, found: Agreement) -> None:
        self.layout = replace(
            self.layout,
            min_logits=found.min_logits,
            sizing=self.layout.sizing.at_least(found.min_rows),
            max_rows=found.max_rows,
        )

    def _layout_facts(self, reference: Logits, max_tokens: int) -> agreed_calls.Facts:
        """The facts that the agreement depends on, besides the model and the machine."""
        return {
            "fingerprint": fingerprint_of(reference).hex(),
            "sizes": list(self.layout.sizing.sizes),
            "quantum": self.layout.sizing.quantum,
            "block_tokens": self.block_tokens,
            "max_tokens": min(max_tokens, LONG_PROBE_ROWS),
        }

    def _compute_probe(self, past: int, num_rows: int, num_logits: int) -> Logits:
        """consistency.Compute, on the first blocks of the pool: before anybody has them."""
        count = -(-(past + num_rows + 1) // self.block_tokens)
        blocks = np.arange(min(count, self.num_blocks), dtype=np.int32)
        tokens = probe_ids(self._vocabulary_size, past + num_rows)[past:]
        part = SequenceSlice(0, tokens, past, blocks, num_logits)
        block, slot = divmod(past + num_rows - 1, self.block_tokens)
        return self.infer(self.layout.inputs([part]), (block, slot), num_logits)

    def _fixed_sizes(self, config: EngineConfig) -> tuple[int, ...]:
        """The sizes of calls that get a model of their own, as far as memory allows."""
        asked = [size for size in self.layout.sizing.sizes if size <= config.max_fixed_rows]
        free = known_free_memory()
        chosen = choose_sizes(
            asked,
            self._weights_bytes,
            None if free is None else free.num_bytes,
            self.num_blocks * self.block_bytes,
            config.max_fixed_bytes,
        )
        log.info(
            "call_sizes_chosen",
            num_rows=chosen,
            num_bytes=len(chosen) * compiled_bytes(self._weights_bytes),
            left_out=asked[len(chosen) :],
        )
        return chosen

    def _prepare(self, compiler: Compiler, reference: Logits, num_rows: int) -> None:
        """In the preparation's thread, beside calls: one call, since the first is slow; then calls
        of this size are its own, if it computes what the others do. Raises EngineError if others
        have taken the memory meanwhile."""
        needed = compiled_bytes(self._weights_bytes) + RESERVE_BYTES
        free = known_free_memory()
        if free is not None and free.num_bytes < needed:
            raise EngineError(f"{free.num_bytes} bytes are free, {needed} are needed")
        request = Request(compiler.fixed(num_rows), self.kv)
        count = min(num_rows, len(reference))
        tokens = probe_ids(self._vocabulary_size, count)
        part = SequenceSlice(0, tokens, 0, self._trial_blocks, count)
        only = SizingRule((num_rows,), self.layout.sizing.quantum)
        request.start(replace(self.layout, sizing=only).inputs([part]))
        request.wait()
        logits = request.logits()[:count]
        if self.layout.exact and not same_bits(logits, reference[:count]):
            log.warning("call_size_differs", num_rows=num_rows)
            return
        self._requests[num_rows] = request

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """No call follows one that failed."""
        try:
            yield
        except (RuntimeError, EngineError) as error:
            self._failure = str(error)
            raise EngineError(f"the model failed: {error}") from error

    def _start(self, inputs: Inputs, last_slot: tuple[int, int]) -> Request:
        request = self._requests.get(len(inputs["input_ids"])) or self._requests[_ANY]
        request.mark()
        self.kv.mark(last_slot)
        request.start(inputs)
        return request

    def _finish(self, request: Request, last_slot: tuple[int, int], num_rows: int) -> Logits:
        busy_s = request.busy_s
        request.wait()
        self.busy_s += request.busy_s - busy_s
        logits = request.logits()
        if len(logits) != self.layout.num_logits(num_rows) or self.kv.is_marked(last_slot):
            raise EngineError("the model returned no logits; restart the engine")
        logits = logits[:num_rows]
        if np.isnan(logits[..., 0]).any():
            raise EngineError("the logits are not numbers")
        return logits


def _check_memory(model: ConvertedModel, weights_bytes: int, config: EngineConfig) -> None:
    """Raises InsufficientMemoryError before loading a model that would not fit. A pool given in
    blocks is left out: its bytes are unknown until the model is loaded."""
    footprint(weights_bytes, model.facts.vocabulary_size, config.kv_bytes, process_bytes=0).check(
        known_free_memory()
    )


def _num_spare_blocks(sizing: SizingRule, block_tokens: int) -> int:
    """For as many rows as a call is padded with, or tried with, and a scratch token."""
    most = max(2 * sizing.max_prepared, PROBE_ROWS)
    return -(-(most + 1) // block_tokens)
