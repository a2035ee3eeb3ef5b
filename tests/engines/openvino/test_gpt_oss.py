"""gpt-oss through the graph that is built for it and the engine, against numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.convert import ConvertedModel, convert, read_converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import UnsupportedModelError
from outrider.fidelity.comparing import engine_rows
from tests.engines.seam.contract import EngineContract
from tests.models.gpt_oss_files import Floats, GptOss, logits_of, weights, write

SHAPE = GptOss()
IDS = np.random.default_rng(3).integers(0, SHAPE.vocabulary, 40).astype(np.int32)
MAX_DIFFERENCE = 1e-4
"""By the rounding of f32."""
CONFIG = EngineConfig(
    num_blocks=8, max_fixed_rows=0, precision="f32", dynamic_quantization=False, pin_threads=False
)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = ["a", "b", "ab", *(chr(0x103 + n) for n in range(SHAPE.vocabulary - 3))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])


def engine_logits(source: Path, folder: Path) -> Floats:
    folder.mkdir()
    convert(source, folder, DEFAULT_LAYOUT)
    engine = OpenVinoEngine(read_converted(folder), CONFIG)
    try:
        return np.concatenate([logits.copy() for _, logits in engine_rows(engine, IDS)])
    finally:
        engine.close()


def difference(found: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def test_it_computes_what_the_models_code_computes(tmp_path: Path) -> None:
    tensors = weights(SHAPE)
    source = write(tmp_path / "m.gguf", SHAPE, tensors, add_tokenizer)
    found = engine_logits(source, tmp_path / "out")
    assert difference(found, logits_of(SHAPE, tensors, IDS.tolist())) < MAX_DIFFERENCE
    # Each part counts: without it the difference is far larger.
    for name, other in (
        ("window", logits_of(replace(SHAPE, window=40), tensors, IDS.tolist())),
        ("scaling", logits_of(replace(SHAPE, factor=1.0), tensors, IDS.tolist())),
        ("choice", logits_of(replace(SHAPE, chosen=3), tensors, IDS.tolist())),
        ("sinks", logits_of(SHAPE, without_sinks(tensors), IDS.tolist())),
    ):
        assert difference(found, other) > 1000 * MAX_DIFFERENCE, name


def without_sinks(tensors: dict[str, Floats]) -> dict[str, Floats]:
    return {n: it - 100 * ("attn_sinks" in n) for n, it in tensors.items()}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> ConvertedModel:
    folder = tmp_path_factory.mktemp("gpt-oss")
    shape = replace(SHAPE, context=8192)
    source = write(folder / "m.gguf", shape, weights(shape), add_tokenizer)
    convert(source, folder, DEFAULT_LAYOUT)
    return read_converted(folder)


@pytest.fixture(scope="module")
def larger(converted: ConvertedModel) -> Iterator[OpenVinoEngine]:
    """Tests close the sequences they open, never the engine."""
    config = EngineConfig(num_blocks=384, max_fixed_rows=8, prepare_first=True)
    with closing(OpenVinoEngine(converted, config)) as engine:
        yield engine


@pytest.fixture(scope="module")
def smaller(converted: ConvertedModel) -> Iterator[OpenVinoEngine]:
    """The same model on another number of threads, with a smaller pool."""
    config = EngineConfig(threads=2, num_blocks=16, max_fixed_rows=0)
    with closing(OpenVinoEngine(converted, config)) as engine:
        yield engine


class TestGptOssEngine(EngineContract):
    """No row depends on others, though each chooses its experts."""

    @pytest.fixture
    def engine(self, larger: OpenVinoEngine) -> Engine:
        return larger

    @pytest.fixture
    def other(self, smaller: OpenVinoEngine) -> Engine:
        return smaller

    @pytest.fixture
    def spare(self, converted: ConvertedModel) -> Engine:
        return OpenVinoEngine(converted, EngineConfig(num_blocks=4, max_fixed_rows=0))


def test_experts_of_mxfp4(tmp_path: Path) -> None:
    """As published. Their values are rounded to eight bits, and in some rows others are chosen."""
    tensors = weights(SHAPE)
    source = write(tmp_path / "m.gguf", SHAPE, tensors, add_tokenizer, Kind.MXFP4)
    reader = gguf.GGUFReader(source)
    for tensor in reader.tensors:
        if "_exps.weight" in tensor.name:
            tensors[tensor.name] = gguf.dequantize(tensor.data, tensor.tensor_type)
    found = engine_logits(source, tmp_path / "out")
    expected = logits_of(SHAPE, tensors, IDS.tolist())
    by_row = [difference(*rows) for rows in zip(found, expected, strict=True)]
    assert float(np.median(by_row)) < 0.03


def test_a_part_that_is_missing_or_strange_is_refused(tmp_path: Path) -> None:
    tensors = weights(SHAPE)
    without = {name: it for name, it in tensors.items() if name != "blk.1.attn_sinks.weight"}
    strange = tensors | {"blk.0.attn_q_norm.weight": np.ones(32, np.float32)}
    cases: list[tuple[dict[str, Floats], dict[str, float], str]] = [
        (without, {}, "lacks blk.1.attn_sinks.weight"),
        (strange, {}, "attn_q_norm"),
        (tensors, {"logit_scale": 2.0}, "logit_scale"),
    ]
    for number, (some, fields, said) in enumerate(cases):
        source = write(tmp_path / f"{number}.gguf", SHAPE, some, add_tokenizer, **fields)
        with pytest.raises(UnsupportedModelError, match=said):
            convert(source, tmp_path, DEFAULT_LAYOUT)
