"""CUDA graphs of a decoder's calls: a call of few rows is hundreds of kernels, which take longer to
start than to run. A graph starts them all at once, for calls of one shape; calls are filled up to
one of few shapes. What it computes is what the kernels compute when they are started one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from outrider.engines.torch.call_plan import CallPlan, CallSize
from outrider.engines.torch.decoder import CallInputs, Decoder

MAX_ROWS: Final = 256
"""Calls of more rows are started kernel by kernel: they run for longer than that takes."""
_MAX_GRAPHS: Final = 64
"""Each holds the buffers of its results; the oldest one goes."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Any
    inputs: CallInputs
    logits: Tensor


class GraphedDecoder:
    """A decoder on a CUDA device, with a graph for each shape of its calls."""

    def __init__(self, decoder: Decoder, pool: Tensor, device: torch.device) -> None:
        self._decoder, self._pool, self._device = decoder, pool, device
        self._captured: dict[CallSize, _Captured] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def logits(self, plan: CallPlan, size: CallSize) -> Tensor:
        """See Decoder.logits; `size` is the plan's. To be read before the next call."""
        inputs = CallInputs.of(plan, self._device)
        captured = self._captured.get(size)
        if captured is None:
            captured = self._capture(inputs)
            if len(self._captured) == _MAX_GRAPHS:
                del self._captured[next(iter(self._captured))]
            self._captured[size] = captured
        for mine, new in zip(captured.inputs.tensors(), inputs.tensors(), strict=True):
            mine.copy_(new)
        captured.graph.replay()
        return captured.logits

    def _capture(self, inputs: CallInputs) -> _Captured:
        # Once without: kernels are compiled, and libraries take their memory.
        self._decoder.logits(inputs, self._pool)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Calls that other threads make to the device meanwhile are none of the graph's.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = self._decoder.logits(inputs, self._pool)
        return _Captured(graph, inputs, logits)


def graph_size(size: CallSize) -> CallSize:
    """The shape that a call of up to MAX_ROWS rows is filled up to: powers of two."""
    return CallSize(
        num_rows=size.num_rows,
        num_tiles=_power(size.num_tiles),
        num_blocks=_power(size.num_blocks),
        num_logits=size.num_logits,
    )


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
