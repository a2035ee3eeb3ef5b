"""The compiled models on one KV pool, and the proof that each call computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from outrider.engines.base import Logits, OverlappedWork, no_work
from outrider.engines.config import EngineConfig
from outrider.engines.free_memory import free_memory
from outrider.engines.kv_budget import BlockShape
from outrider.engines.openvino.batch import Inputs, spare_call
from outrider.engines.openvino.compiling import Compiler, attention_rows
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.kv import KvTensors
from outrider.engines.openvino.paging import ATTENTION_ROWS, KEPT_ROWS
from outrider.engines.openvino.preparation import Preparation
from outrider.errors import EngineError

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
        fixed_sizes: Sequence[int] = (),
    ) -> None:
        """Compile; models for calls of exactly `fixed_sizes` rows follow in the background, unless
        config.prepare_first. Raises EngineError, and ConfigError for a pool that is too small."""
        compiler = Compiler(model, config, fixed_sizes)
        self.precision = compiler.precision
        free = compiler.free()
        self.block_bytes = KvTensors.block_bytes(free)
        self.block_tokens = KvTensors.block_tokens(free)
        shape = BlockShape(self.block_bytes, self.block_tokens, scratch_tokens)
        size = config.kv_budget().decide(shape, free_memory)
        self.num_blocks = size.num_blocks
        self.pool_reason = size.reason
        self.spare_blocks = _spare_blocks(self.num_blocks, fixed_sizes, self.block_tokens)
        """Blocks beyond the pool, for padding rows."""
        self.kv = KvTensors(free, self.num_blocks + len(self.spare_blocks))
        self._requests = {_ANY: self._request(free)}
        self._failure = ""
        self._exact = config.exact
        self._preparation = Preparation(compiler.sizes, partial(self._prepare, compiler))
        if config.prepare_first:
            self._preparation.wait()

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
        return logits

    def release(self) -> None:
        """Give the memory back; no call may follow."""
        self._preparation.stop()
        self._requests.clear()
        self.kv.release()

    def _request(self, compiled: Any) -> Any:
        request = compiled.create_infer_request()
        self.kv.bind(request)
        return request

    def _prepare(self, compiler: Compiler, num_rows: int) -> None:
        """In the preparation's thread, beside calls: one call, since the first is slow, that
        touches spare blocks alone; then calls of this size are its own."""
        request = self._request(compiler.fixed(num_rows))
        entering = attention_rows(num_rows, exact=self._exact)
        for name, array in spare_call(num_rows, entering, self.spare_blocks).items():
            if self._exact or name not in (ATTENTION_ROWS, KEPT_ROWS):
                request.set_tensor(name, ov.Tensor(array))
        request.infer()
        self._requests[num_rows] = request

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """No call follows one that failed."""
        try:
            yield
        except (RuntimeError, EngineError) as error:
            self._failure = str(error)
            raise EngineError(f"the model failed: {error}") from error

    def _start(self, inputs: Inputs, last_slot: tuple[int, int]) -> Any:
        request = self._requests.get(len(inputs["input_ids"])) or self._requests[_ANY]
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(array))
        request.get_output_tensor(0).data[..., 0] = np.nan
        self.kv.mark(last_slot)
        request.start_async()
        return request

    def _finish(self, request: Any, last_slot: tuple[int, int], num_rows: int) -> Logits:
        request.wait()
        logits: Logits = request.get_output_tensor(0).data[:, 0]
        if len(logits) != num_rows or self.kv.is_marked(last_slot):
            raise EngineError("the call computed nothing")
        if np.isnan(logits[..., 0]).any():
            raise EngineError("the logits are not numbers")
        return logits


def _spare_blocks(
    num_blocks: int, fixed_sizes: Sequence[int], block_tokens: int
) -> npt.NDArray[np.int32]:
    """Behind the pool's `num_blocks`: as many as the largest fixed call enters attention with."""
    num_spare = -(-2 * max(fixed_sizes, default=1) // block_tokens)
    return np.arange(num_blocks, num_blocks + num_spare, dtype=np.int32)
