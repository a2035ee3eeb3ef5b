"""The replica's settings reach the scheduler and the engine, or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.config import load
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeOptions
from outrider.errors import ConfigError
from outrider.models.definitions import EngineDefaults, ModelSpec
from services.inference.config import InferenceConfig


def test_settings_reach_scheduler_and_engine() -> None:
    environ = {
        "OUTRIDER_INFERENCE_SCHEDULER_MAX_SESSIONS": "3",
        "OUTRIDER_INFERENCE_SCHEDULER_PREFILL_CHUNK_TOKENS": "32",
        "OUTRIDER_INFERENCE_THREADS": "2",
        "OUTRIDER_INFERENCE_EXACT": "false",
        "OUTRIDER_INFERENCE_NUM_BLOCKS": "77",
    }
    config = load(InferenceConfig, "inference", environ=environ)
    assert (config.scheduler.max_sessions, config.scheduler.prefill_chunk_tokens) == (3, 32)
    engine = config.engine_config(vocabulary_size=1000)
    assert (engine.threads, engine.exact, engine.num_blocks) == (2, False, 77)
    assert (engine.vocabulary_size, engine.fake.vocabulary_size) == (1000, 1000)
    assert engine.fake.num_blocks == 77


def test_a_models_definition_gives_what_the_replica_leaves_open() -> None:
    spec = ModelSpec(
        "m", "file:/m", max_context_tokens=512, engine=EngineDefaults("f32", False, 4, 4)
    )
    engine = InferenceConfig().engine_config(spec=spec)
    assert (engine.precision, engine.dynamic_quantization) == ("f32", False)
    assert (engine.max_fixed_rows, engine.max_context_tokens) == (4, 512)
    assert engine.weight_bits == 4
    assert engine.fake.max_context_tokens == 512
    environ = {
        "OUTRIDER_INFERENCE_PRECISION": "bf16",
        "OUTRIDER_INFERENCE_DYNAMIC_QUANTIZATION": "true",
        "OUTRIDER_INFERENCE_MAX_FIXED_ROWS": "0",
        "OUTRIDER_INFERENCE_WEIGHT_BITS": "8",
        "OUTRIDER_INFERENCE_MAX_CONTEXT_TOKENS": "64",
    }
    engine = load(InferenceConfig, "inference", environ=environ).engine_config(spec=spec)
    assert (engine.precision, engine.dynamic_quantization) == ("bf16", True)
    assert engine.weight_bits == 8
    assert (engine.max_fixed_rows, engine.max_context_tokens) == (0, 64)
    for nothing in (None, ModelSpec("m", "file:/m")):
        assert InferenceConfig().engine_config(1, nothing) == EngineConfig(
            vocabulary_size=1, fake=FakeOptions(vocabulary_size=1)
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"port": -1},
        {"admin.port": 70_000},
        {"replica": ""},
        {"region": ""},
        {"engine": "abacus"},
        {"precision": "f8"},
        {"threads": 0},
        {"kv_bytes": -1},
        {"kv_share": 0.0},
        {"kv_share": float("nan")},
        {"max_context_tokens": -1},
        {"num_blocks": 0},
        {"scheduler.max_sessions": 0},
        {"scheduler.max_tick_ms": float("nan")},
        {"max_outbox_frames": 0},
        {"max_stream_sessions": 0},
        {"max_message_bytes": 65_535},
        {"fake_call_ms": -1.0},
        {"drain_s": -1.0},
        {"drain_s": float("nan")},
    ],
    ids=str,
)
def test_absurd_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="|".join(key.rpartition(".")[2] for key in settings)):
        load(InferenceConfig, "inference", environ={}, flags=settings)
