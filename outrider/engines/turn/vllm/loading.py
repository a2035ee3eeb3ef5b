"""From a checkpoint's folder to a ready vLLM."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import TYPE_CHECKING, Any, Final

import structlog

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import Ability, TurnEngineInfo
from outrider.engines.turn.checkpoint import (
    TOKENIZER_FILE,
    Checkpoint,
    check_vocabulary,
    read_checkpoint,
)
from outrider.engines.turn.prefix_hub import PrefixHub
from outrider.engines.turn.vllm.api import Api, Llm, import_api
from outrider.engines.turn.vllm.engine import VllmTurnEngine
from outrider.engines.turn.vllm.guard import Guard
from outrider.engines.turn.vllm.load import LatestStats
from outrider.engines.turn.vllm.prefixes import BlockTranslator, EventSocket
from outrider.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary

log = structlog.get_logger()

_SETTING: Final = "vllm.model_dir"
_GRAMMARS: Final = frozenset(
    {Ability.JSON_SCHEMA, Ability.JSON_OBJECT, Ability.REGEX, Ability.LARK}
)


async def open_engine(config: EngineConfig, vocabulary: Vocabulary) -> VllmTurnEngine:
    """Load the model, in a thread: it takes from half a minute to minutes.

    Raises ConfigError if the package is missing or lacks what is called, or if the settings do not
    fit the checkpoint, and EngineError if vLLM does not start.
    """
    folder = config.vllm.model_dir
    checkpoint = read_checkpoint(folder, _SETTING)
    await asyncio.to_thread(check_vocabulary, folder, vocabulary, _SETTING)
    api = await asyncio.to_thread(import_api)
    return await start_engine(api, config, checkpoint, EventSocket())


async def start_engine(
    api: Api, config: EngineConfig, checkpoint: Checkpoint, events: EventSocket
) -> VllmTurnEngine:
    """As open_engine, with the package at hand."""
    stats, hub = LatestStats(), PrefixHub()
    events.open()
    before = _children()
    try:
        args = api.engine_args(**engine_arguments(api, config, checkpoint, events.endpoint))
        llm = await asyncio.to_thread(_start, api, args, stats)
    except BaseException:
        await events.close()
        raise
    guard = Guard(_children() - before)
    info = engine_info(api, config, llm)
    log.info("vllm_started", version=api.version, num_blocks=info.num_blocks)
    events.read(BlockTranslator(info.block_tokens, max(1, info.num_blocks)), hub)
    return VllmTurnEngine(
        api,
        llm,
        info,
        stats=stats,
        hub=hub,
        events=events,
        guard=guard,
        silence_timeout_s=config.vllm.silence_timeout_s,
    )


def _children() -> set[int]:
    return {it.pid for it in multiprocessing.active_children() if it.pid is not None}


def _start(api: Api, args: Any, stats: LatestStats) -> Llm:
    try:
        return api.start(args, stat_loggers=[stats])
    except Exception as error:
        raise EngineError(
            f"vLLM {api.version} does not start: {type(error).__name__}: {error}"
        ) from error


def engine_arguments(
    api: Api, config: EngineConfig, checkpoint: Checkpoint, endpoint: str
) -> dict[str, Any]:
    """Arguments of vllm.AsyncEngineArgs; what is not set is left to vLLM. Raises ConfigError."""
    options = config.vllm
    if config.max_context_tokens > checkpoint.max_context_tokens:
        raise ConfigError(
            f"max_context_tokens is {config.max_context_tokens}: the checkpoint has room for "
            f"{checkpoint.max_context_tokens}; lower it"
        )
    assert options.model_dir is not None
    arguments: dict[str, Any] = {
        "model": str(options.model_dir),
        "skip_tokenizer_init": not (options.model_dir / TOKENIZER_FILE).exists(),
        "dtype": options.dtype,
        "max_model_len": config.max_context_tokens or checkpoint.max_context_tokens,
        "max_num_seqs": options.max_num_seqs,
        "tensor_parallel_size": options.tensor_parallel_size,
        "gpu_memory_utilization": options.memory_share,
        "enforce_eager": options.enforce_eager,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        # Grammars are read by the same library as those of step engines.
        "structured_outputs_config": api.structured_outputs_config(backend="guidance"),
        # Else defaults of sampling would come from the checkpoint's generation_config.json.
        "generation_config": "vllm",
        "kv_events_config": api.kv_events_config(
            enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint
        ),
        "enable_log_requests": False,
    }
    if options.max_num_batched_tokens:
        arguments["max_num_batched_tokens"] = options.max_num_batched_tokens
    if config.num_blocks:
        arguments["num_gpu_blocks_override"] = config.num_blocks
    elif config.kv_bytes:
        arguments["kv_cache_memory_bytes"] = config.kv_bytes
    return arguments


def engine_info(api: Api, config: EngineConfig, llm: Llm) -> TurnEngineInfo:
    """What the running engine says of itself."""
    settings, options = llm.vllm_config, config.vllm
    assert options.model_dir is not None
    has_tokenizer = (options.model_dir / TOKENIZER_FILE).exists()
    return TurnEngineInfo(
        name="vllm",
        vocabulary_size=config.vocabulary_size or int(settings.model_config.get_vocab_size()),
        max_sessions=options.max_num_seqs,
        max_context_tokens=int(settings.model_config.max_model_len),
        abilities=frozenset(Ability) - (frozenset() if has_tokenizer else _GRAMMARS),
        block_tokens=int(settings.cache_config.block_size),
        num_blocks=int(settings.cache_config.num_gpu_blocks or 0),
        tells_prefixes=True,
        version=api.version,
    )
