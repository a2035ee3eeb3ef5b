"""Configuration of the TensorRT-LLM engine, besides that common to all engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt, check_bounds


@dataclass(frozen=True, slots=True)
class TensorRtLlmOptions:
    """Settings of a TensorRtLlmTurnEngine, table `[inference.trtllm]`. Raises ConfigError at
    construction."""

    model_dir: Path | None = None
    """A Hugging Face checkpoint: config.json, tokenizer.json and safetensors. Its vocabulary must
    be the one of the replica's model."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share the model."""
    max_batch_size: PositiveInt = 64
    """Replies that are written at once."""
    max_num_tokens: PositiveInt = 8192
    """Tokens of one iteration; longer prompts are computed in chunks."""
    host_cache_bytes: NonNegativeInt = 0
    """Host memory for KV blocks that no longer fit the GPU; 0: none."""
    silence_timeout_s: PositiveFloat = 120.0
    """Time without a token after which the runtime counts as lost."""

    def __post_init__(self) -> None:
        check_bounds(self)
