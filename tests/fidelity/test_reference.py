"""The reference against the numpy forward pass of checkpoints, on small random models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from outrider.errors import UnsupportedModelError
from outrider.fidelity.reference import Ids, Reference
from tests.fidelity.models import Shape, naive_logits, weights, write
from tests.models.checkpoints import Floats

IDS = np.array([3, 17, 3, 39, 0, 8, 8], np.int32)
Kind = gguf.GGMLQuantizationType


def logits(path: Path, ids: Ids = IDS) -> Floats:
    reference = Reference(path)
    (states,) = reference.states([ids])
    return reference.logits(states)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    ("changes", "tied", "biased"),
    [
        ({}, True, False),
        ({}, False, False),
        ({"kv_heads": 4}, True, False),
        ({"kv_heads": 1}, True, True),
        ({"base": 10_000.0, "epsilon": 1e-6, "layers": 1}, False, True),
    ],
    ids=["tied", "own head", "no groups", "one group, biases", "other constants"],
)
def test_it_computes_what_the_tensors_say(
    tmp_path: Path, architecture: str, changes: dict[str, Any], tied: bool, biased: bool
) -> None:
    shape = replace(Shape(architecture=architecture), **changes)
    tensors = weights(shape, tied=tied, biased=biased)
    found = logits(write(tmp_path / "m.gguf", shape, tensors))
    np.testing.assert_allclose(found, naive_logits(shape, tensors, IDS.tolist()), atol=2e-4)


def test_a_model_without_layers_is_its_embedding_before_its_head(tmp_path: Path) -> None:
    shape = replace(Shape(), layers=0, epsilon=0.0)
    embedding = np.zeros((shape.vocabulary, shape.width), np.float32)
    embedding[5, :2] = 3, 4  # Of mean square 25 / 32.
    tensors = {
        "token_embd.weight": embedding,
        "output_norm.weight": np.full(shape.width, 2, np.float32),
    }
    found = logits(write(tmp_path / "m.gguf", shape, tensors), np.array([5], np.int32))
    expected = np.zeros((1, shape.vocabulary))
    expected[0, 5] = 25 * 2 / np.sqrt(25 / 32)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
)
def test_weights_of_any_type_are_what_the_type_says(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    shape = Shape()
    tensors = weights(shape)
    stored = {
        name: gguf.dequantize(gguf.quantize(tensor, kind), kind).astype(np.float32)
        if name.startswith("blk.") and tensor.ndim == 2
        else tensor
        for name, tensor in tensors.items()
    }
    found = logits(write(tmp_path / "m.gguf", shape, tensors, kind))
    expected = logits(write(tmp_path / "plain.gguf", shape, stored))
    np.testing.assert_array_equal(found, expected)


def test_weights_of_four_bits_keep_their_zero_points(tmp_path: Path) -> None:
    """Q4_1 by ggml's definition: 32 weights are m + d * q, q the low halves of 16 bytes first."""
    shape = Shape()
    tensors = weights(shape)
    name = "blk.1.ffn_up.weight"
    packed = gguf.quantize(tensors[name], Kind.Q4_1)
    tensors[name] = _by_hand(packed)
    one = {name: tensors[name]}
    reference = Reference(write(tmp_path / "m.gguf", shape, tensors, Kind.Q4_1))
    plain = Reference(write(tmp_path / "plain.gguf", shape, tensors))
    np.testing.assert_allclose(_tensor(reference, name), one[name], atol=1e-6)
    np.testing.assert_array_equal(_tensor(plain, name), one[name])


def _by_hand(packed: npt.NDArray[np.uint8]) -> Floats:
    rows = []
    for row in packed:
        blocks = []
        for block in row.reshape(-1, 20):
            scale, least = np.frombuffer(block[:4].tobytes(), np.float16).astype(np.float32)
            values = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
            blocks += [least + scale * np.float32(value) for value in values]
        rows.append(blocks)
    return np.array(rows, np.float32)


def _tensor(reference: Reference, name: str) -> Floats:
    return reference._tensor(name)


def test_a_position_depends_on_those_before_it_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", Shape(), weights(Shape()))
    whole = logits(path)
    for length in range(1, len(IDS)):
        np.testing.assert_allclose(logits(path, IDS[:length]), whole[:length], atol=1e-5)


def test_documents_are_read_side_by_side_and_layers_told(tmp_path: Path) -> None:
    reference = Reference(write(tmp_path / "m.gguf", Shape(), weights(Shape())))
    told: list[int] = []
    together = reference.states([IDS, IDS[::-1].copy(), IDS[:1]], told.append)
    assert told == [1, 2] == list(range(1, reference.num_layers + 1))
    for states, ids in zip(together, (IDS, IDS[::-1].copy(), IDS[:1]), strict=True):
        np.testing.assert_array_equal(states, reference.states([ids])[0])


def test_the_file_may_slow_each_pair_down(tmp_path: Path) -> None:
    """rope_freqs.weight divides the frequencies (Llama 3.1): so slow that nothing turns, attention
    of one layer does not see the order of what came before."""
    shape = replace(Shape(), layers=1)
    tensors = weights(shape)
    still = {**tensors, "rope_freqs.weight": np.full(shape.head_size // 2, 1e9, np.float32)}
    swapped = IDS[[1, 0, *range(2, len(IDS))]]
    for name, given, blind in (("still", still, True), ("turning", tensors, False)):
        path = write(tmp_path / f"{name}.gguf", shape, given)
        assert np.allclose(logits(path, swapped)[2:], logits(path)[2:], atol=1e-5) == blind


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    shape = Shape(architecture="mamba")
    path = write(tmp_path / "m.gguf", shape, weights(shape))
    with pytest.raises(UnsupportedModelError, match=r"'mamba'; it knows llama, qwen2"):
        Reference(path)


def test_what_would_be_left_out_is_refused(tmp_path: Path) -> None:
    tensors = {**weights(Shape()), "blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"has blk\.0\.attn_q_norm\.weight"):
        Reference(write(tmp_path / "m.gguf", Shape(), tensors))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    tensors = weights(Shape())
    del tensors["blk.1.ffn_down.weight"]
    with pytest.raises(UnsupportedModelError, match=r"lacks blk\.1\.ffn_down\.weight"):
        Reference(write(tmp_path / "m.gguf", Shape(), tensors))


def test_scaled_positions_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", Shape(), weights(Shape()), rope__scaling__type="yarn")
    with pytest.raises(UnsupportedModelError, match="yarn"):
        Reference(path)
