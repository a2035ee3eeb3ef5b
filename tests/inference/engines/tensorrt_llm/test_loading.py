"""Settings and a checkpoint's config.json become an engine, or an error that says what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.config import load
from outrider.errors import ConfigError, EngineError
from services.inference.config import InferenceConfig
from services.inference.engines.config import EngineConfig
from services.inference.engines.factory import create_engine
from services.inference.engines.tensorrt_llm.config import TensorRtLlmOptions
from services.inference.engines.tensorrt_llm.loading import (
    Checkpoint,
    engine_info,
    llm_arguments,
    make_llm,
    read_checkpoint,
)
from tests.inference.engines.tensorrt_llm.fake_llm import API, CHECKPOINT

LLAMA = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def write(folder: Path, **facts: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **facts}))
    return folder


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    assert read_checkpoint(write(tmp_path)) == Checkpoint(128_256, 8192, 131_072)
    assert read_checkpoint(write(tmp_path, head_dim=64)).kv_token_bytes == 65_536


@pytest.mark.parametrize("text", [None, "{", "[]", '{"vocab_size": 7}'])
def test_an_unusable_checkpoint_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"no usable config\.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="trtllm_model_dir is not set"):
        read_checkpoint(None)


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
    with pytest.raises(ConfigError, match="set kv_bytes or num_blocks"):
        engine_info(EngineConfig(engine="tensorrt-llm", kv_bytes=100), CHECKPOINT)


def test_the_runtime_gets_its_settings() -> None:
    settings = config(model_dir=Path("/m"), tensor_parallel_size=2, host_cache_bytes=5)
    arguments = llm_arguments(API, settings.trtllm, engine_info(settings, CHECKPOINT))
    assert arguments["model"] == "/m"
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["max_seq_len"] == 513
    assert arguments["enable_chunked_prefill"]
    cache = arguments["kv_cache_config"]
    assert (cache.max_tokens, cache.host_cache_size, cache.tokens_per_block) == (3200, 5, 32)
    assert cache.enable_block_reuse


def test_a_runtime_that_does_not_start_is_an_engine_error() -> None:
    info = engine_info(config(), CHECKPOINT)

    def broken(**arguments: Any) -> Any:
        raise RuntimeError("no device")

    api = type(API)(
        "1.2.1",
        broken,
        API.sampling_params,
        API.kv_cache_config,
        API.retention_config,
        API.token_range,
    )
    with pytest.raises(EngineError, match=r"1\.2\.1 does not start: RuntimeError: no device"):
        make_llm(api, TensorRtLlmOptions(), info)


def test_without_the_package_a_replica_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    monkeypatch.setattr(
        "services.inference.engines.tensorrt_llm.loading.find_package", lambda: None
    )
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        create_engine(config(model_dir=write(tmp_path)))


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    environ = {
        "OUTRIDER_INFERENCE_ENGINE": "tensorrt-llm",
        "OUTRIDER_INFERENCE_TRTLLM_MODEL_DIR": str(tmp_path),
        "OUTRIDER_INFERENCE_TRTLLM_NUM_CANDIDATES": "40",
        "OUTRIDER_INFERENCE_TRTLLM_TRUNCATE_SAMPLING": "true",
        "OUTRIDER_INFERENCE_TRTLLM_LOGITS_BYTES": "1000000",
    }
    options = load(InferenceConfig, "inference", environ=environ).engine_config().trtllm
    assert options.model_dir == tmp_path
    assert (options.num_candidates, options.truncate_sampling) == (40, True)
    assert options.logits_bytes == 1_000_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_candidates", 0),
        ("tensor_parallel_size", 0),
        ("logits_bytes", 0),
        ("host_cache_bytes", -1),
        ("free_memory_fraction", 0.0),
        ("free_memory_fraction", 1.5),
        ("request_timeout_s", float("nan")),
    ],
)
def test_absurd_settings_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        TensorRtLlmOptions(**{field: value})
