"""Metadata of any type: what is no number that can be used is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from outrider.engines.gguf_decoder.architectures import check_architecture
from outrider.engines.gguf_decoder.metadata import count_of, number_of
from outrider.engines.gguf_decoder.rotary import read_factors
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import open_gguf
from tests.models.gguf_files import write_out

SIZES: dict[str, Any] = {
    "attention.head_count": 4,
    "embedding_length": 256,
    "attention.key_length": 64,
    "rope.dimension_count": 64,
    "rope.freq_base": 1e4,
}


def reader_of(path: Path, **changes: Any) -> gguf.GGUFReader:
    """Of a file with factors of positions; a change of None leaves a field out."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (SIZES | changes).items():
        key = f"llama.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_int64(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    writer.add_tensor("rope_freqs.weight", np.ones(32, np.float32))
    write_out(writer)
    return open_gguf(path)


ODD = [[4, 4], "4", True, 0, -4, 4.0, 1 << 40]


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize(
    "name",
    ["attention.head_count", "embedding_length", "attention.key_length", "rope.dimension_count"],
)
def test_what_is_no_count_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "m.gguf", **{name: value})
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{name} of the model is"):
        check_architecture(reader)
    if not name.startswith("rope"):
        with pytest.raises(UnsupportedModelError, match=rf"llama\.{name} of the model is"):
            read_factors(reader)


@pytest.mark.parametrize(
    "value", [[1.0], "x", True, 0.0, -1.0, float("nan"), float("inf")], ids=str
)
def test_what_is_no_number_is_refused_by_name(value: Any, tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "m.gguf", **{"rope.freq_base": value})
    with pytest.raises(UnsupportedModelError, match=r"llama\.rope\.freq_base of the model is"):
        read_factors(reader)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.scale", 0.5),
        ("attention.causal", False),
        ("logit_scale", 8.0),
        ("residual_scale", 0.2),
        ("embedding_scale", 12.0),
        ("final_logit_softcapping", 30.0),
        ("attention.sliding_window", 512),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.factor", 4.0),
        ("expert_count", 8),
        ("nextn_predict_layers", 1),
        ("rope.dimension_sections", [16, 24, 24, 0]),
        ("a.field.of.next.year", "x"),
    ],
)
def test_a_field_that_changes_numbers_and_is_not_known_is_refused_by_name(
    name: str, value: Any, tmp_path: Path
) -> None:
    reader = reader_of(tmp_path / "m.gguf", **{name: value})
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{name} is .*, which changes the"):
        check_architecture(reader)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.scale", 0.125),
        ("attention.causal", True),
        ("logit_scale", 1.0),
        ("final_logit_softcapping", 0.0),
        ("attention.sliding_window", 0),
        ("rope.scaling.type", "none"),
        ("rope.scaling.original_context_length", 8192),
        ("expert_count", 0),
        ("context_length", 8192),
        ("tensor_data_layout", "Meta AI original pth"),
    ],
)
def test_a_field_with_a_value_that_changes_nothing_is_passed_over(
    name: str, value: Any, tmp_path: Path
) -> None:
    reader = reader_of(tmp_path / "m.gguf", **{name: value})
    with pytest.raises(UnsupportedModelError, match=r"it lacks llama\.block_count"):
        check_architecture(reader)


def test_heads_of_values_of_another_size_are_refused(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "m.gguf", **{"attention.value_length": 32})
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.value_length"):
        check_architecture(reader)


def test_defaults_stand_where_nothing_is_said(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "m.gguf")
    assert count_of(reader, "llama.nothing", 7) == 7
    assert number_of(reader, "llama.nothing", 0.5) == 0.5
    assert count_of(reader, "llama.embedding_length", 7) == 256
    with pytest.raises(UnsupportedModelError, match=r"lacks llama\.nothing; use a complete"):
        count_of(reader, "llama.nothing")
