"""Conversion: done once, kept in the store, failing with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from outrider.engines.openvino.convert import (
    ModelFacts,
    convert,
    converted,
    derived_name,
    read_facts,
)
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import UnsupportedModelError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from tests.fidelity.models import Shape, weights, write
from tests.models.gguf_files import write_out


@pytest.mark.model
def test_the_second_load_uses_what_the_first_one_built(model_store: ModelStore) -> None:
    first = converted(DEFAULT_MODEL, model_store)
    before = first.graph.stat()
    second = converted(DEFAULT_MODEL, model_store)
    after = second.graph.stat()
    assert second == first
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert first.facts.weight_error is not None
    assert 0 < first.facts.weight_error <= (first.facts.worst_weight_error or 0) < 0.01
    plain = replace(first.facts, weight_error=None, worst_matrix="", worst_weight_error=None)
    assert plain == ModelFacts(49152, 8192, DEFAULT_LAYOUT)
    assert first.directory.name == derived_name(DEFAULT_LAYOUT)


def _gguf(path: Path, *, tokens: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    if tokens:
        writer.add_token_list([f"t{index}" for index in range(tokens)])
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    write_out(writer)
    return path


def test_missing_facts_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.tokens"):
        read_facts(_gguf(tmp_path / "m.gguf", tokens=0))


def test_a_failing_conversion_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    source = _gguf(tmp_path / "m.gguf", tokens=9)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UnsupportedModelError, match=r"lacks llama\.attention\.head_count"):
        convert(source, folder, DEFAULT_LAYOUT)
    assert list(folder.iterdir()) == []


def test_what_the_converter_says_is_passed_on(tmp_path: Path) -> None:
    def add_half_a_tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{index}" for index in range(40)])

    shape = Shape()
    source = write(tmp_path / "m.gguf", shape, weights(shape), add_tokenizer=add_half_a_tokenizer)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UnsupportedModelError, match=r"cannot be converted: .+"):
        convert(source, folder, DEFAULT_LAYOUT)
    assert list(folder.iterdir()) == []
