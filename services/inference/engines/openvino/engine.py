"""The OpenVINO engine: one compiled model, one infer request, one KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from outrider.errors import EngineError
from services.inference.engines.base import EngineInfo, Ids, Logits, Round, Rows
from services.inference.engines.config import EngineConfig
from services.inference.engines.openvino.batch import duplicate_single_rows, lay_out
from services.inference.engines.openvino.convert import ConvertedModel
from services.inference.engines.openvino.graph import make_paged
from services.inference.engines.openvino.kv import KvTensors
from services.inference.engines.validation import check_block_ids, check_opening, check_rounds


class OpenVinoEngine:
    """Implements base.Engine on the CPU.

    Exactness (decision 0002): with `exact`, a sequence of one row enters attention with two, so
    one kernel computes every row; its copy's KV lands in the scratch token. The kernel also
    clears the rest of the block that holds a round's last token.
    """

    def __init__(self, model: ConvertedModel, config: EngineConfig) -> None:
        """Compile the model and allocate the pool. Raises EngineError."""
        compiled = _compile(model, config)
        block_bytes = KvTensors.block_bytes(compiled)
        num_blocks = config.num_blocks or config.kv_bytes // block_bytes
        if num_blocks < 1:
            raise EngineError(f"kv_bytes is {config.kv_bytes}; one block takes {block_bytes}")
        self._info = EngineInfo(
            name="openvino",
            vocabulary_size=model.facts.vocabulary_size,
            block_tokens=KvTensors.block_tokens(compiled),
            num_blocks=num_blocks,
            block_bytes=block_bytes,
            max_context_tokens=model.facts.max_context_tokens,
            min_rows=1,
            scratch_tokens=1 if config.exact else 0,
            exact=config.exact,
        )
        self._kv = KvTensors(compiled, num_blocks)
        self._request: Any = compiled.create_infer_request()
        self._kv.bind(self._request)
        self._opened: set[int] = set()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def open(self, sequence: int, prompt: Ids) -> None:
        self._check_not_closed()
        check_opening(self._info, self._opened, sequence, prompt)
        self._opened.add(sequence)

    def close_sequence(self, sequence: int) -> None:
        self._check_not_closed()
        self._opened.discard(sequence)

    def step(self, rounds: Sequence[Round]) -> list[Rows]:
        self._check_not_closed()
        check_rounds(self._info, self._opened, rounds)
        if not rounds:
            return []
        logits = self._infer(rounds)
        answers, begin = [], 0
        for part in rounds:
            answers.append(Rows(logits[begin : begin + part.num_rows]))
            begin += part.num_rows
        return answers

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        return self._kv.export(blocks)

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        self._kv.load(blocks, data)

    def close(self) -> None:
        self._request = None
        self._kv.release()
        self._opened.clear()

    def _check_not_closed(self) -> None:
        if self._request is None:
            raise EngineError("the engine is closed; create a new one")

    def _infer(self, rounds: Sequence[Round]) -> Logits:
        inputs = lay_out(rounds)
        if self._info.exact:
            inputs = duplicate_single_rows(inputs)
        try:
            for name, array in inputs.items():
                self._request.set_tensor(name, ov.Tensor(array))
            self._request.infer()
            output = self._request.get_output_tensor(0).data
        except RuntimeError as error:
            raise EngineError(f"the model failed: {error}") from error
        # Copied, because the next call writes its logits into the same memory.
        logits: Logits = output.reshape(-1, self._info.vocabulary_size).copy()
        return logits


def _compile(model: ConvertedModel, config: EngineConfig) -> Any:
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(config.threads),
        "INFERENCE_PRECISION_HINT": config.precision,
        "KV_CACHE_PRECISION": "f16" if config.precision == "bf16" else config.precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
    }
    try:
        core = ov.Core()
        graph = core.read_model(model.graph)
        make_paged(graph, duplicate_rows=config.exact)
        return core.compile_model(graph, "CPU", settings)
    except RuntimeError as error:
        raise EngineError(f"the model cannot be loaded: {error}") from error
