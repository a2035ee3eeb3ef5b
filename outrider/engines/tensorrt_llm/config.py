"""Configuration of the TensorRT-LLM engine, besides that common to all engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TensorRtLlmOptions:
    """Settings of a TensorRtLlmEngine, table `[inference.trtllm]`. Raises ConfigError at
    construction."""

    model_dir: Path | None = None
    """A Hugging Face checkpoint: config.json, tokenizer.json and safetensors. Its vocabulary must
    be the one of the replica's model."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share the model."""
    max_batch_size: PositiveInt = 64
    """Requests of one iteration of the runtime."""
    max_num_tokens: PositiveInt = 4096
    """Tokens of one iteration; longer prompts are computed in chunks. An iteration in which one
    request asks for rows computes the logits of all its tokens (loading.iteration_logits_bytes)."""
    num_candidates: PositiveInt = 20
    """Likeliest ids of a sampled row; a greedy row has one."""
    truncate_sampling: bool = False
    """Serve requests without a top_k as if it were num_candidates, instead of refusing them."""
    logits_bytes: PositiveInt = 4 << 30
    """GPU memory for the logits of requests in flight: prompt tokens x vocabulary x 4 bytes each,
    outside the KV pool."""
    prefill_graph_tokens: tuple[int, ...] = ()
    """Numbers of tokens of an iteration for which CUDA graphs of everything but attention are
    captured at the start: iterations are padded to the next of them. Empty: kernels are launched
    one by one."""
    host_cache_bytes: NonNegativeInt = 0
    """Host memory for KV blocks that no longer fit the GPU; 0: none."""
    request_timeout_s: PositiveFloat = 120.0
    """Time after which a request counts as lost and the call fails."""

    def __post_init__(self) -> None:
        if any(not 1 <= count <= self.max_num_tokens for count in self.prefill_graph_tokens):
            raise ConfigError(
                f"trtllm.prefill_graph_tokens is {list(self.prefill_graph_tokens)}; give numbers "
                f"from 1 to trtllm.max_num_tokens, {self.max_num_tokens}"
            )
