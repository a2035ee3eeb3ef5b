"""From a checkpoint's folder to a ready engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, EngineError
from services.inference.engines.base import EngineInfo
from services.inference.engines.config import EngineConfig
from services.inference.engines.tensorrt_llm.api import Api, Llm, import_api
from services.inference.engines.tensorrt_llm.config import TensorRtLlmOptions
from services.inference.engines.tensorrt_llm.engine import TensorRtLlmEngine
from services.inference.engines.tensorrt_llm.signatures import (
    check_loaded,
    check_sources,
    find_package,
)

BLOCK_TOKENS = 32
"""The runtime's own default."""
_KV_VALUE_BYTES = 2
_EVENT_BUFFER = 4096
LOGIT_BYTES = 4
"""The runtime's context logits are float32."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a Hugging Face config.json says of a decoder."""

    vocabulary_size: int
    max_context_tokens: int
    kv_token_bytes: int
    """KV bytes of one token over all layers, in 16-bit floats."""


def load_engine(config: EngineConfig) -> TensorRtLlmEngine:
    """Load the model; blocks for minutes. Call it in a thread without an event loop.

    Raises ConfigError if the package is missing or differs, if the settings do not fit each
    other or the checkpoint, and EngineError if the runtime does not start.
    """
    options = config.trtllm
    checkpoint = read_checkpoint(options.model_dir)
    info = engine_info(config, checkpoint)
    package = find_package()
    if package is not None:
        check_sources(package)
    api = import_api()
    check_loaded()
    return TensorRtLlmEngine(make_llm(api, options, info), api, options, info)


def read_checkpoint(folder: Path | None) -> Checkpoint:
    """Raises ConfigError if there is no usable config.json."""
    if folder is None:
        raise ConfigError("trtllm_model_dir is not set: name a Hugging Face checkpoint's folder")
    try:
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = int(facts["num_attention_heads"])
        head_size = int(facts.get("head_dim") or facts["hidden_size"] // heads)
        values = 2 * int(facts.get("num_key_value_heads", heads)) * head_size
        return Checkpoint(
            vocabulary_size=int(facts["vocab_size"]),
            max_context_tokens=int(facts["max_position_embeddings"]),
            kv_token_bytes=int(facts["num_hidden_layers"]) * values * _KV_VALUE_BYTES,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} holds no usable config.json ({type(error).__name__}: {error}); name the "
            "folder of a Hugging Face checkpoint"
        ) from error


def engine_info(config: EngineConfig, checkpoint: Checkpoint) -> EngineInfo:
    """What the engine will tell of itself. Raises ConfigError if the memory is too small."""
    options = config.trtllm
    block_bytes = checkpoint.kv_token_bytes * BLOCK_TOKENS
    num_blocks = config.num_blocks or config.kv_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"kv_bytes is {config.kv_bytes}, a block has {block_bytes}: set kv_bytes or num_blocks "
            "to what the GPU has room for; it is not measured"
        )
    return EngineInfo(
        name="tensorrt-llm",
        vocabulary_size=checkpoint.vocabulary_size,
        block_tokens=BLOCK_TOKENS,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        max_context_tokens=_context_tokens(config, checkpoint),
        exact=False,
        num_candidates=min(options.num_candidates, checkpoint.vocabulary_size),
        truncates_sampling=options.truncate_sampling,
        partial_rows=True,
        keeps_kv=True,
    )


def _context_tokens(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """As many as are asked for, or else as the logits of one request have room for."""
    room = config.trtllm.logits_bytes // (checkpoint.vocabulary_size * LOGIT_BYTES)
    most = min(room, checkpoint.max_context_tokens)
    if config.max_context_tokens > most or room < BLOCK_TOKENS:
        raise ConfigError(
            f"max_context_tokens is {config.max_context_tokens}: the checkpoint has room for "
            f"{checkpoint.max_context_tokens}, trtllm_logits_bytes for {room}; raise that or lower "
            "max_context_tokens"
        )
    return config.max_context_tokens or most


def make_llm(api: Api, options: TensorRtLlmOptions, info: EngineInfo) -> Llm:
    """Start the runtime. Raises EngineError."""
    try:
        return api.make_llm(**llm_arguments(api, options, info))
    except Exception as error:
        raise EngineError(
            f"TensorRT-LLM {api.version} does not start: {type(error).__name__}: {error}"
        ) from error


def llm_arguments(api: Api, options: TensorRtLlmOptions, info: EngineInfo) -> dict[str, Any]:
    """Arguments of tensorrt_llm.LLM. Without chunked prefill a prompt longer than max_num_tokens
    would be refused by its full length, however much of it is cached."""
    return {
        "model": str(options.model_dir),
        "skip_tokenizer_init": True,
        "tensor_parallel_size": options.tensor_parallel_size,
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": info.max_context_tokens + 1,
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        "kv_cache_config": api.kv_cache_config(
            enable_block_reuse=True,
            enable_partial_reuse=True,
            copy_on_partial_reuse=True,
            max_tokens=info.num_blocks * info.block_tokens,
            free_gpu_memory_fraction=options.free_memory_fraction,
            host_cache_size=options.host_cache_bytes or None,
            event_buffer_max_size=_EVENT_BUFFER,
            tokens_per_block=info.block_tokens,
        ),
    }
