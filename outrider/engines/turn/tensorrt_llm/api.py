"""What of TensorRT-LLM is used, by name; and its late import.

Nothing here imports tensorrt_llm until `import_api` is called: the package needs CUDA libraries
the moment it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outrider.engines.turn.signatures import Uses, check_installed, parameters_of
from outrider.errors import ConfigError

PACKAGE: Final = "tensorrt_llm"

CALLS: Final[Uses] = {
    "tensorrt_llm:LLM.generate_async": ("inputs", "sampling_params", "streaming", "cache_salt"),
    "tensorrt_llm:LLM.get_stats_async": ("timeout",),
    "tensorrt_llm:LLM.get_kv_cache_events_async": ("timeout",),
    "tensorrt_llm:LLM.shutdown": (),
    "tensorrt_llm.llmapi:RequestOutput.abort": (),
    "tensorrt_llm:SamplingParams": (
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "logprobs",
        "end_id",
        "pad_id",
        "stop_token_ids",
        "ignore_eos",
        "detokenize",
    ),
    "tensorrt_llm.llmapi:KvCacheConfig": (
        "enable_block_reuse",
        "enable_partial_reuse",
        "copy_on_partial_reuse",
        "max_tokens",
        "free_gpu_memory_fraction",
        "host_cache_size",
        "event_buffer_max_size",
        "tokens_per_block",
    ),
    "tensorrt_llm.llmapi:TorchLlmArgs": (
        "skip_tokenizer_init",
        "tensor_parallel_size",
        "max_num_tokens",
        "max_seq_len",
        "enable_chunked_prefill",
        "enable_iter_perf_stats",
        "disable_overlap_scheduler",
        "kv_cache_config",
    ),
}
"""What is passed in every version, by name; LLM takes the parameters of TorchLlmArgs."""

UNREAD: Final[Uses] = {"tensorrt_llm.llmapi:TorchLlmArgs": ("model", "max_batch_size")}
"""As CALLS, but in parts of the sources that were not to be had; checked at the start alone."""

SOMETIMES: Final[Uses] = {
    "tensorrt_llm:LLM.generate_async": ("priority",),
    "tensorrt_llm.llmapi:KvCacheConfig": ("use_kv_cache_manager_v2",),
}
"""What is passed where the installed version has it."""

READS: Final[Uses] = {
    "tensorrt_llm.llmapi:RequestOutput": (
        "outputs",
        "finished",
        "cached_tokens",
        "__aiter__",
        "__anext__",
    ),
    "tensorrt_llm.llmapi:CompletionOutput": ("token_ids", "finish_reason", "logprobs"),
    "tensorrt_llm.executor.result:Logprob": ("logprob", "rank"),
}
"""What is read from objects."""


class Output(Protocol):
    """tensorrt_llm.llmapi.RequestOutput: an iterator over itself, which grows."""

    @property
    def outputs(self) -> Any: ...

    @property
    def finished(self) -> bool: ...

    @property
    def cached_tokens(self) -> int: ...

    def __aiter__(self) -> Output: ...

    async def __anext__(self) -> Output: ...

    def abort(self) -> None: ...


class Llm(Protocol):
    """tensorrt_llm.LLM."""

    @property
    def generate_async(self) -> Callable[..., Output]: ...

    def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[Any]: ...

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> AsyncIterator[Any]: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """The names that the engine calls."""

    version: str
    make_llm: Callable[..., Llm]
    """tensorrt_llm.LLM"""
    sampling_params: Callable[..., Any]
    kv_cache_config: Callable[..., Any]
    has_priority: bool
    """Whether generate_async takes one."""
    has_two_cache_managers: bool
    """Whether the KV cache's manager can be chosen."""


def import_api() -> Api:
    """Import the package. Raises ConfigError if it is not there, cannot run here, or lacks what is
    called."""
    try:
        package = importlib.import_module(PACKAGE)
        llmapi = importlib.import_module(f"{PACKAGE}.llmapi")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"{PACKAGE} cannot be imported ({error}): the engine tensorrt-llm needs an NVIDIA GPU, "
            "its driver and the package; see docs/guides/tensorrt-llm.md"
        ) from error
    version = str(getattr(package, "__version__", "of no version"))
    check_installed(PACKAGE, version, CALLS)
    check_installed(PACKAGE, version, UNREAD)
    generated, cached = SOMETIMES.values()
    return Api(
        version=version,
        make_llm=package.LLM,
        sampling_params=package.SamplingParams,
        kv_cache_config=llmapi.KvCacheConfig,
        has_priority=parameters_of(package.LLM.generate_async).issuperset(generated),
        has_two_cache_managers=parameters_of(llmapi.KvCacheConfig).issuperset(cached),
    )
