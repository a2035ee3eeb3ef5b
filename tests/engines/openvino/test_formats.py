"""Every architecture and every ggml type that is claimed, through converter and engine, against the
numpy reference (gpt-oss in test_gpt_oss); files that would be served wrongly are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from outrider.engines.config import EngineConfig
from outrider.engines.gguf_decoder.architectures import ARCHITECTURES
from outrider.engines.gguf_decoder.gpt_oss import GPT_OSS
from outrider.engines.openvino.convert import convert, read_converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.engines.openvino.repacking import READABLE
from outrider.errors import UnsupportedModelError
from outrider.fidelity import reference
from outrider.fidelity.comparing import engine_rows
from outrider.fidelity.reference import Reference
from tests.fidelity.models import Shape, weights, write
from tests.models.checkpoints import Floats
from tests.models.sentencepieces import add_vocabulary, trained

SHAPE = Shape(vocabulary=96, width=256, heads=4, kv_heads=2, inner=256, base=10_000.0)
VOCABULARY = ["a", "b", "ab", *(chr(0x103 + n) for n in range(SHAPE.vocabulary - 3))]
IDS = np.random.default_rng(3).integers(0, SHAPE.vocabulary, 40).astype(np.int32)
SCALE = 0.06
"""RMS of matrices: products neither grow nor vanish, so that rounding weights changes little."""
MAX_DIFFERENCE = 0.03
"""Of logits, by the rounding of weights to 8 bits; another computation differs by ten times that
(test_another_computation_differs_by_far)."""
CONFIG = EngineConfig(
    num_blocks=8, max_fixed_rows=0, precision="f32", dynamic_quantization=False, pin_threads=False
)


def difference(source: Path, folder: Path) -> float:
    """Of the engine's logits from the reference's: RMS, over that of the reference's."""
    folder.mkdir()
    convert(source, folder, DEFAULT_LAYOUT)
    engine = OpenVinoEngine(read_converted(folder), CONFIG)
    try:
        rows = np.concatenate([logits.copy() for _, logits in engine_rows(engine, IDS)])
    finally:
        engine.close()
    model = Reference(source)
    expected = model.logits(model.states([IDS])[0])
    return float(np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)))


def tensors_of(architecture: str, *, tied: bool = True) -> dict[str, Floats]:
    shape = replace(SHAPE, architecture=architecture)
    return weights(shape, tied=tied, biased=architecture == "qwen2", scale=SCALE)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", [it for it in ARCHITECTURES if it != GPT_OSS])
def test_every_architecture_computes_what_its_file_says(
    architecture: str, tied: bool, tmp_path: Path
) -> None:
    shape = replace(SHAPE, architecture=architecture)
    tensors = tensors_of(architecture, tied=tied)
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=VOCABULARY)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE


def test_heads_of_another_size_than_their_share_of_the_width(tmp_path: Path) -> None:
    """As Mistral Nemo has them."""
    shape = replace(SHAPE, own_head_size=32)
    tensors = weights(shape, scale=SCALE)
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=VOCABULARY)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE


def test_another_computation_differs_by_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tensors_of("llama")
    source = write(tmp_path / "m.gguf", SHAPE, tensors, vocabulary=VOCABULARY)
    monkeypatch.setitem(reference._INTERLEAVED, "llama", False)
    assert difference(source, tmp_path / "out") > 5 * MAX_DIFFERENCE


@pytest.mark.parametrize("names", [READABLE[:13], READABLE[13:]], ids=["usual", "others"])
def test_every_type_computes_what_its_file_says(names: Sequence[str], tmp_path: Path) -> None:
    """Each is that of a matrix in one file, as files of mixed types are."""
    tensors = tensors_of("llama")
    matrices = [name for name in tensors if name.startswith("blk.") and tensors[name].ndim == 2]
    kinds = dict(zip(matrices, map(Kind.__getitem__, names), strict=False))
    assert len(kinds) == len(names)
    source = write(tmp_path / "m.gguf", SHAPE, tensors, vocabulary=VOCABULARY, kinds=kinds)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0, Kind.Q4_K])
def test_the_error_told_is_none_where_nothing_is_rounded(kind: Kind, tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    source = write(tmp_path / "m.gguf", SHAPE, tensors, kind, VOCABULARY, whole=True)
    assert {t.tensor_type for t in gguf.GGUFReader(source).tensors if len(t.shape) == 2} == {kind}
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE
    facts = read_converted(tmp_path / "out").facts
    assert facts.weight_error is not None and facts.worst_weight_error is not None
    assert facts.weight_error <= facts.worst_weight_error < 0.01
    assert (facts.weight_error == 0) == (kind is Kind.Q8_0)


def test_the_error_told_is_that_of_the_weights(tmp_path: Path) -> None:
    """A matrix with one large value in each block loses its small ones."""
    tensors = tensors_of("llama")
    spiked = tensors["blk.1.ffn_up.weight"]
    spiked[:, ::32] = 100.0
    source = write(tmp_path / "m.gguf", SHAPE, tensors, vocabulary=VOCABULARY)
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out", DEFAULT_LAYOUT)
    facts = read_converted(tmp_path / "out").facts
    step = np.float32(np.float16(100 / 127))
    stored = np.clip(np.rint(spiked / step), -127, 127) * step
    own = float(np.sqrt(np.mean((stored - spiked) ** 2) / np.mean(spiked**2)))
    assert facts.worst_matrix in ("blk.1.ffn_up.weight", *tensors)
    assert facts.worst_weight_error is not None
    assert facts.worst_weight_error >= 0.999 * own


def test_vectors_of_sixteen_bits_are_read_as_they_are(tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    writer_kinds = {name: Kind.BF16 for name, t in tensors.items() if t.ndim == 1}
    source = write(tmp_path / "m.gguf", SHAPE, tensors, vocabulary=VOCABULARY, kinds=writer_kinds)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_scaled_frequencies_are_those_of_the_file(architecture: str, tmp_path: Path) -> None:
    """As of Llama 3.1; the converter knows nothing of them."""
    shape = replace(SHAPE, architecture=architecture)
    factors = np.linspace(1, 8, SHAPE.head_size // 2).astype(np.float32)
    tensors = tensors_of(architecture) | {"rope_freqs.weight": factors}
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=VOCABULARY)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE


def test_a_file_with_sentencepieces_tokenizer_converts(tmp_path: Path) -> None:
    model = trained()
    shape = replace(SHAPE, vocabulary=model.get_piece_size())

    def add(writer: gguf.GGUFWriter) -> None:
        add_vocabulary(writer, model, prefix=True)

    source = write(tmp_path / "m.gguf", shape, weights(shape, scale=SCALE), add_tokenizer=add)
    assert difference(source, tmp_path / "out") < MAX_DIFFERENCE
    assert not list((tmp_path / "out").glob("openvino_*tokenizer*"))


@pytest.mark.parametrize(
    ("architecture", "extra", "fields", "complaint"),
    [
        ("mamba", {}, {}, "'mamba' cannot be served; choose one of llama, qwen2, qwen3"),
        ("gemma2", {}, {}, "'gemma2' cannot be served; .* as a GGUF file or safetensors"),
        ("gemma3", {"blk.1.attn_q.bias": np.ones(256, np.float32)}, {}, "attn_q.bias"),
        ("gemma3", {"rope_freqs.weight": np.ones(32, np.float32)}, {}, "rope_freqs"),
        (
            "gemma3",
            {},
            {"add_tokenizer": lambda writer: writer.add_key_length_swa(32)},
            "heads of layers with a window",
        ),
        (
            "gemma3",
            {},
            {"add_tokenizer": lambda writer: writer.add_final_logit_softcapping(30.0)},
            "final_logit_softcapping",
        ),
        ("llama", {"rope_freqs.weight": np.ones(31, np.float32)}, {}, "31 factors for heads of 64"),
        ("llama", {"rope_freqs.weight": np.zeros(32, np.float32)}, {}, "no positive numbers"),
        ("llama", {"blk.0.ffn_gate_inp.weight": np.ones((2, 256), np.float32)}, {}, "ffn_gate_inp"),
        ("llama", {"blk.0.attn_q.bias": np.ones(256, np.float32)}, {}, "attn_q.bias"),
        ("llama", {}, {"rope__scaling__type": "yarn"}, "rope.scaling.type is .yarn."),
        (
            "llama",
            {},
            {"add_tokenizer": lambda writer: writer.add_rope_dimension_count(32)},
            "only part of a head's values",
        ),
        ("qwen3", {"blk.0.attn_q.bias": np.ones(256, np.float32)}, {}, "attn_q.bias"),
    ],
)
def test_what_would_be_served_wrongly_is_refused(
    architecture: str,
    extra: dict[str, Floats],
    fields: dict[str, Any],
    complaint: str,
    tmp_path: Path,
) -> None:
    shape = replace(SHAPE, architecture=architecture)
    tensors = tensors_of(architecture) | extra
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=VOCABULARY, **fields)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UnsupportedModelError, match=complaint):
        convert(source, folder, DEFAULT_LAYOUT)
    assert list(folder.iterdir()) == []


def test_rows_that_no_block_fits_and_weights_that_are_no_numbers_are_refused(
    tmp_path: Path,
) -> None:
    odd = replace(SHAPE, width=240, heads=3, kv_heads=1)
    path = write(tmp_path / "odd.gguf", odd, weights(odd, scale=SCALE), vocabulary=VOCABULARY)
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedModelError, match="240 values, no multiple of 32"):
        convert(path, tmp_path / "out", DEFAULT_LAYOUT)
    broken = tensors_of("llama")
    broken["blk.0.attn_q.weight"][3, 3] = np.inf
    path = write(tmp_path / "inf.gguf", SHAPE, broken, vocabulary=VOCABULARY)
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight that are no numbers"):
        convert(path, tmp_path / "out", DEFAULT_LAYOUT)
    assert list((tmp_path / "out").iterdir()) == []
