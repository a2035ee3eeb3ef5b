"""The shipped file's format, and which ids the head keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.draft_loading import shipped_draft
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.vocabulary import Vocabulary
from outrider.speculation.calibration import POSITION_BEGINS
from tools.train_draft.draft_file import (
    Draft,
    pack,
    read_draft,
    replace_metadata,
    unpack_as_converted,
    write_draft,
)
from tools.train_draft.replies import NUM_TOP, Reply
from tools.train_draft.target import (
    LAYER_TENSORS,
    Geometry,
    Tensors,
    head_ids,
    layer_name,
)

GEOMETRY = Geometry(
    block_count=2,
    context_length=128,
    embedding_length=64,
    feed_forward_length=96,
    head_count=4,
    head_count_kv=2,
    rope_dimension_count=16,
    rope_freq_base=10000.0,
    rms_epsilon=1e-5,
    vocab_size=50,
)


def small_tensors(num_rows: int = 6) -> Tensors:
    """Random weights of GEOMETRY's shapes."""
    rng = np.random.default_rng(0)
    shapes = {
        "attn_norm": (64,),
        "attn_q": (64, 64),
        "attn_k": (32, 64),
        "attn_v": (32, 64),
        "attn_output": (64, 64),
        "ffn_norm": (64,),
        "ffn_gate": (96, 64),
        "ffn_up": (96, 64),
        "ffn_down": (64, 96),
    }
    tensors = {
        layer_name(layer, name): rng.normal(0, 0.1, shapes[name]).astype(np.float32)
        for layer in range(2)
        for name in LAYER_TENSORS
    }
    tensors["output_norm.weight"] = np.ones(64, np.float32)
    tensors["output.weight"] = rng.normal(0, 0.1, (num_rows, 64)).astype(np.float32)
    return tensors


def small_draft() -> Draft:
    """A draft of GEOMETRY with six ids."""
    return Draft(
        geometry=GEOMETRY,
        tensors=small_tensors(),
        head_ids=np.array([0, 2, 3, 17, 30, 49], np.uint32),
        target="some-model",
        vocabulary_digest="ab" * 32,
        calibration_begins=np.array([0, 3], np.uint32),
        calibration_greedy=np.stack([np.linspace(0, top, 21) for top in (0.5, 1)]).astype("f4"),
        calibration_sampled=np.stack([np.linspace(0, top, 21) for top in (0.2, 0.4)]).astype("f4"),
    )


@pytest.mark.parametrize(
    ("layers", "head", "error"), [("Q8_0", "Q8_0", 2e-3), ("Q4_1", "Q8_0", 0.04)]
)
def test_a_file_gives_back_the_draft(tmp_path: Path, layers: str, head: str, error: float) -> None:
    draft = small_draft()
    write_draft(tmp_path / "a.gguf", draft, layers, head)
    found = read_draft(tmp_path / "a.gguf")
    assert found.geometry == replace(GEOMETRY, rms_epsilon=found.geometry.rms_epsilon)
    assert found.geometry.rms_epsilon == pytest.approx(1e-5)
    assert (found.target, found.vocabulary_digest) == (draft.target, draft.vocabulary_digest)
    for name in ("head_ids", "calibration_begins", "calibration_greedy", "calibration_sampled"):
        np.testing.assert_allclose(getattr(found, name), getattr(draft, name))
    assert found.tensors.keys() == draft.tensors.keys()
    for name, tensor in draft.tensors.items():
        np.testing.assert_allclose(found.tensors[name], tensor, atol=error)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_the_file_has_what_its_loader_needs_and_no_embedding(tmp_path: Path) -> None:
    write_draft(tmp_path / "a.gguf", small_draft())
    reader = GGUFReader(tmp_path / "a.gguf")
    names = {tensor.name for tensor in reader.tensors}
    assert {"output.weight", "output_norm.weight", "blk.1.ffn_down.weight"} <= names
    assert "token_embd.weight" not in names
    assert reader.fields["general.architecture"].contents() == "llama"
    assert reader.fields["outrider.draft.head_ids"].contents() == [0, 2, 3, 17, 30, 49]
    assert len(reader.fields["outrider.draft.calibration_sampled"].contents()) == 42


def test_another_calibration_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    path, draft = tmp_path / "a.gguf", small_draft()
    write_draft(path, draft, "Q4_1", "Q8_0")
    before = {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(path).tensors}
    sober = replace(draft, calibration_sampled=draft.calibration_sampled * np.float32(0.5))
    replace_metadata(path, path, sober)
    after = {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(path).tensors}
    assert after == before
    found = read_draft(path)
    np.testing.assert_allclose(found.calibration_sampled, sober.calibration_sampled)
    assert (found.geometry.vocab_size, found.target) == (50, "some-model")


def _reply(ids: list[int], runner_up: int) -> Reply:
    top = np.tile(np.arange(NUM_TOP, dtype=np.int32) + 200, (len(ids), 1))
    top[:, 0], top[:, 1] = ids, runner_up
    logprobs = np.full(top.shape, -20, np.float16)
    logprobs[:, :2] = np.log([0.6, 0.4])
    return Reply(0, 0, "k", 0.0, 0, np.zeros(1, np.int32), np.array(ids, np.int32), top, logprobs)


def test_the_head_keeps_what_is_said_or_nearly_said_and_what_it_must() -> None:
    replies = [_reply([7, 7, 9], runner_up=40)]
    assert head_ids(replies, 4, {299}, 300).tolist() == [7, 9, 40, 299]


def test_ids_that_never_came_up_follow_in_id_order() -> None:
    assert head_ids([_reply([7], 40)], 5, (), 300).tolist() == [0, 7, 40, 202, 203]


@pytest.mark.model
def test_the_shipped_draft_is_made_for_its_target(vocabulary: Vocabulary) -> None:
    path = shipped_draft(DEFAULT_MODEL)
    assert path is not None
    draft = read_draft(path)
    assert draft.target == DEFAULT_MODEL.name
    assert draft.vocabulary_digest == vocabulary.digest.hex()
    assert draft.geometry.vocab_size == vocabulary.size
    assert vocabulary.stop_ids <= set(draft.head_ids.tolist())
    for curve in (draft.calibration_greedy, draft.calibration_sampled):
        assert curve.shape == (len(POSITION_BEGINS), 21)
        assert np.all(np.diff(curve, axis=1) >= 0)
    assert draft.calibration_begins.tolist() == list(POSITION_BEGINS)
    assert path.stat().st_size < 20_000_000


def test_a_block_is_read_as_the_converter_reads_it() -> None:
    """One block: d = 0.5, m = -1.3, so z = round(2.6) = 3; the plain value would be d * q + m."""
    packed = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    scales = np.array([0.5, -1.3], np.float16).view(np.uint8)
    block = np.concatenate((scales, packed)).astype(np.uint8)
    expected = 0.5 * (np.concatenate((np.arange(16), np.arange(16)[::-1])) - 3.0)
    np.testing.assert_allclose(unpack_as_converted(block[None]), expected[None])
    plain = dequantize(block[None], GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(unpack_as_converted(block[None]), plain, atol=0.25)


@given(st.integers(0, 10**6), st.floats(1e-3, 10), st.floats(-5, 5))
def test_packed_blocks_are_the_same_before_and_after_conversion(
    seed: int, spread: float, centre: float
) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(centre * spread, spread, (3, 64)).astype(np.float32)
    rows = pack(matrix)
    assert rows.shape == (3, 40)
    read = unpack_as_converted(rows)
    plain = dequantize(rows, GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(read, plain, atol=0.01 * np.abs(matrix).max())
    blocks = matrix.reshape(-1, 32)
    step = (np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)) / 15
    error = np.abs(read - matrix).reshape(-1, 32).max(1)
    assert np.all(error <= 1.02 * step + 1e-6)
