"""From a checkpoint's folder to a ready engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from outrider.engines.base import EngineInfo
from outrider.engines.config import EngineConfig
from outrider.engines.tensorrt_llm.api import Api, Llm, import_api
from outrider.engines.tensorrt_llm.checkpoint import Checkpoint, read_checkpoint
from outrider.engines.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.tensorrt_llm.engine import TensorRtLlmEngine
from outrider.engines.tensorrt_llm.reports import cache_changes, latest_stats
from outrider.engines.tensorrt_llm.requests import Flight, Request, RequestMaker
from outrider.engines.tensorrt_llm.rows import last_rows
from outrider.engines.tensorrt_llm.signatures import (
    check_loaded,
    check_sources,
    find_package,
)
from outrider.errors import ConfigError, EngineError

log = structlog.get_logger()

BLOCK_TOKENS = 32
"""The runtime's own default."""
_EVENT_BUFFER = 4096
_GENERATED_TOKENS = 1
"""Tokens that every request generates, for which the runtime wants room."""
_MOST_OF_FREE = 0.9
"""The runtime's own default, an upper bound on pools of configured size."""
_REPORT_WAIT_S = 2.0
"""The runtime's own default."""
_PROBE_SALT = b"outrider-start"
LOGIT_BYTES = 4
"""The runtime's context logits are float32."""
_COMPUTED_LOGIT_BYTES = 2
"""Bytes per logit in the output of the last weight product."""


def load_engine(config: EngineConfig) -> TensorRtLlmEngine:
    """Load the model; blocks for minutes. Call it in a thread without an event loop.

    Raises ConfigError if the package is missing or differs, or if the settings do not fit each
    other, the checkpoint or the GPU, and EngineError if the runtime does not start.
    """
    checkpoint = read_checkpoint(config.trtllm.model_dir)
    wanted = engine_info(config, checkpoint)
    package = find_package()
    if package is not None:
        check_sources(package)
    api = import_api()
    check_loaded()
    return start_engine(api, config, checkpoint, wanted)


def engine_info(config: EngineConfig, checkpoint: Checkpoint) -> EngineInfo:
    """The configured properties; num_blocks is 0 if the runtime is to decide.

    Raises ConfigError if settings do not fit each other or the checkpoint.
    """
    options = config.trtllm
    num_ids = config.vocabulary_size or checkpoint.vocabulary_size
    if num_ids > checkpoint.vocabulary_size:
        raise ConfigError(
            f"the checkpoint scores {checkpoint.vocabulary_size} ids, the vocabulary that is "
            f"served has {num_ids}; set trtllm.model_dir and model to the same model"
        )
    block_bytes = checkpoint.kv_token_bytes * BLOCK_TOKENS
    return EngineInfo(
        name="tensorrt-llm",
        vocabulary_size=num_ids,
        block_tokens=BLOCK_TOKENS,
        num_blocks=_blocks_asked_for(config, block_bytes),
        block_bytes=block_bytes,
        max_context_tokens=_context_tokens(config, checkpoint),
        exact=False,
        num_candidates=min(options.num_candidates, num_ids, checkpoint.num_tokens),
        truncates_sampling=options.truncate_sampling,
        partial_rows=True,
        keeps_kv=True,
    )


def _blocks_asked_for(config: EngineConfig, block_bytes: int) -> int:
    num_blocks = config.num_blocks or config.kv_bytes // block_bytes
    if config.kv_bytes and not num_blocks:
        raise ConfigError(
            f"kv_bytes is {config.kv_bytes}, a block has {block_bytes}; raise kv_bytes, or leave "
            "it at 0 for kv_share of the GPU's memory"
        )
    if not num_blocks and config.kv_share >= 1.0:
        raise ConfigError(f"kv_share is {config.kv_share}: TensorRT-LLM takes less than 1")
    return num_blocks


def _context_tokens(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """The configured context, or else as much as the logits of one request have room for."""
    room = config.trtllm.logits_bytes // (checkpoint.vocabulary_size * LOGIT_BYTES)
    most = min(room, checkpoint.max_context_tokens)
    if config.max_context_tokens > most or room < BLOCK_TOKENS:
        raise ConfigError(
            f"max_context_tokens is {config.max_context_tokens}: the checkpoint has room for "
            f"{checkpoint.max_context_tokens}, trtllm.logits_bytes for {room}; raise that or lower "
            "max_context_tokens"
        )
    return config.max_context_tokens or most


def start_engine(
    api: Api, config: EngineConfig, checkpoint: Checkpoint, wanted: EngineInfo
) -> TensorRtLlmEngine:
    """Start the runtime, make one request, and settle how large its KV pool is.

    Raises ConfigError if the pool is too small or its size unknown, EngineError if the runtime does
    not start or its first answer does not have exactly one row.
    """
    llm = make_llm(api, config, wanted)
    try:
        flight = make_flight(llm, api, config.trtllm, checkpoint)
        ticket = flight.submit(Request((0,), 1, 1, _PROBE_SALT))
        if len(last_rows(flight.land(ticket), 2, 1, checkpoint.vocabulary_size).logits) != 1:
            raise EngineError(
                f"TensorRT-LLM {api.version} gave no row for a prompt of one token: "
                "prompt_logprobs does not work as this engine needs it"
            )
        info = settle_pool(config, wanted, measured_blocks(llm))
    except BaseException:
        llm.shutdown()
        raise
    told = memory_bytes(config.trtllm, checkpoint, info)
    log.info("trtllm_memory", pool=info.pool_reason, **told)
    return TensorRtLlmEngine(llm, flight, info, checkpoint)


def make_llm(api: Api, config: EngineConfig, wanted: EngineInfo) -> Llm:
    """Start the runtime. Raises EngineError."""
    try:
        return api.make_llm(**llm_arguments(api, config, wanted))
    except Exception as error:
        raise EngineError(
            f"TensorRT-LLM {api.version} does not start: {type(error).__name__}: {error}"
        ) from error


def make_flight(llm: Llm, api: Api, options: TensorRtLlmOptions, checkpoint: Checkpoint) -> Flight:
    """The object that carries the engine's requests."""
    return Flight(
        llm,
        RequestMaker(api),
        row_bytes=checkpoint.vocabulary_size * LOGIT_BYTES,
        max_bytes=options.logits_bytes,
        timeout_s=options.request_timeout_s,
    )


def measured_blocks(llm: Llm) -> int:
    """Blocks of the runtime's KV pool on the GPU, from its statistics or else its first event; 0 if
    neither has them. Waits for reports that are on their way."""
    stats = latest_stats(llm.get_stats(timeout=_REPORT_WAIT_S))
    if stats is not None and stats.max_blocks > 0:
        return stats.max_blocks
    return cache_changes(llm.get_kv_cache_events(timeout=_REPORT_WAIT_S)).pool_blocks


def settle_pool(config: EngineConfig, wanted: EngineInfo, measured: int) -> EngineInfo:
    """`wanted` with the blocks and the context that have room. Raises ConfigError."""
    asked = wanted.num_blocks
    if not measured and not asked:
        raise ConfigError(
            "TensorRT-LLM does not report the size of its KV pool (kvCacheStats.maxNumBlocks); "
            "set kv_bytes or num_blocks"
        )
    num_blocks = min(asked or measured, measured or asked)
    reason = f"kv_share is {config.kv_share}" if not asked else "kv_bytes or num_blocks is set"
    if num_blocks < asked:
        reason += f", to {asked} blocks, but the GPU has room for fewer"
    room = num_blocks * BLOCK_TOKENS - _GENERATED_TOKENS
    if max(config.max_context_tokens, BLOCK_TOKENS) > room:
        raise ConfigError(
            f"the KV pool has {num_blocks} blocks ({reason}), with room for {room} tokens; raise "
            "kv_share, kv_bytes or num_blocks, or lower max_context_tokens"
        )
    context = min(wanted.max_context_tokens, room)
    return replace(wanted, num_blocks=num_blocks, max_context_tokens=context, pool_reason=reason)


def memory_bytes(
    options: TensorRtLlmOptions, checkpoint: Checkpoint, info: EngineInfo
) -> dict[str, int]:
    """GPU memory besides weights and activations, as far as it can be computed."""
    return {
        "kv_bytes": info.num_blocks * info.block_bytes,
        "logits_bytes": options.logits_bytes,
        "iteration_logits_bytes": iteration_logits_bytes(options, checkpoint),
    }


def iteration_logits_bytes(options: TensorRtLlmOptions, checkpoint: Checkpoint) -> int:
    """Most bytes of logits of one iteration, in 16 bits and as float32: if one of its requests asks
    for rows, the runtime computes those of all its tokens, prefill of other requests included
    (_torch/pyexecutor, gather_context_logits; modules/logits_processor.py)."""
    row_bytes = checkpoint.vocabulary_size * (_COMPUTED_LOGIT_BYTES + LOGIT_BYTES)
    return options.max_num_tokens * row_bytes


def llm_arguments(api: Api, config: EngineConfig, wanted: EngineInfo) -> dict[str, Any]:
    """Arguments of tensorrt_llm.LLM. Without chunked prefill a prompt longer than max_num_tokens
    would be refused by its full length, however much of it is cached."""
    options = config.trtllm
    arguments: dict[str, Any] = {
        "model": str(options.model_dir),
        "skip_tokenizer_init": True,
        "tensor_parallel_size": options.tensor_parallel_size,
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": wanted.max_context_tokens + _GENERATED_TOKENS,
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        "kv_cache_config": api.kv_cache_config(
            enable_block_reuse=True,
            enable_partial_reuse=True,
            copy_on_partial_reuse=True,
            **_pool_arguments(config, wanted),
            host_cache_size=options.host_cache_bytes or None,
            event_buffer_max_size=_EVENT_BUFFER,
            tokens_per_block=wanted.block_tokens,
        ),
    }
    if options.prefill_graph_tokens:
        arguments["torch_compile_config"] = api.torch_compile_config(
            enable_piecewise_cuda_graph=True,
            capture_num_tokens=sorted(options.prefill_graph_tokens),
            enable_userbuffers=False,
        )
    return arguments


def _pool_arguments(config: EngineConfig, wanted: EngineInfo) -> dict[str, Any]:
    """Arguments for the pool's size. The runtime takes the lesser of max_tokens and the fraction of
    what weights and peak activations leave (KvCacheCreator.configure_kv_cache_capacity)."""
    if not wanted.num_blocks:
        return {"max_tokens": None, "free_gpu_memory_fraction": config.kv_share}
    tokens = wanted.num_blocks * wanted.block_tokens
    return {"max_tokens": tokens, "free_gpu_memory_fraction": _MOST_OF_FREE}
