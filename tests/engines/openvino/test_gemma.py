"""Gemma 3 through converter and engine: its windows, its numbers, and that how a sequence is cut
into calls changes no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import openvino as ov
import pytest

from outrider.engines.base import SequenceSlice
from outrider.engines.gguf_decoder.gemma import GemmaLayer, read_gemma
from outrider.engines.openvino.convert import convert, read_converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import UnsupportedModelError
from outrider.fidelity.comparing import engine_rows
from outrider.fidelity.reference import Reference
from outrider.models.checkpoint import read_checkpoint_config
from outrider.models.gguf_file import open_gguf
from tests.engines.openvino.test_checkpoints import SIZE, TOKENIZER
from tests.engines.openvino.test_checkpoints import difference as folder_difference
from tests.engines.openvino.test_formats import CONFIG, MAX_DIFFERENCE, SCALE, SHAPE, VOCABULARY
from tests.fidelity.models import weights, write
from tests.models.checkpoints import (
    GEMMA3,
    WHOLE,
    WINDOWED,
    Floats,
    Small,
    logits_of,
    random_tensors,
    stored,
    write_checkpoint,
)
from tests.models.gguf_files import write_out

GEMMA = replace(SHAPE, architecture="gemma3", layers=3, window_base=1_000.0)
IDS = np.random.default_rng(5).integers(0, SHAPE.vocabulary, 200).astype(np.int32)
SMALL = Small(GEMMA3, SIZE, layers=3, layer_types=(WINDOWED, WHOLE, WINDOWED), factor=8.0)


def model_file(path: Path, **changes: Any) -> Path:
    shape = replace(GEMMA, **changes)
    return write(path, shape, weights(shape, scale=SCALE), vocabulary=VOCABULARY)


@contextmanager
def engine_of(source: Path, work: Path, **changes: Any) -> Iterator[OpenVinoEngine]:
    work.mkdir()
    convert(source, work, DEFAULT_LAYOUT)
    engine = OpenVinoEngine(read_converted(work), replace(CONFIG, **changes))
    try:
        yield engine
    finally:
        engine.close()


def rows_of(engine: OpenVinoEngine, chunk_tokens: int) -> Floats:
    return np.concatenate([rows.copy() for _, rows in engine_rows(engine, IDS, chunk_tokens)])


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 64, 100, 199, 4096])
def test_a_token_sees_as_many_as_the_window_holds(window: int, tmp_path: Path) -> None:
    source = model_file(tmp_path / "m.gguf", window=window)
    with engine_of(source, tmp_path / "out") as engine:
        rows = rows_of(engine, 48)
    model = Reference(source)
    expected = model.logits(model.states([IDS])[0])
    scale = np.sqrt(np.mean(expected**2))
    assert np.sqrt(np.mean((rows - expected) ** 2)) / scale < MAX_DIFFERENCE
    if 1 < window < 100:
        off_by_one = Reference(model_file(tmp_path / "other.gguf", window=window + 1))
        others = off_by_one.logits(off_by_one.states([IDS])[0])
        # The last rows, which all have more tokens before them than a window holds.
        near = np.sqrt(np.mean((rows[150:] - expected[150:]) ** 2))
        assert near < np.sqrt(np.mean((rows[150:] - others[150:]) ** 2))


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_heads_of_keys_are_shared_by_all_or_by_none(kv_heads: int, tmp_path: Path) -> None:
    """Heads of 256 values, as all of Gemma 3 but the largest has them."""
    shape = replace(GEMMA, width=1024, kv_heads=kv_heads, window=40)
    tensors = weights(shape, scale=SCALE / 2)
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=VOCABULARY)
    with engine_of(source, tmp_path / "out") as engine:
        rows = rows_of(engine, 48)
    model = Reference(source)
    expected = model.logits(model.states([IDS])[0])
    assert np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)) < MAX_DIFFERENCE


def test_the_graph_with_its_state_computes_the_same(tmp_path: Path) -> None:
    """As other programs run what is saved: without paged attention, by its masks."""
    source = model_file(tmp_path / "m.gguf", window=24)
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out", DEFAULT_LAYOUT)
    graph = read_converted(tmp_path / "out").graph
    request = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = request.create_infer_request()
    rows = []
    for begin, end in ((0, 50), (50, 51), (51, 90)):
        inputs = {
            "input_ids": IDS[None, begin:end].astype(np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        rows.append(request.infer(inputs)["logits"][0].copy())
    model = Reference(source)
    expected = model.logits(model.states([IDS[:90]])[0])
    error = np.concatenate(rows) - expected
    assert np.sqrt(np.mean(error**2) / np.mean(expected**2)) < MAX_DIFFERENCE


@pytest.mark.parametrize("precision", ["f32", "auto"])
def test_how_a_sequence_is_cut_changes_no_bit(precision: str, tmp_path: Path) -> None:
    source = model_file(tmp_path / "m.gguf", window=24)
    changes = {"precision": precision, "dynamic_quantization": True, "num_blocks": 24}
    with engine_of(source, tmp_path / "out", **changes) as engine:
        whole = rows_of(engine, 200)
        for chunk_tokens in (1, 7, 24, 33, 64):
            assert rows_of(engine, chunk_tokens).tobytes() == whole.tobytes()
        others = np.random.default_rng(8).integers(0, SHAPE.vocabulary, 200).astype(np.int32)
        found = drafted(engine, IDS, others)
    assert np.concatenate(found).tobytes() == whole[100:].tobytes()


def drafted(engine: OpenVinoEngine, ids: Any, others: Any) -> list[Floats]:
    """Rows of the second half of `ids`, one call each three, with one right draft and one wrong,
    beside another sequence of which a call takes five tokens."""
    mine, theirs = np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)
    engine.open(1, ids)
    engine.open(2, others)
    engine.step([SequenceSlice(1, ids[:100], 0, mine, 1)])
    found, past = [], 0
    for at in range(100, 200, 2):
        tokens = np.append(ids[at : at + 2], others[at % 7]).astype(np.int32)
        more = others[past : past + 5] if past < 150 else None
        slices = [SequenceSlice(1, tokens, at, mine, 3)]
        if more is not None:
            slices.insert(0, SequenceSlice(2, more, past, theirs, 5))
            past += 5
        found.append(engine.step(slices)[-1].logits[:2].copy())
    engine.close_sequence(1)
    engine.close_sequence(2)
    return found


def test_what_a_file_leaves_out_is_as_llama_cpp_has_it(tmp_path: Path) -> None:
    """Published files name the window alone."""
    shape = replace(GEMMA, layers=7)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(640)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(256)
    writer.add_value_length(256)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(512)
    write_out(writer)
    found = read_gemma(open_gguf(path))
    windowed, whole = GemmaLayer(512, 1e4, 1.0), GemmaLayer(0, 1e6, 1.0)
    assert found.layers == (windowed,) * 5 + (whole, windowed)
    assert found.attention_scale == 1 / 16
    assert found.embedding_scale == 640**0.5


@pytest.mark.parametrize(
    ("dtype", "scale"), [("BF16", 13.875), ("F16", float(np.float16(192**0.5))), ("F32", 192**0.5)]
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_checkpoint_computes_what_upstreams_code_does(
    dtype: str, scale: float, tied: bool, tmp_path: Path
) -> None:
    small = replace(SMALL, width=192, tied=tied)
    tensors = random_tensors(small)
    folder = write_checkpoint(tmp_path / "m", small, tensors, TOKENIZER, dtype=dtype)
    ids = np.random.default_rng(3).integers(0, SHAPE.vocabulary, 40).tolist()
    expected = logits_of(small, stored(tensors, dtype), ids, embedding_scale=scale)
    assert folder_difference(folder, tmp_path, expected) < MAX_DIFFERENCE


def test_older_and_newer_configs_say_the_same() -> None:
    older = SMALL.config(rope_theta=1e6)
    rules = {
        WHOLE: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        WINDOWED: {"rope_type": "default", "rope_theta": SMALL.window_base},
    }
    leave = {"rope_theta": None, "rope_local_base_freq": None, "rope_scaling": None}
    newer = SMALL.config(rope_parameters=rules, **leave)
    assert read_checkpoint_config(newer) == read_checkpoint_config(older)
    pattern = read_checkpoint_config(SMALL.config(layer_types=None, sliding_window_pattern=2))
    assert pattern.gemma is not None and pattern.gemma.has_window == (True, False, True)
    assert read_checkpoint_config(SMALL.config(tie_word_embeddings=None)).tied


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "sees images too"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_bidirectional_attention": True}, "what comes after them"),
        ({"layer_types": [WINDOWED]}, "layer_types"),
        ({"layer_types": [WINDOWED, "chunked_attention", WHOLE]}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters"),
        ({"rope_parameters": {WINDOWED: {"rope_type": "linear", "factor": 2.0}}}, "a window"),
        ({"rope_scaling": {WHOLE: {"rope_type": "linear"}}}, "a rule with 'full_attention'"),
        ({"rope_scaling": {"factor": 8.0}}, "'default'"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"head_dim": None}, "head_dim"),
        ({"num_key_value_heads": None}, "num_key_value_heads"),
    ],
    ids=str,
)
def test_a_config_that_means_something_else_is_refused(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=complaint):
        read_checkpoint_config(SMALL.config(**changes))


@pytest.mark.parametrize("sees", [[True], [1, 0, 1]], ids=str)
def test_a_pattern_that_does_not_fit_the_layers_is_refused(
    sees: Sequence[bool], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(3)
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    writer.add_sliding_window(512)
    writer.add_array("gemma3.attention.sliding_window_pattern", list(sees))
    write_out(writer)
    with pytest.raises(UnsupportedModelError, match="does not fit its 3 layers"):
        read_gemma(open_gguf(path))
