"""Folders of safetensors through store, converter and engine, against a numpy forward pass of the
tensors as they are published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engines.model_size import size_of
from outrider.engines.openvino.convert import converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import LAYOUT_OF_BITS
from outrider.errors import ArtifactCorruptError, OutriderError, UnsupportedModelError
from outrider.fidelity.comparing import engine_rows
from outrider.models.catalog import ModelSpec
from outrider.models.checkpoint import read_checkpoint_config
from outrider.models.store import ModelStore
from outrider.models.vocabulary import load_vocabulary
from tests.engines.openvino.test_formats import CONFIG, IDS, MAX_DIFFERENCE
from tests.models.checkpoints import (
    LLAMA,
    LLAMA3_RULE,
    QWEN2,
    QWEN3,
    Small,
    Tensors,
    logits_of,
    random_tensors,
    stored,
    write_checkpoint,
)
from tests.models.test_tokenizer_json import small as small_tokenizer

TOKENIZER = small_tokenizer("gpt-2")
SIZE = 288
"""Ids of the model: more than of its tokenizer."""


def difference(folder: Path, work: Path, expected: Any) -> float:
    """Of the engine's logits: RMS, over that of the expected ones."""
    store = ModelStore(work / "store")
    spec = ModelSpec("m", f"dir:{folder}", store.ensure(f"dir:{folder}").sha256)
    engine = OpenVinoEngine(converted(spec, store), CONFIG)
    try:
        rows = np.concatenate([logits.copy() for _, logits in engine_rows(engine, IDS)])
    finally:
        engine.close()
    return float(np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)))


def slow_wavelengths(small: Small, factor: float) -> Any:
    """The rule of Llama 3.1, one wavelength at a time."""
    found = []
    for pair in range(small.head_size // 2):
        frequency = small.base ** (-2 * pair / small.head_size)
        wavelength = 2 * math.pi / frequency
        if wavelength > 64 / 1.0:
            frequency /= factor
        elif wavelength >= 64 / 4.0:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / factor + smooth * frequency
        found.append(frequency)
    return np.array(found)


@pytest.mark.parametrize(
    ("small", "dtype", "shards"),
    [
        (Small(LLAMA, SIZE), "BF16", 1),
        (Small(LLAMA, SIZE, tied=False, width=192), "F16", 3),
        (Small(QWEN2, SIZE), "F32", 2),
        (Small(QWEN3, SIZE, tied=False, width=192), "BF16", 1),
    ],
    ids=lambda value: getattr(value, "architecture", str(value)),
)
def test_every_architecture_computes_what_its_tensors_say(
    small: Small, dtype: str, shards: int, tmp_path: Path
) -> None:
    tensors = random_tensors(small)
    folder = write_checkpoint(tmp_path / "m", small, tensors, TOKENIZER, dtype=dtype, shards=shards)
    expected = logits_of(small, stored(tensors, dtype), IDS.tolist(), None)
    assert difference(folder, tmp_path, expected) < MAX_DIFFERENCE


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (LLAMA3_RULE, "rope_scaling"),
        ({"type": "linear", "factor": 4.0}, "rope_scaling"),
        ({**LLAMA3_RULE, "rope_theta": 500.0}, "rope_parameters"),
    ],
)
def test_scaled_positions_are_those_of_the_config(
    rule: dict[str, Any], key: str, tmp_path: Path
) -> None:
    small = Small(LLAMA, SIZE, base=rule.get("rope_theta", 10_000.0))
    tensors = random_tensors(small)
    changes = {key: rule} | ({"rope_theta": None} if key == "rope_parameters" else {})
    folder = write_checkpoint(tmp_path / "m", small, tensors, TOKENIZER, config=changes)
    frequencies = slow_wavelengths(small, 8.0)
    if rule.get("type") == "linear":
        frequencies = small.base ** -(np.arange(0, 64, 2) / 64) / 4.0
    expected = logits_of(small, tensors, IDS.tolist(), frequencies)
    assert difference(folder, tmp_path, expected) < MAX_DIFFERENCE
    plain = logits_of(small, tensors, IDS.tolist(), None)
    assert float(np.sqrt(np.mean((plain - expected) ** 2) / np.mean(expected**2))) > 0.1


@pytest.mark.parametrize("window", [None, 512, 4096])
def test_a_window_as_wide_as_the_context_hides_nothing(window: int | None) -> None:
    config = Small("MistralForCausalLM").config(sliding_window=window)
    assert read_checkpoint_config(config).architecture.name == "llama"
    qwen = Small(QWEN2).config(sliding_window=64, use_sliding_window=False)
    assert read_checkpoint_config(qwen).architecture.name == "qwen2"


def test_keys_that_change_no_result_are_passed_over() -> None:
    plain = Small(LLAMA).config()
    more = {
        **{"model_type": "llama", "torch_dtype": "bfloat16", "use_cache": True},
        **{"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "pretraining_tp": 1},
        **{"attention_dropout": 0.1, "transformers_version": "5.24.0", "_name_or_path": "a/b"},
        **{"initializer_range": 0.02, "unsloth_fixed": True, "max_window_layers": 28},
        **{"temperature": 0.6, "id2label": {"0": "a"}, "final_logit_softcapping": None},
        **{"num_local_experts": 0, "attention_bias": False, "rope_interleaved": False},
    }
    assert read_checkpoint_config(plain | more) == read_checkpoint_config(plain)


def test_the_store_knows_vocabulary_and_size(tmp_path: Path) -> None:
    small = Small(LLAMA, SIZE)
    folder = write_checkpoint(tmp_path / "m", small, random_tensors(small), TOKENIZER, dtype="BF16")
    store = ModelStore(tmp_path / "store")
    spec = ModelSpec("m", f"dir:{folder}", store.ensure(f"dir:{folder}").sha256)
    assert load_vocabulary(spec, store).size == SIZE
    size = size_of(spec, store)
    true = converted(spec, store).weights.stat().st_size
    assert size.weights_bytes == pytest.approx(true, rel=0.05)
    coarse = converted(spec, store, LAYOUT_OF_BITS[4]).weights.stat().st_size
    assert size.weights_bytes_of(4) == pytest.approx(coarse, rel=0.05)
    assert coarse < 0.8 * true
    assert (size.num_layers, size.kv_values) == (2, 2 * 2 * 64)


@pytest.mark.parametrize(
    ("change", "config", "error", "complaint"),
    [
        ({"model.norm.weight": None}, {}, ArtifactCorruptError, r"lacks 'model\.norm\.weight'"),
        ({"lm_head.weight": None}, {"tie_word_embeddings": False}, ArtifactCorruptError, "lm_head"),
        (
            {"lm_head.weight": np.zeros((SIZE, 256), np.float32)},
            {},
            UnsupportedModelError,
            "differs from model.embed_tokens",
        ),
        (
            {"model.layers.0.self_attn.q_proj.bias": np.zeros(256, np.float32)},
            {},
            UnsupportedModelError,
            r"has 'model\.layers\.0\.self_attn\.q_proj\.bias', which no llama model has",
        ),
        (
            {"model.norm.weight": np.zeros(128, np.float32)},
            {},
            ArtifactCorruptError,
            r"shape \[128\], config.json says \[256\]",
        ),
        ({}, {"architectures": ["Gemma2ForCausalLM"]}, UnsupportedModelError, "Gemma2ForCausalLM"),
        ({}, {"architectures": None}, UnsupportedModelError, "LlamaForCausalLM"),
        ({}, {"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantised"),
        ({}, {"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({}, {"sliding_window": 64}, UnsupportedModelError, "sliding_window"),
        (
            {},
            {"architectures": ["MistralForCausalLM"], "sliding_window": 511},
            UnsupportedModelError,
            "sliding_window",
        ),
        ({}, {"rope_scaling": {"type": "yarn"}}, UnsupportedModelError, "'yarn'"),
        ({}, {"rope_scaling": {"type": "linear"}}, UnsupportedModelError, "factor"),
        ({}, {"partial_rotary_factor": 0.5}, UnsupportedModelError, "part of a head"),
        ({}, {"logits_scaling": 8.0}, UnsupportedModelError, "logits_scaling is '8.0'"),
        ({}, {"residual_multiplier": 0.2}, UnsupportedModelError, "residual_multiplier"),
        ({}, {"no_rope_layers": [1, 1, 0]}, UnsupportedModelError, "no_rope_layers"),
        ({}, {"query_pre_attn_scalar": 100}, UnsupportedModelError, "query_pre_attn_scalar"),
        ({}, {"final_logit_softcapping": 30.0}, UnsupportedModelError, "final_logit_softcapping"),
        ({}, {"a key of next year": "x"}, UnsupportedModelError, "a key of next year"),
        ({}, {"layer_types": ["sliding_attention"]}, UnsupportedModelError, "layer_types"),
        ({}, {"layer_types": 3}, UnsupportedModelError, "layer_types"),
        ({}, {"rope_scaling": {"factor": 2.0}}, UnsupportedModelError, "without a name"),
        ({}, {"rope_theta": 10**400}, UnsupportedModelError, "rope_theta"),
        (
            {"\x1b[2J" * 99: np.zeros(1, np.float32)},
            {},
            UnsupportedModelError,
            r"has '\\x1b\[2J.{1,200}', which no llama model has",
        ),
        ({}, {"num_key_value_heads": 3}, UnsupportedModelError, "cannot share"),
        ({}, {"hidden_size": "256"}, UnsupportedModelError, "hidden_size"),
        ({}, {"rms_norm_eps": float("nan")}, UnsupportedModelError, "rms_norm_eps"),
        ({}, {"num_hidden_layers": 1 << 30}, UnsupportedModelError, "layers"),
    ],
    ids=str,
)
def test_what_would_be_served_wrongly_is_refused(
    change: dict[str, Any],
    config: dict[str, Any],
    error: type[OutriderError],
    complaint: str,
    tmp_path: Path,
) -> None:
    small = Small(LLAMA, SIZE)
    tensors: Tensors = {
        name: values
        for name, values in (random_tensors(small) | change).items()
        if values is not None
    }
    folder = write_checkpoint(tmp_path / "m", small, tensors, TOKENIZER, config=config)
    store = ModelStore(tmp_path / "store")
    spec = ModelSpec("m", f"dir:{folder}", store.ensure(f"dir:{folder}").sha256)
    with pytest.raises(error, match=complaint):
        converted(spec, store)
    assert store.built(store.load(spec.source), "ir-") == ()
