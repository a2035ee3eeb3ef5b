"""A model's size from its file's header: as the converter and the engine find it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from outrider.engines.model_size import ModelSize, read_folder_size, read_size, size_of
from outrider.engines.openvino.convert import converted
from outrider.errors import UnsupportedModelError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from tests.models.gguf_files import write_out


def write(
    path: Path, *, tied: bool = True, heads: int | None = 4, has_vocabulary: bool = True
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if has_vocabulary:
        writer.add_token_list([b"a", b"b", b"c"])
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    if heads is not None:
        writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    if not tied:
        writer.add_tensor("output.weight", np.zeros((3, 64), np.float32))
    write_out(writer)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_a_byte_a_weight_and_a_scale_for_32(tmp_path: Path, tied: bool) -> None:
    size = read_size(write(tmp_path / "m.gguf", tied=tied))
    num_weights = 64 * 64 + 2 * 3 * 64  # a matrix that is embedding and head is held twice
    packed = (64 * 64 + 3 * 64) * 34 // 32
    assert size == ModelSize(num_weights * 34 // 32, 3, 2, 2 * (16 + 16), packed)
    assert size.kv_token_bytes("f32") == 2 * size.kv_token_bytes("bf16") == 2 * 64 * 4


def test_four_bits_take_half_of_all_but_the_embedding() -> None:
    size = ModelSize(
        weights_bytes=2000, vocabulary_size=3, num_layers=1, kv_values=2, packed_bytes=1360
    )
    assert size.weights_bytes_of(8) == 2000
    assert size.weights_bytes_of(4) == 640 + 690
    assert ModelSize(2000, 3, 1, 2).weights_bytes_of(4) == 2000, "a folder serves as it is"


def test_a_header_that_does_not_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"attention\.head_count"):
        read_size(write(tmp_path / "m.gguf", heads=None))
    with pytest.raises(UnsupportedModelError, match="no vocabulary"):
        read_size(write(tmp_path / "n.gguf", has_vocabulary=False))


def test_a_folders_size_is_that_of_its_weights(tmp_path: Path) -> None:
    config = {"vocab_size": 9, "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "openvino_model.bin").write_bytes(bytes(1000))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_folder_size(tmp_path) == ModelSize(1000, 9, 3, 4 * 2 * 16)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 2}))
    assert read_folder_size(tmp_path).kv_values == 2 * 2 * 16
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": "3"}))
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers"):
        read_folder_size(tmp_path)


@pytest.mark.model
def test_the_default_model_is_as_large_as_its_converted_file(model_store: ModelStore) -> None:
    size = size_of(DEFAULT_MODEL, model_store)
    assert size == size_of(DEFAULT_MODEL, model_store)  # kept in the store by now
    true = converted(DEFAULT_MODEL, model_store).weights.stat().st_size
    assert size.weights_bytes == pytest.approx(true, rel=0.02)
    assert size.vocabulary_size == 49152
    assert size.kv_token_bytes("f32") == 1_474_560 // 32
