"""From a checkpoint's folder to a running TensorRT-LLM."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import Ability, TurnEngineInfo
from outrider.engines.turn.checkpoint import Checkpoint, check_vocabulary, read_checkpoint
from outrider.engines.turn.tensorrt_llm.api import Api, Llm, import_api
from outrider.engines.turn.tensorrt_llm.engine import TensorRtLlmTurnEngine
from outrider.engines.turn.tensorrt_llm.reports import BlockTranslator, pool_blocks, stats_of
from outrider.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary

log = structlog.get_logger()

BLOCK_TOKENS: Final = 32
"""The runtime's own default."""
_EVENT_BUFFER: Final = 4096
_MOST_OF_FREE: Final = 0.9
"""The runtime's own default, an upper bound on pools of configured size."""
_REPORT_WAIT_S: Final = 2.0
_PROBE_LIMIT_S: Final = 600.0
"""The first request may compile kernels."""
_SETTING: Final = "trtllm.model_dir"


async def open_engine(config: EngineConfig, vocabulary: Vocabulary) -> TensorRtLlmTurnEngine:
    """Load the model, in a thread: it takes minutes.

    Raises ConfigError if the package is missing or lacks what is called, or if the settings do not
    fit each other, the checkpoint or the GPU, and EngineError if the runtime does not start.
    """
    folder = config.trtllm.model_dir
    checkpoint = read_checkpoint(folder, _SETTING)
    await asyncio.to_thread(check_vocabulary, folder, vocabulary, _SETTING)
    api = await asyncio.to_thread(import_api)
    return await start_engine(api, config, checkpoint)


async def start_engine(
    api: Api, config: EngineConfig, checkpoint: Checkpoint
) -> TensorRtLlmTurnEngine:
    """As open_engine, with the package at hand."""
    wanted = engine_info(api, config, checkpoint)
    arguments = llm_arguments(api, config, wanted)
    llm = await asyncio.to_thread(_start, api, arguments)
    try:
        await _probe(llm, api)
        info = settle_pool(config, wanted, await _measured_blocks(llm))
    except BaseException:
        await asyncio.to_thread(llm.shutdown)
        raise
    log.info("trtllm_started", version=api.version, num_blocks=info.num_blocks)
    return TensorRtLlmTurnEngine(
        api,
        llm,
        info,
        BlockTranslator(info.block_tokens, info.num_blocks),
        silence_timeout_s=config.trtllm.silence_timeout_s,
    )


def _start(api: Api, arguments: dict[str, Any]) -> Llm:
    try:
        return api.make_llm(**arguments)
    except Exception as error:
        raise EngineError(
            f"TensorRT-LLM {api.version} does not start: {type(error).__name__}: {error}"
        ) from error


async def _probe(llm: Llm, api: Api) -> None:
    """Write one token: before that, the runtime has no reports."""
    try:
        async with asyncio.timeout(_PROBE_LIMIT_S):
            sampling = api.sampling_params(
                max_tokens=1, end_id=-1, pad_id=0, ignore_eos=True, detokenize=False
            )
            answers = llm.generate_async(
                inputs=[0], sampling_params=sampling, streaming=True, cache_salt="outrider-start"
            )
            async for answer in answers:
                if answer.finished and len(answer.outputs[0].token_ids) == 1:
                    return
    except Exception as error:
        raise EngineError(
            f"TensorRT-LLM {api.version} did not write one token: {type(error).__name__}: {error}"
        ) from error
    raise EngineError(
        f"TensorRT-LLM {api.version} was asked for one token and wrote another number"
    )


async def _measured_blocks(llm: Llm) -> int:
    """Blocks of the KV pool on the GPU, from statistics or else the first event; 0 if neither has
    them."""
    async for report in llm.get_stats_async(timeout=_REPORT_WAIT_S):
        if blocks := stats_of(report).max_blocks:
            return blocks
    async for event in llm.get_kv_cache_events_async(timeout=_REPORT_WAIT_S):
        if blocks := pool_blocks(event):
            return blocks
    return 0


def engine_info(api: Api, config: EngineConfig, checkpoint: Checkpoint) -> TurnEngineInfo:
    """The configured properties; num_blocks is 0 if the runtime is to decide. Raises ConfigError
    if settings do not fit each other or the checkpoint.

    Penalties, seeds, biases and grammars are not among the abilities: its PyTorch sampler does not
    read all of them in each of the versions, and says nothing.
    """
    num_ids = config.vocabulary_size or checkpoint.vocabulary_size
    if num_ids > checkpoint.vocabulary_size:
        raise ConfigError(
            f"the checkpoint scores {checkpoint.vocabulary_size} ids, the vocabulary that is "
            f"served has {num_ids}; set {_SETTING} and model to the same model"
        )
    if config.max_context_tokens > checkpoint.max_context_tokens:
        raise ConfigError(
            f"max_context_tokens is {config.max_context_tokens}: the checkpoint has room for "
            f"{checkpoint.max_context_tokens}; lower it"
        )
    abilities = {Ability.TOP_K, Ability.LOGPROBS, Ability.SALT}
    return TurnEngineInfo(
        name="tensorrt-llm",
        vocabulary_size=num_ids,
        max_sessions=config.trtllm.max_batch_size,
        max_context_tokens=config.max_context_tokens or checkpoint.max_context_tokens,
        abilities=frozenset(abilities | ({Ability.PRIORITY} if api.has_priority else set())),
        block_tokens=BLOCK_TOKENS,
        num_blocks=_blocks_asked_for(config, checkpoint.kv_token_bytes * BLOCK_TOKENS),
        tells_prefixes=True,
        version=api.version,
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


def settle_pool(config: EngineConfig, wanted: TurnEngineInfo, measured: int) -> TurnEngineInfo:
    """`wanted` with the blocks and the context that have room. Raises ConfigError."""
    asked = wanted.num_blocks
    if not measured and not asked:
        raise ConfigError(
            "TensorRT-LLM does not report the size of its KV pool (kvCacheStats.maxNumBlocks); "
            "set kv_bytes or num_blocks"
        )
    num_blocks = min(asked or measured, measured or asked)
    room = num_blocks * BLOCK_TOKENS
    if max(config.max_context_tokens, BLOCK_TOKENS + 1) > room:
        raise ConfigError(
            f"the KV pool has {num_blocks} blocks, with room for {room} tokens; raise kv_share, "
            "kv_bytes or num_blocks, or lower max_context_tokens"
        )
    context = min(wanted.max_context_tokens, room)
    return replace(wanted, num_blocks=num_blocks, max_context_tokens=context)


def llm_arguments(api: Api, config: EngineConfig, wanted: TurnEngineInfo) -> dict[str, Any]:
    """Arguments of tensorrt_llm.LLM. Its second cache manager keeps no salts apart, so the first is
    asked for where there are two."""
    options = config.trtllm
    manager = {"use_kv_cache_manager_v2": False} if api.has_two_cache_managers else {}
    return {
        "model": str(options.model_dir),
        "skip_tokenizer_init": True,
        "tensor_parallel_size": options.tensor_parallel_size,
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": wanted.max_context_tokens,
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        # Replies have many tokens: the next step is prepared while one runs.
        "disable_overlap_scheduler": False,
        "kv_cache_config": api.kv_cache_config(
            enable_block_reuse=True,
            enable_partial_reuse=True,
            copy_on_partial_reuse=True,
            **_pool_arguments(config, wanted),
            host_cache_size=options.host_cache_bytes or None,
            event_buffer_max_size=_EVENT_BUFFER,
            tokens_per_block=wanted.block_tokens,
            **manager,
        ),
    }


def _pool_arguments(config: EngineConfig, wanted: TurnEngineInfo) -> dict[str, Any]:
    """Arguments for the pool's size. The runtime takes the lesser of max_tokens and the fraction of
    what weights and peak activations leave (KvCacheCreator.configure_kv_cache_capacity)."""
    if not wanted.num_blocks:
        return {"max_tokens": None, "free_gpu_memory_fraction": config.kv_share}
    tokens = wanted.num_blocks * wanted.block_tokens
    return {"max_tokens": tokens, "free_gpu_memory_fraction": _MOST_OF_FREE}
