"""Compiles the kernels of GPUs for a kind of GPU that need not be there, as the engine launches
them, and prints the bytes of shared memory that each takes: `python -m ... 80`.

A process of its own, since Triton either interprets kernels or compiles them.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from outrider.engines.torch.call_plan import BLOCK_TOKENS, QUERY_ROWS
from outrider.engines.torch.experts import sorted_by_expert
from outrider.engines.torch.kernels import AttentionTiles
from outrider.engines.torch.matrices import GroupedMatrix, rounded_to_groups
from outrider.engines.torch.triton_kernels import TritonKernels


def main() -> int:
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: target,
    )
    triton.runtime.driver.set_active(driver)
    found: dict[str, int] = {}

    def compiled(kernel: Any, grid: object) -> Any:
        def launch(*arguments: object, **settings: object) -> None:
            done = kernel.run(*arguments, grid=grid, warmup=True, **settings)
            name = kernel.fn.__name__
            found[name] = max(found.get(name, 0), done.metadata.shared)

        return launch

    JITFunction.__getitem__ = compiled
    for dtype in (torch.float32, torch.bfloat16):
        launch_all(TritonKernels(), dtype)
    print(json.dumps(found))
    return 0


def launch_all(kernels: TritonKernels, dtype: torch.dtype) -> None:
    """Each way in which a kernel is launched, with the largest heads that are served."""
    rows = torch.zeros(64, 128)
    grouped = GroupedMatrix(*rounded_to_groups(torch.zeros(4, 64, 128)), dtype)
    tiles, _ = sorted_by_expert(torch.zeros(64, 2, dtype=torch.int64), 4, kernels.expert_rows)
    for matrix in (grouped, grouped.dense().to(dtype)):
        kernels.product(rows, matrix[0])
        kernels.expert_products(rows, matrix, tiles)
    kernels.normed(rows, rows[0], 1e-5)
    for size, heads in ((64, 64), (128, 32), (256, 8)):
        pool = torch.zeros(4, 2, heads // 4, BLOCK_TOKENS, size, dtype=dtype)
        numbers = torch.zeros(1, 32, dtype=torch.int64)
        attention = AttentionTiles(
            numbers[:, :QUERY_ROWS], numbers[:, :QUERY_ROWS], numbers[0, :1], numbers
        )
        queries = torch.zeros(64, heads, size)
        kernels.attended(queries, pool, attention, 0, torch.zeros(heads))
        kernels.attended(queries, pool, attention, 128)


if __name__ == "__main__":
    sys.exit(main())
