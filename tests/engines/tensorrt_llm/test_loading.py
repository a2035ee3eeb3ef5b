"""Settings and a checkpoint's config.json become an engine, or an error that says what to do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.engines.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.tensorrt_llm.engine import TensorRtLlmEngine
from outrider.engines.tensorrt_llm.loading import (
    engine_info,
    llm_arguments,
    make_llm,
    start_engine,
)
from outrider.errors import ConfigError, EngineError
from tests.engines.tensorrt_llm.checkpoint_files import write_checkpoint
from tests.engines.tensorrt_llm.fake_llm import API, CHECKPOINT, LLM, VOCABULARY, RequestOutput
from tests.engines.tensorrt_llm.fake_types import GPU_BLOCKS, CompletionOutput


def config(num_blocks: int | None = 100, context: int = 0, **options: Any) -> EngineConfig:
    return EngineConfig(
        engine="tensorrt-llm",
        num_blocks=num_blocks,
        max_context_tokens=context,
        trtllm=TensorRtLlmOptions(**options),
    )


def test_the_engine_promises_what_it_can_keep() -> None:
    info = engine_info(config(), CHECKPOINT)
    assert not info.exact
    assert info.partial_rows
    assert info.keeps_kv
    assert (info.num_candidates, info.num_blocks, info.max_context_tokens) == (20, 100, 512)
    by_memory = EngineConfig(engine="tensorrt-llm", kv_bytes=64 * 32 * 7 + 5)
    assert engine_info(by_memory, CHECKPOINT).num_blocks == 7


def test_the_context_fits_the_memory_for_logits() -> None:
    a_token = CHECKPOINT.vocabulary_size * 4
    assert engine_info(config(logits_bytes=100 * a_token), CHECKPOINT).max_context_tokens == 100
    assert engine_info(config(context=90), CHECKPOINT).max_context_tokens == 90
    for settings in (
        config(context=513),
        config(context=101, logits_bytes=100 * a_token),
        config(logits_bytes=a_token),
    ):
        with pytest.raises(ConfigError, match="lower max_context_tokens"):
            engine_info(settings, CHECKPOINT)
    with pytest.raises(ConfigError, match="kv_bytes is 100, a block has 2048; raise"):
        engine_info(EngineConfig(engine="tensorrt-llm", kv_bytes=100), CHECKPOINT)
    with pytest.raises(ConfigError, match="kv_share is 1"):
        engine_info(EngineConfig(engine="tensorrt-llm", kv_share=1.0), CHECKPOINT)


def start(settings: EngineConfig, **made: Any) -> tuple[TensorRtLlmEngine, LLM]:
    """An engine and its stand-in, which gets these attributes."""
    llms: list[LLM] = []

    def make(**arguments: Any) -> LLM:
        llms.append(LLM(**arguments))
        for name, value in made.items():
            setattr(llms[0], name, value)
        return llms[0]

    api = replace(API, make_llm=make)
    try:
        return start_engine(api, settings, CHECKPOINT, engine_info(settings, CHECKPOINT)), llms[0]
    except (ConfigError, EngineError):
        assert llms[0].down, "a runtime is left running"
        raise


def share(value: float, context: int = 0) -> EngineConfig:
    return EngineConfig(engine="tensorrt-llm", kv_share=value, max_context_tokens=context)


@pytest.mark.parametrize("reports", [True, False], ids=["by statistics", "by events"])
def test_without_a_size_the_pool_is_a_share_of_the_gpu(reports: bool) -> None:
    engine, llm = start(share(0.25), reports=reports)
    assert llm.pool.free_gpu_memory_fraction == 0.25
    assert llm.pool.max_tokens is None
    assert engine.info.num_blocks == GPU_BLOCKS // 4
    assert engine.info.pool_reason == "kv_share is 0.25"
    assert engine.info.max_context_tokens == 512


def test_a_size_asked_for_is_granted_as_far_as_there_is_room() -> None:
    engine, llm = start(config(num_blocks=100))
    assert (llm.pool.max_tokens, llm.pool.free_gpu_memory_fraction) == (3200, 0.9)
    assert engine.info.num_blocks == 100
    engine, _ = start(config(num_blocks=2 * GPU_BLOCKS))
    assert engine.info.num_blocks == 0.9 * GPU_BLOCKS
    assert "room for fewer" in engine.info.pool_reason


def test_the_context_fits_the_pool() -> None:
    engine, _ = start(share(0.01))
    assert engine.info.num_blocks == 10
    assert engine.info.max_context_tokens == 10 * 32 - 1
    assert start(share(0.01, context=319))[0].info.max_context_tokens == 319
    for settings in (share(0.01, context=320), share(0.001)):
        with pytest.raises(
            ConfigError, match=r"raise\s+kv_share, kv_bytes or num_blocks, or lower"
        ):
            start(settings)


def test_a_pool_of_unknown_size_has_to_be_set() -> None:
    silent = {"reports": False, "get_kv_cache_events": lambda timeout: []}
    with pytest.raises(ConfigError, match="does not report the size of its KV pool"):
        start(share(0.25), **silent)
    assert start(config(num_blocks=100), **silent)[0].info.num_blocks == 100


def test_a_runtime_without_prompt_logprobs_is_refused() -> None:
    def finish(output: RequestOutput) -> None:
        output.outputs.append(CompletionOutput([]))
        output.done = True

    with pytest.raises(EngineError, match="gave no row for a prompt of one token"):
        start(config(), finish=finish)


def test_the_runtime_gets_its_settings() -> None:
    settings = config(model_dir=Path("/m"), tensor_parallel_size=2, host_cache_bytes=5)
    arguments = llm_arguments(API, settings, engine_info(settings, CHECKPOINT))
    assert arguments["model"] == "/m"
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["max_seq_len"] == 513
    assert arguments["enable_chunked_prefill"]
    cache = arguments["kv_cache_config"]
    assert (cache.max_tokens, cache.host_cache_size, cache.tokens_per_block) == (3200, 5, 32)
    assert cache.enable_block_reuse


def test_graphs_of_prefill_are_captured_where_they_are_asked_for() -> None:
    plain = llm_arguments(API, config(), engine_info(config(), CHECKPOINT))
    assert "torch_compile_config" not in plain
    engine, llm = start(config(prefill_graph_tokens=(64, 8)))
    assert llm.torch_compile is not None
    assert llm.torch_compile.enable_piecewise_cuda_graph
    assert llm.torch_compile.capture_num_tokens == [8, 64]
    engine.close()


def test_padding_of_the_checkpoint_is_not_served_but_takes_memory() -> None:
    padded = replace(config(), vocabulary_size=VOCABULARY - 7)
    info = engine_info(padded, CHECKPOINT)
    assert info.vocabulary_size == VOCABULARY - 7
    assert replace(padded, vocabulary_size=0) == config()
    assert engine_info(config(), CHECKPOINT).vocabulary_size == VOCABULARY
    assert info.max_context_tokens == engine_info(config(), CHECKPOINT).max_context_tokens
    room = replace(padded, trtllm=TensorRtLlmOptions(logits_bytes=100 * VOCABULARY * 4))
    assert engine_info(room, CHECKPOINT).max_context_tokens == 100
    with pytest.raises(ConfigError, match=r"scores 64 ids, the vocabulary that is served has 65"):
        engine_info(replace(config(), vocabulary_size=VOCABULARY + 1), CHECKPOINT)


def test_a_runtime_that_does_not_start_is_an_engine_error() -> None:
    def broken(**arguments: Any) -> Any:
        raise RuntimeError("no device")

    api = replace(API, make_llm=broken)
    with pytest.raises(EngineError, match=r"1\.2\.1 does not start: RuntimeError: no device"):
        make_llm(api, config(), engine_info(config(), CHECKPOINT))


def test_without_the_package_a_replica_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    monkeypatch.setattr("outrider.engines.tensorrt_llm.loading.find_package", lambda: None)
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        create_engine(config(model_dir=write_checkpoint(tmp_path)))
