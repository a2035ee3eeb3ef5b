"""The part of the LLM API that is used, as types; and its late import.

Nothing here imports tensorrt_llm until `import_api` is called: the package needs CUDA libraries
the moment it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from outrider.errors import ConfigError

PACKAGE = "tensorrt_llm"


class Logprob(Protocol):
    """One candidate of a row."""

    @property
    def logprob(self) -> float: ...

    @property
    def rank(self) -> int | None: ...


TokenLogprobs: TypeAlias = Sequence[Mapping[int, Logprob]]
"""One mapping per position, id to candidate."""


class Completion(Protocol):
    """tensorrt_llm.llmapi.CompletionOutput."""

    @property
    def prompt_logprobs(self) -> TokenLogprobs | None: ...


class Output(Protocol):
    """tensorrt_llm.llmapi.RequestOutput: a request, and its answer when it has arrived."""

    @property
    def outputs(self) -> Sequence[Completion]: ...

    def result(self) -> object: ...

    def abort(self) -> None: ...


class Llm(Protocol):
    """tensorrt_llm.LLM."""

    @property
    def generate_async(self) -> Callable[..., Output]: ...

    def get_stats(self, timeout: float | None) -> list[dict[str, Any]]: ...

    def get_kv_cache_events(self, timeout: float | None) -> list[dict[str, Any]]: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """The names the engine calls."""

    version: str
    make_llm: Callable[..., Llm]
    """tensorrt_llm.LLM"""
    sampling_params: Callable[..., object]
    """tensorrt_llm.SamplingParams"""
    kv_cache_config: Callable[..., object]
    """tensorrt_llm.llmapi.KvCacheConfig"""
    torch_compile_config: Callable[..., object]
    """tensorrt_llm.llmapi.TorchCompileConfig"""
    retention_config: Callable[..., object]
    """tensorrt_llm.llmapi.KvCacheRetentionConfig"""
    token_range: Callable[..., object]
    """tensorrt_llm.llmapi.KvCacheRetentionConfig.TokenRangeRetentionConfig"""


def import_api() -> Api:
    """Import the package. Raises ConfigError if it is not there, or cannot run here."""
    try:
        package = importlib.import_module(PACKAGE)
        llmapi = importlib.import_module(f"{PACKAGE}.llmapi")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"{PACKAGE} cannot be imported ({error}): the engine tensorrt-llm needs an NVIDIA GPU, "
            "its driver and the package; see docs/guides/tensorrt-llm.md"
        ) from error
    try:
        retention = llmapi.KvCacheRetentionConfig
        return Api(
            version=str(package.__version__),
            make_llm=package.LLM,
            sampling_params=package.SamplingParams,
            kv_cache_config=llmapi.KvCacheConfig,
            torch_compile_config=llmapi.TorchCompileConfig,
            retention_config=retention,
            token_range=retention.TokenRangeRetentionConfig,
        )
    except AttributeError as error:
        raise ConfigError(
            f"{PACKAGE} is not the package this engine was written against: {error}"
        ) from error
