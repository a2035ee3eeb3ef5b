"""The PyTorch engine: the contract on top of a decoder and its KV pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from outrider.codec.kv.layout import KvDtype, uniform_layout
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
    no_work,
)
from outrider.engines.config import EngineConfig
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.engines.footprint import check_pool
from outrider.engines.free_memory import FreeMemory, free_memory
from outrider.engines.kv_budget import BlockShape
from outrider.engines.torch.call_plan import BLOCK_TOKENS, plan_call, size_of
from outrider.engines.torch.decoder import CallInputs, Decoder, Weights
from outrider.engines.torch.graphs import MAX_ROWS, GraphedDecoder, graph_size
from outrider.engines.torch.kernels import Kernels
from outrider.engines.torch.kv_pool import KvPool
from outrider.engines.torch.library_kernels import LibraryKernels
from outrider.engines.torch.plain_kernels import PlainKernels
from outrider.errors import ConfigError, EngineError

_PROBE_TOKENS: Final = 64
"""Rows whose logits' bits are the fingerprint."""


class TorchEngine:
    """Implements base.Engine with PyTorch."""

    def __init__(self, weights: Weights, config: EngineConfig) -> None:
        """Load the weights and allocate the pool.

        Raises EngineError, ConfigError for settings that do not fit the model or the device, and
        InsufficientMemoryError.
        """
        shape = weights.shape
        asked = config.max_context_tokens
        if asked > shape.max_context_tokens:
            raise ConfigError(
                f"max_context_tokens is {asked}; the model has at most {shape.max_context_tokens}"
            )
        device = self._device = device_of(config.device)
        precision = precision_of(config, device)
        is_short = precision == "bf16"
        torch.set_num_threads(config.threads)
        self._kernels = kernels_of(device, exact=config.exact)
        dtype = torch.bfloat16 if is_short else torch.float32
        in_groups = config.weight_bits == 8
        self._decoder = Decoder(weights, self._kernels, dtype, device, in_groups=in_groups)
        layout = uniform_layout(
            KvDtype.BF16 if is_short else KvDtype.F32,
            num_layers=len(shape.layers),
            num_heads=shape.num_kv_heads,
            block_tokens=BLOCK_TOKENS,
            head_size=shape.head_size,
        )
        measure = partial(free_memory_of, device)
        budget = config.kv_budget()
        size = budget.decide(BlockShape(layout.block_bytes, BLOCK_TOKENS, 0), measure)
        check_pool(size.num_blocks * layout.block_bytes, measure())
        self._pool = KvPool(layout, size.num_blocks, device)
        self._graphed: GraphedDecoder | None = None
        if device.type == "cuda" and config.cuda_graphs:
            self._graphed = GraphedDecoder(self._decoder, self._pool.numbers, device)
        self._info = EngineInfo(
            name="torch",
            vocabulary_size=shape.vocabulary_size,
            block_tokens=BLOCK_TOKENS,
            num_blocks=size.num_blocks,
            block_bytes=layout.block_bytes,
            max_context_tokens=asked or shape.max_context_tokens,
            sizing=SizingRule((), self._kernels.tile_rows),
            exact=config.exact,
            precision=precision,
            pool_reason=size.reason,
            kv_layout=layout,
        )
        self._busy_s = 0.0
        self._opened: set[int] = set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "torch")
        fingerprint = fingerprint_of(self._probe(), b"groups" if in_groups else b"")
        self._info = replace(self._info, fingerprint=fingerprint)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def busy_s(self) -> float:
        return self._busy_s

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
        computed = self._thread.submit(self._compute, slices)
        try:
            overlapped_work()
        finally:
            logits = computed.result()
        ends = np.cumsum([part.num_rows for part in slices])
        return [
            LogitsRows(logits[end - part.num_rows : end])
            for end, part in zip(ends, slices, strict=True)
        ]

    def copy_block(self, source: int, target: int) -> None:
        self._check_not_closed()
        check_block_ids(self._info, (source, target))
        self._pool.copy(source, target)

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        return self._pool.export(blocks)

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._check_not_closed()
        check_block_ids(self._info, blocks)
        self._pool.load(blocks, data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._opened.clear()
            self._thread.shutdown()

    def _probe(self) -> Logits:
        """[n, V] logits of fixed tokens, on the pool's first blocks: before anybody has them."""
        info = self._info
        count = min(_PROBE_TOKENS, info.num_blocks * info.block_tokens, info.max_context_tokens)
        blocks = np.arange(-(-count // info.block_tokens), dtype=np.int32)
        tokens = probe_ids(info.vocabulary_size, count)
        logits = self._compute([SequenceSlice(0, tokens, 0, blocks, count)])
        if not np.isfinite(logits).all():
            raise EngineError("the model's logits are no numbers; fetch its file again")
        return logits

    def _compute(self, slices: Sequence[SequenceSlice]) -> Logits:
        begin = time.perf_counter()
        with torch.inference_mode():
            logits = self._logits(slices).cpu()
        self._busy_s += time.perf_counter() - begin
        return np.asarray(logits.numpy(), np.float32)

    def _logits(self, slices: Sequence[SequenceSlice]) -> Tensor:
        """[r, V] the rows asked for."""
        kernels = self._kernels
        size = size_of(slices, tile_rows=kernels.tile_rows, span_blocks=kernels.span_blocks)
        if self._graphed is not None and size.num_rows <= MAX_ROWS:
            size = graph_size(size)
            plan = plan_call(slices, self._pool.spare, size)
            return self._graphed.logits(plan, size)[: plan.num_logits]
        plan = plan_call(slices, self._pool.spare, size)
        inputs = CallInputs.of(plan, self._device)
        return self._decoder.logits(inputs, self._pool.numbers)[: plan.num_logits]

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; create a new one")


def device_of(name: str) -> torch.device:
    """The device that EngineConfig.device names. Raises ConfigError where there is none."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("device is cuda, and PyTorch finds no GPU here; set it to cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def precision_of(config: EngineConfig, device: torch.device) -> str:
    """bf16 on a GPU, unless another one is asked for."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if device.type == "cuda" else "f32"


def kernels_of(device: torch.device, *, exact: bool = True) -> Kernels:
    """Those for this kind of device."""
    kernels: Kernels = PlainKernels()
    if device.type != "cpu":
        # Imported here: PyTorch for CPUs comes without Triton.
        from outrider.engines.torch.triton_kernels import TritonKernels

        kernels = TritonKernels()
    return kernels if exact else LibraryKernels(kernels)


def free_memory_of(device: torch.device) -> FreeMemory:
    """What is free where weights and KV of this device are."""
    if device.type == "cpu":
        return free_memory()
    torch.cuda.empty_cache()  # what loading weights took for a moment is free again
    num_bytes, _ = torch.cuda.mem_get_info(device)
    return FreeMemory(num_bytes, torch.cuda.get_device_name(device))
