"""The stand-in's arguments and answers, as strict as tensorrt_llm's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GPU_BLOCKS = 1000
"""Blocks that the memory left by weights and activations has room for."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int = 32
    prompt_logprobs: int | None = None
    top_k: int | None = None
    ignore_eos: bool = False
    end_id: int | None = None
    pad_id: int | None = None
    detokenize: bool = True


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    event_buffer_max_size: int = 0
    tokens_per_block: int = 32

    def __post_init__(self) -> None:
        assert self.free_gpu_memory_fraction is not None, "it is multiplied without a look"
        assert 0.0 < self.free_gpu_memory_fraction < 1.0

    @property
    def num_blocks(self) -> int:
        """The lesser of what is asked for."""
        assert self.free_gpu_memory_fraction is not None
        room = int(GPU_BLOCKS * self.free_gpu_memory_fraction)
        return min(room, (self.max_tokens or room * 32) // self.tokens_per_block)


@dataclass(frozen=True, slots=True)
class TorchCompileConfig:
    enable_piecewise_cuda_graph: bool = False
    capture_num_tokens: list[int] | None = None
    enable_userbuffers: bool = True


@dataclass(frozen=True, slots=True)
class TokenRangeRetentionConfig:
    token_start: int
    token_end: int | None = None
    priority: int = 35
    duration_ms: object = None


@dataclass(frozen=True, slots=True)
class KvCacheRetentionConfig:
    token_range_retention_configs: Sequence[TokenRangeRetentionConfig]
    decode_retention_priority: int = 35
    decode_duration_ms: object = None

    def __post_init__(self) -> None:
        ends = [one.token_end for one in self.token_range_retention_configs]
        starts = [one.token_start for one in self.token_range_retention_configs]
        assert ends[:-1] == starts[1:], "ranges must follow each other"
        assert all(end is None or end > start for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    prompt_logprobs: list[dict[int, Logprob]] | None
