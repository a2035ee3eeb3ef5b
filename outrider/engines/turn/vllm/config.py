"""Configuration of the vLLM engine, besides that common to all engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt, above, check_bounds


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Settings of a VllmTurnEngine, table `[inference.vllm]`. Raises ConfigError at
    construction."""

    model_dir: Path | None = None
    """A Hugging Face checkpoint: config.json, tokenizer.json and safetensors. Its vocabulary must
    be the one of the replica's model."""
    dtype: str = "auto"
    """Arithmetic, as vLLM names it: auto, float32, bfloat16, float16."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share the model."""
    max_num_seqs: PositiveInt = 64
    """Replies that are written at once; further ones wait in vLLM."""
    max_num_batched_tokens: NonNegativeInt = 0
    """Tokens of one step; longer prompts are computed in chunks. 0: vLLM's own number."""
    memory_share: Annotated[float, above(0, 1)] = 0.9
    """Share of the GPU's memory for weights, activations and KV; kv_bytes, if it is set, decides
    how much of it is KV."""
    enforce_eager: bool = False
    """Whether no graphs are captured and nothing is compiled: a sooner start, slower steps."""
    silence_timeout_s: PositiveFloat = 120.0
    """Time without a token after which a reply counts as failed."""

    def __post_init__(self) -> None:
        check_bounds(self)
