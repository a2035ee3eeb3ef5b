"""What of vLLM is used, by name; and its late import.

Nothing here imports vllm until `import_api` is called: that takes seconds, and it is installed on
replicas with this engine alone.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outrider.engines.turn.signatures import Uses, check_installed
from outrider.errors import ConfigError

PACKAGE: Final = "vllm"

CALLS: Final[Uses] = {
    "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": ("engine_args", "stat_loggers"),
    "vllm.v1.engine.async_llm:AsyncLLM.generate": (
        "prompt",
        "sampling_params",
        "request_id",
        "priority",
    ),
    "vllm.v1.engine.async_llm:AsyncLLM.check_health": (),
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": (),
    "vllm.inputs:tokens_input": ("prompt_token_ids", "cache_salt"),
    "vllm:AsyncEngineArgs": (
        "model",
        "skip_tokenizer_init",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "enforce_eager",
        "enable_prefix_caching",
        "scheduling_policy",
        "structured_outputs_config",
        "generation_config",
        "kv_events_config",
        "enable_log_requests",
    ),
    "vllm.config:StructuredOutputsConfig": ("backend",),
    "vllm:SamplingParams": (
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "stop_token_ids",
        "ignore_eos",
        "detokenize",
        "output_kind",
        "structured_outputs",
    ),
    "vllm.sampling_params:StructuredOutputsParams": ("json", "json_object", "regex", "grammar"),
    "vllm.config:KVEventsConfig": ("enable_kv_cache_events", "publisher", "endpoint"),
}
"""What is passed, by name."""

READS: Final[Uses] = {
    "vllm.v1.engine.async_llm:AsyncLLM": ("vllm_config", "get_num_unfinished_requests"),
    "vllm.sampling_params:RequestOutputKind": ("DELTA",),
    "vllm:RequestOutput": ("outputs", "finished", "num_cached_tokens"),
    "vllm:CompletionOutput": ("token_ids", "finish_reason", "logprobs"),
    "vllm.logprobs:Logprob": ("logprob", "rank"),
    "vllm.distributed.kv_events:EventBatch": ("events",),
    "vllm.distributed.kv_events:BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "medium",
        "extra_keys",
        "group_idx",
    ),
    "vllm.distributed.kv_events:BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "vllm.v1.metrics.stats:SchedulerStats": ("num_waiting_reqs", "kv_cache_usage"),
    "vllm.config:CacheConfig": ("block_size", "num_gpu_blocks"),
    "vllm.config:ModelConfig": ("max_model_len", "get_vocab_size"),
}
"""What is read from objects."""


class Llm(Protocol):
    """vllm.v1.engine.async_llm.AsyncLLM."""

    vllm_config: Any

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]: ...

    def get_num_unfinished_requests(self) -> int: ...

    async def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """The names that the engine calls."""

    version: str
    start: Callable[..., Llm]
    """AsyncLLM.from_engine_args"""
    engine_args: Callable[..., Any]
    tokens_input: Callable[..., Any]
    sampling_params: Callable[..., Any]
    structured_outputs: Callable[..., Any]
    structured_outputs_config: Callable[..., Any]
    kv_events_config: Callable[..., Any]
    delta: Any
    """RequestOutputKind.DELTA"""
    dead_error: type[Exception]
    """What AsyncLLM raises when the process that computes is gone."""
    refused_error: type[Exception]
    """What it raises for a request whose values it does not take."""


def import_api() -> Api:
    """Import the package. Raises ConfigError if it is not there, or lacks what is called."""
    # Its processes: forks of a process with gRPC's threads may hang (decided before the import).
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        vllm = importlib.import_module(PACKAGE)
        engine = importlib.import_module(f"{PACKAGE}.v1.engine.async_llm")
        errors = importlib.import_module(f"{PACKAGE}.v1.engine.exceptions")
        config = importlib.import_module(f"{PACKAGE}.config")
        inputs = importlib.import_module(f"{PACKAGE}.inputs")
        sampling = importlib.import_module(f"{PACKAGE}.sampling_params")
        refusals = importlib.import_module(f"{PACKAGE}.exceptions")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"{PACKAGE} cannot be imported ({error}); install it beside Outrider, see "
            "docs/guides/vllm.md"
        ) from error
    check_installed(PACKAGE, str(vllm.__version__), CALLS)
    return Api(
        version=str(vllm.__version__),
        start=engine.AsyncLLM.from_engine_args,
        engine_args=vllm.AsyncEngineArgs,
        tokens_input=inputs.tokens_input,
        sampling_params=sampling.SamplingParams,
        structured_outputs=sampling.StructuredOutputsParams,
        structured_outputs_config=config.StructuredOutputsConfig,
        kv_events_config=config.KVEventsConfig,
        delta=sampling.RequestOutputKind.DELTA,
        dead_error=errors.EngineDeadError,
        refused_error=refusals.VLLMClientError,
    )
