"""Compiled models: one that takes any number of rows, and one for each number that is frequent.

A model whose number of rows is fixed prepares its kernels once, where the free one looks at every
shape in every call and prepares anew when the number changes (decision 0004). Each holds weights of
its own, laid out for its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from outrider.engines.config import EngineConfig, Precision
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.layouts import layout_of
from outrider.engines.openvino.paging import fix_rows, make_paged
from outrider.errors import ConfigError, EngineError


def attention_rows(num_rows: int, *, exact: bool) -> int:
    """Rows in attention of a call of `num_rows` that is fixed: with duplication (decision 0002)
    twice as many as there are at most; what is not needed is a sequence that costs little."""
    return 2 * num_rows if exact else num_rows


class Compiler:
    """One transformed graph, and a copy for each number of rows that shares its constants."""

    def __init__(self, model: ConvertedModel, config: EngineConfig, sizes: Sequence[int]) -> None:
        """Read and transform. Raises EngineError, and ConfigError for a precision that this CPU
        lacks."""
        self._core = ov.Core()
        self.precision = precision_of(config.precision, self._core)
        """Of all models compiled here: bf16 or f32."""
        layout = layout_of(model.facts.layout)
        group = layout.dynamic_group if config.dynamic_quantization else 0
        self._settings = _settings(config, self.precision, group)
        self._exact = config.exact
        try:
            self._free = self._core.read_model(model.graph)
            make_paged(self._free, duplicate_rows=config.exact)
            self._fixed = {size: self._copy(size) for size in sizes}
        except RuntimeError as error:
            raise EngineError(f"the model cannot be loaded: {error}") from error

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows that fixed() is still to be called for."""
        return list(self._fixed)

    def free(self) -> Any:
        """The model for any number of rows. Blocks for seconds. Raises EngineError."""
        return self._compiled(self._free)

    def fixed(self, num_rows: int) -> Any:
        """The model for calls of exactly so many rows, once. Raises EngineError."""
        return self._compiled(self._fixed.pop(num_rows))

    def _copy(self, num_rows: int) -> Any:
        copy = self._free.clone()
        fix_rows(copy, num_rows, attention_rows(num_rows, exact=self._exact))
        return copy

    def _compiled(self, graph: Any) -> Any:
        try:
            return self._core.compile_model(graph, "CPU", self._settings)
        except RuntimeError as error:
            raise EngineError(f"the model cannot be compiled: {error}") from error


def precision_of(asked: Precision, core: Any) -> str:
    """bf16 or f32. Raises ConfigError for bf16 on a CPU without instructions for it: there the
    kernels of paged attention take f32 alone."""
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if asked == "auto":
        return "bf16" if has_bf16 else "f32"
    if asked == "bf16" and not has_bf16:
        raise ConfigError("this CPU does not compute in bf16; set precision to auto or f32")
    return asked


def _settings(config: EngineConfig, precision: str, dynamic_group: int) -> dict[str, str]:
    pinning = {} if config.pin_threads else {"ENABLE_CPU_PINNING": "NO"}
    return {
        **pinning,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(config.threads),
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": "f16" if precision == "bf16" else precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(dynamic_group),
    }
