"""Compiled models: one that takes any number of rows, and one for each number that is frequent.

A model whose number of rows is fixed prepares its kernels once; the other one looks at every shape
in every call and prepares anew when the number changes (decision 0004). Each holds weights of its
own, laid out for its kernels.
"""

from __future__ import annotations

from typing import Any

import openvino as ov

from outrider.engines.config import EngineConfig, Precision
from outrider.engines.cpu_features import cpu_flags
from outrider.engines.openvino.batch import attention_rows
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.layouts import layout_of
from outrider.engines.openvino.mapped_file import give_back_pages
from outrider.engines.openvino.paging import fix_rows, make_paged
from outrider.errors import ConfigError, EngineError


class Compiler:
    """One transformed graph; its copies for fixed numbers of rows share the constants."""

    def __init__(self, model: ConvertedModel, config: EngineConfig) -> None:
        """Read and transform. Raises EngineError, and ConfigError for a precision that this CPU
        does not have."""
        self._core = ov.Core()
        self.precision = precision_of(config.precision, self._core)
        """Precision of all models compiled here: bf16 or f32."""
        layout = layout_of(model.facts.layout)
        group = layout.dynamic_group if config.dynamic_quantization else 0
        self._settings = _settings(config, self.precision, group)
        self._exact = config.exact
        try:
            self._free: Any = self._core.read_model(model.graph)
            make_paged(self._free, duplicate_rows=config.exact)
        except RuntimeError as error:
            raise EngineError(f"the model cannot be loaded: {error}") from error
        self._weights = model.weights

    def free(self) -> Any:
        """The model for any number of rows. Blocks for seconds. Raises EngineError."""
        return self._compiled(self._free)

    def fixed(self, num_rows: int) -> Any:
        """The model for calls of exactly so many rows. Blocks for seconds. Raises EngineError."""
        copy = self._free.clone()
        fix_rows(copy, num_rows, attention_rows(num_rows, exact=self._exact))
        return self._compiled(copy)

    def finish(self) -> None:
        """No model is compiled after this. The compiled ones have weights of their own, so the
        pages of the mapped file are released. Calls read some of them again: embeddings, and more
        in calls that come after this with numbers of rows that are new."""
        self._free = None
        give_back_pages(self._weights)

    def _compiled(self, graph: Any) -> Any:
        try:
            return self._core.compile_model(graph, "CPU", self._settings)
        except RuntimeError as error:
            raise EngineError(f"the model cannot be compiled: {error}") from error


def precision_of(asked: Precision, core: Any) -> str:
    """bf16 or f32. `auto` means f32 on CPUs without instructions for bf16, and on CPUs with AMX:
    there OpenVINO 2026.4 does not round inputs to 8 bits in bf16, and a call of few rows takes half
    as long again as in f32 (decision 0002).

    Raises ConfigError for bf16 on a CPU without instructions for it, where the kernels of paged
    attention take only f32.
    """
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if asked == "auto":
        return "bf16" if has_bf16 and "amx_bf16" not in cpu_flags() else "f32"
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
