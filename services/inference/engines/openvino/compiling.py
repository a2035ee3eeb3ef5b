"""Compiled models: one that takes any number of rows, and one for each number that is frequent.

A model whose number of rows is fixed prepares its kernels once, where the free one looks at every
shape in every call and prepares anew when the number changes (decision 0004). Each holds weights of
its own, laid out for its kernels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openvino as ov

from outrider.errors import EngineError
from services.inference.engines.config import EngineConfig
from services.inference.engines.openvino.convert import ConvertedModel
from services.inference.engines.openvino.graph import fix_rows, make_paged

ANY = 0
"""In place of a number of rows: the model that takes any."""


def attention_rows(num_rows: int, *, exact: bool) -> int:
    """Rows in attention of a call of `num_rows` that is fixed: with duplication (decision 0002)
    twice as many as there are at most; what is not needed is a sequence that costs little."""
    return 2 * num_rows if exact else num_rows


def compile_sizes(
    model: ConvertedModel, config: EngineConfig, sizes: Sequence[int]
) -> dict[int, Any]:
    """The compiled models by number of rows, ANY among them. Blocks for seconds, on all cores.

    Raises EngineError.
    """
    try:
        core = ov.Core()
        graph = core.read_model(model.graph)
        make_paged(graph, duplicate_rows=config.exact)
        copies = {size: _fixed(graph, size, config.exact) for size in sizes}
        copies[ANY] = graph
        settings = _settings(config)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(
                lambda each: core.compile_model(each, "CPU", settings), copies.values()
            )
            return dict(zip(copies, compiled, strict=True))
    except RuntimeError as error:
        raise EngineError(f"the model cannot be loaded: {error}") from error


def _fixed(graph: Any, num_rows: int, exact: bool) -> Any:
    """A copy; it shares the weights' constants with the original."""
    copy = graph.clone()
    fix_rows(copy, num_rows, attention_rows(num_rows, exact=exact))
    return copy


def _settings(config: EngineConfig) -> dict[str, str]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(config.threads),
        "INFERENCE_PRECISION_HINT": config.precision,
        "KV_CACHE_PRECISION": "f16" if config.precision == "bf16" else config.precision,
        # The weights' own group size: any other is slower by a third (decision 0002).
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
    }
