"""One compiled model with one infer request, and the proof that each call computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from outrider.errors import EngineError
from services.inference.engines.base import Logits
from services.inference.engines.config import EngineConfig
from services.inference.engines.memory.budget import BlockShape
from services.inference.engines.memory.free import free_memory
from services.inference.engines.openvino.batch import Inputs
from services.inference.engines.openvino.convert import ConvertedModel
from services.inference.engines.openvino.graph import make_paged
from services.inference.engines.openvino.kv import KvTensors


class PagedModel:
    """The transformed model, compiled, on a KV pool of `num_blocks` blocks.

    With one thread, OpenVINO 2026.4 does not report an error of its shape inference: the call
    returns, the output is the previous call's, and later calls may do nothing either. So every
    call marks the memory it must write and looks whether it did. A model that failed once
    refuses all further calls: its state is unknown.
    """

    def __init__(self, model: ConvertedModel, config: EngineConfig, scratch_tokens: int) -> None:
        """Compile. Raises EngineError, and ConfigError for a pool that is too small."""
        compiled = _compile(model, config)
        self.block_bytes = KvTensors.block_bytes(compiled)
        self.block_tokens = KvTensors.block_tokens(compiled)
        shape = BlockShape(self.block_bytes, self.block_tokens, scratch_tokens)
        size = config.kv_budget().decide(shape, free_memory)
        self.num_blocks, self.pool_reason = size.num_blocks, size.reason
        self.spare_block = self.num_blocks
        """A block beyond the pool, for rows that nobody asked for."""
        self.kv = KvTensors(compiled, self.num_blocks + 1)
        self._request: Any = compiled.create_infer_request()
        self.kv.bind(self._request)
        self._failure = ""

    def infer(self, inputs: Inputs, last_slot: tuple[int, int], num_rows: int) -> Logits:
        """[num_rows, V] logits, in memory of their own.

        `last_slot` is the block and the slot of a token of this call. Raises EngineError.
        """
        if self._failure:
            raise EngineError(f"the model failed before ({self._failure}); restart the engine")
        try:
            return self._infer(inputs, last_slot, num_rows)
        except (RuntimeError, EngineError) as error:
            self._failure = str(error)
            raise EngineError(f"the model failed: {error}") from error

    def release(self) -> None:
        """Give the memory back; no call may follow."""
        self._request = None
        self.kv.release()

    def _infer(self, inputs: Inputs, last_slot: tuple[int, int], num_rows: int) -> Logits:
        for name, array in inputs.items():
            self._request.set_tensor(name, ov.Tensor(array))
        self._request.get_output_tensor(0).data[..., 0] = np.nan
        self.kv.mark(last_slot)
        self._request.infer()
        logits = self._request.get_output_tensor(0).data
        if len(logits) != num_rows or self.kv.is_marked(last_slot):
            raise EngineError("the call computed nothing")
        if np.isnan(logits[..., 0]).any():
            raise EngineError("the logits are not numbers")
        # Copied, because the next call writes its logits into the same memory.
        copied: Logits = logits[:, 0].copy()
        return copied


def _compile(model: ConvertedModel, config: EngineConfig) -> Any:
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(config.threads),
        "INFERENCE_PRECISION_HINT": config.precision,
        "KV_CACHE_PRECISION": "f16" if config.precision == "bf16" else config.precision,
        # The weights' own group size: any other is slower by a third (decision 0002).
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
    }
    try:
        core = ov.Core()
        graph = core.read_model(model.graph)
        make_paged(graph, duplicate_rows=config.exact)
        return core.compile_model(graph, "CPU", settings)
    except RuntimeError as error:
        raise EngineError(f"the model cannot be loaded: {error}") from error
