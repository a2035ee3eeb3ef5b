"""The PyTorch engine keeps the contract in both precisions, computes what the file says, and agrees
with the OpenVINO engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.factory import create_engine, warm_up
from outrider.engines.gguf_decoder.architectures import ARCHITECTURES
from outrider.engines.gguf_decoder.gpt_oss import GPT_OSS
from outrider.engines.load_stage import LoadStage
from outrider.engines.torch.decoder_file import DecoderFile
from outrider.engines.torch.engine import TorchEngine
from outrider.engines.torch.loading import load_engine
from outrider.engines.torch.matrices import GroupedMatrix, rounded_to_groups
from outrider.errors import ConfigError
from outrider.fidelity.reference import Reference
from tests.engines.seam.contract import EngineContract
from tests.engines.seam.driving import all_rows, assert_same, opened, random_ids, run, table
from tests.engines.shallow_model import ShallowModel
from tests.fidelity.models import Shape, weights, write
from tests.models import gpt_oss_files
from tests.models.gpt_oss_files import GptOss

pytestmark = [pytest.mark.torch, pytest.mark.model]


class Arithmetic(NamedTuple):
    """What an engine computes with."""

    precision: Precision
    weight_bits: int | None = None


ARITHMETICS = [Arithmetic("f32"), Arithmetic("bf16"), Arithmetic("f32", 8)]


@pytest.fixture(scope="module", params=ARITHMETICS, ids=["f32", "bf16", "int8"])
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    chosen: Arithmetic = request.param
    return chosen


@pytest.fixture(scope="module")
def one(shallow_model: ShallowModel, arithmetic: Arithmetic) -> Iterator[TorchEngine]:
    """Tests close the sequences they open, never the engine."""
    config = EngineConfig(num_blocks=384, **arithmetic._asdict())
    with closing(TorchEngine(DecoderFile(shallow_model.file), config)) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(shallow_model: ShallowModel, arithmetic: Arithmetic) -> Iterator[TorchEngine]:
    """The same model with a smaller pool."""
    config = EngineConfig(num_blocks=16, **arithmetic._asdict())
    with closing(TorchEngine(DecoderFile(shallow_model.file), config)) as engine:
        yield engine


class TestTorchEngine(EngineContract):
    @pytest.fixture
    def engine(self, one: TorchEngine) -> Engine:
        return one

    @pytest.fixture
    def other(self, two: TorchEngine) -> Engine:
        return two

    @pytest.fixture
    def spare(self, shallow_model: ShallowModel, arithmetic: Arithmetic) -> Engine:
        config = EngineConfig(num_blocks=4, **arithmetic._asdict())
        return TorchEngine(DecoderFile(shallow_model.file), config)


def test_equal_engines_have_one_fingerprint_and_others_another(
    one: TorchEngine, two: TorchEngine, tmp_path: Path
) -> None:
    assert one.info.fingerprint == two.info.fingerprint != b""
    shape = Shape()
    file = DecoderFile(write(tmp_path / "m.gguf", shape, weights(shape), vocabulary=names(shape)))
    with closing(TorchEngine(file, EngineConfig(num_blocks=4))) as small:
        assert small.info.fingerprint != one.info.fingerprint


def test_what_others_left_in_a_block_is_never_read(two: TorchEngine) -> None:
    """Even if it is no number."""
    ids, blocks = random_ids(two, 40), table(two, 40)
    expected = all_rows(two, ids, blocks)
    words = np.full(two.info.block_bytes * two.info.num_blocks, 0xFF, np.uint8)
    two.import_blocks(range(two.info.num_blocks), words.tobytes())
    assert_same(all_rows(two, ids, blocks, 7), expected)


@pytest.mark.parametrize("past", [250, 255, 256, 300, 511])
def test_rows_behind_a_long_context_do_not_depend_on_how_it_came(
    one: TorchEngine, past: int
) -> None:
    """Around the ends of the spans that attention goes by."""
    ids, blocks = random_ids(one, past + 20), table(one, past + 20)
    expected = all_rows(one, ids, blocks)[past:]
    other = table(one, past + 20, 5)
    with opened(one, ids) as (sequence,):
        for begin in range(0, past, 33):
            run(one, sequence, ids[begin : min(past, begin + 33)], begin, other, 0)
        for at in range(past, past + 20):
            rows = run(one, sequence, ids[at : at + 1], at, other, 1)
            assert_same(rows, expected[at - past : at - past + 1])


def names(shape: Shape) -> list[str]:
    """Texts of a vocabulary."""
    return [chr(0x100 + n) for n in range(shape.vocabulary)]


def relative(rows: np.ndarray, expected: np.ndarray) -> float:
    """RMS of the differences over that of the expected."""
    return float(np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("architecture", [it for it in ARCHITECTURES if it != GPT_OSS])
def test_every_architecture_computes_what_its_file_says(architecture: str, tmp_path: Path) -> None:
    """Against the numpy reference, in f32 from end to end."""
    shape = Shape(architecture=architecture, vocabulary=96, width=128, inner=192, window=9)
    tensors = weights(shape, tied=False, biased=architecture == "qwen2", scale=0.06)
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=names(shape))
    model = Reference(source)
    with closing(TorchEngine(DecoderFile(source), EngineConfig(num_blocks=8))) as engine:
        ids = random_ids(engine, 60)
        rows = all_rows(engine, ids, table(engine, 60), 16)
        single = all_rows(engine, ids, table(engine, 60, 3), 1)
    assert_same(single, rows)
    assert relative(rows, model.logits(model.states([ids])[0])) < 1e-5


def test_weights_of_8_bits_are_those_of_the_file_rounded(tmp_path: Path) -> None:
    """What the engine computes with them is what numpy computes with the same numbers."""
    shape = Shape(vocabulary=96, width=128, inner=192)
    tensors = weights(shape, tied=False, scale=0.06)
    rounded = {
        name: GroupedMatrix(*rounded_to_groups(torch.from_numpy(it)), torch.float32).dense().numpy()
        if it.ndim > 1
        else it
        for name, it in tensors.items()
    }
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=names(shape))
    other = write(tmp_path / "o.gguf", shape, rounded, vocabulary=names(shape))
    model = Reference(other)
    config = EngineConfig(num_blocks=8, weight_bits=8)
    with closing(TorchEngine(DecoderFile(source), config)) as engine:
        ids = random_ids(engine, 60)
        rows = all_rows(engine, ids, table(engine, 60))
        assert_same(all_rows(engine, ids, table(engine, 60, 3), 1), rows)
        fingerprint = engine.info.fingerprint
    assert relative(rows, model.logits(model.states([ids])[0])) < 1e-5
    with closing(TorchEngine(DecoderFile(source), replace(config, weight_bits=None))) as engine:
        assert engine.info.fingerprint != fingerprint
        assert 1e-4 < relative(all_rows(engine, ids, table(engine, 60)), rows) < 0.05


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.MXFP4])
def test_weights_that_a_file_has_in_8_or_4_bits_stay_as_they_are(
    kind: Kind, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    values[2, 32:] = 0
    shape = Shape()
    tensors = weights(shape) | {"token_embd.weight": np.resize(values, (shape.vocabulary, 64))}
    source = write(tmp_path / "m.gguf", shape, tensors, kind, vocabulary=names(shape), whole=True)
    file = DecoderFile(source)
    stored = file.grouped("token_embd.weight")
    assert stored is not None and stored[0].dtype == torch.int8
    dense = GroupedMatrix(*stored, torch.float32).dense()
    assert torch.equal(dense, file.tensor("token_embd.weight"))
    assert file.grouped("output_norm.weight") is None


def test_4_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="set it to 8, leave it out, or use openvino"):
        EngineConfig(engine="torch", weight_bits=4)


def test_an_inexact_engine_says_so_and_computes_the_same_to_rounding(tmp_path: Path) -> None:
    shape = Shape(vocabulary=96, width=128, inner=192)
    source = write(tmp_path / "m.gguf", shape, weights(shape), vocabulary=names(shape))
    for bits in (None, 8):
        config = EngineConfig(num_blocks=8, weight_bits=bits)
        with (
            closing(TorchEngine(DecoderFile(source), config)) as exact,
            closing(TorchEngine(DecoderFile(source), replace(config, exact=False))) as fast,
        ):
            assert not fast.info.exact and exact.info.exact
            ids = random_ids(exact, 33)
            rows = all_rows(fast, ids, table(fast, 33), 3)
            assert relative(rows, all_rows(exact, ids, table(exact, 33))) < 1e-5


GPT_OSS_SHAPE = GptOss()


def write_gpt_oss(path: Path, shape: GptOss, experts: Kind = Kind.F32) -> Path:
    tokens = [chr(0x100 + n) for n in range(shape.vocabulary)]
    tensors = gpt_oss_files.weights(shape)
    return gpt_oss_files.write(
        path, shape, tensors, lambda writer: writer.add_token_list(tokens), experts
    )


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("experts", [Kind.F32, Kind.MXFP4])
def test_gpt_oss_computes_what_its_code_computes(
    experts: Kind, bits: int | None, tmp_path: Path
) -> None:
    """Experts, sinks, windows and YaRN, in f32 and with weights of 8 bits, which hold these
    matrices exactly."""
    source = write_gpt_oss(tmp_path / "m.gguf", GPT_OSS_SHAPE, experts)
    tensors = gpt_oss_files.weights(GPT_OSS_SHAPE)
    for tensor in gguf.GGUFReader(source).tensors:
        if "_exps.weight" in tensor.name:
            tensors[tensor.name] = gguf.dequantize(tensor.data, tensor.tensor_type)
    config = EngineConfig(num_blocks=8, weight_bits=bits)
    with closing(TorchEngine(DecoderFile(source), config)) as engine:
        ids = random_ids(engine, 40)
        rows = all_rows(engine, ids, table(engine, 40))
    assert relative(rows, gpt_oss_files.logits_of(GPT_OSS_SHAPE, tensors, ids.tolist())) < 1e-5


@pytest.fixture(scope="module")
def gpt_oss_file(tmp_path_factory: pytest.TempPathFactory) -> DecoderFile:
    folder = tmp_path_factory.mktemp("gpt-oss")
    shape = replace(GPT_OSS_SHAPE, context=16_384)
    return DecoderFile(write_gpt_oss(folder / "m.gguf", shape, Kind.MXFP4))


@pytest.fixture(scope="module")
def gpt_oss(gpt_oss_file: DecoderFile) -> Iterator[TorchEngine]:
    with closing(TorchEngine(gpt_oss_file, EngineConfig(num_blocks=384))) as engine:
        yield engine


@pytest.fixture(scope="module")
def smaller_gpt_oss(gpt_oss_file: DecoderFile) -> Iterator[TorchEngine]:
    """The same model with a smaller pool."""
    with closing(TorchEngine(gpt_oss_file, EngineConfig(num_blocks=16))) as engine:
        yield engine


class TestGptOss(EngineContract):
    """Each row goes through its own experts alone, and depends on no other row."""

    @pytest.fixture
    def engine(self, gpt_oss: TorchEngine) -> Engine:
        return gpt_oss

    @pytest.fixture
    def other(self, smaller_gpt_oss: TorchEngine) -> Engine:
        return smaller_gpt_oss

    @pytest.fixture
    def spare(self, gpt_oss_file: DecoderFile) -> Engine:
        return TorchEngine(gpt_oss_file, EngineConfig(num_blocks=4))


def test_the_scaled_frequencies_are_those_of_the_file(tmp_path: Path) -> None:
    shape = Shape(vocabulary=96, width=128, inner=192)
    factors = np.linspace(1, 8, shape.head_size // 2).astype(np.float32)
    tensors = weights(shape, scale=0.06) | {"rope_freqs.weight": factors}
    source = write(tmp_path / "m.gguf", shape, tensors, vocabulary=names(shape))
    model = Reference(source)
    with closing(TorchEngine(DecoderFile(source), EngineConfig(num_blocks=8))) as engine:
        ids = random_ids(engine, 60)
        rows = all_rows(engine, ids, table(engine, 60))
    assert relative(rows, model.logits(model.states([ids])[0])) < 1e-5


def test_it_agrees_with_the_openvino_engine(one: TorchEngine, shallow_model: ShallowModel) -> None:
    config = EngineConfig(
        num_blocks=16, max_fixed_rows=0, precision="f32", dynamic_quantization=False
    )
    ids = random_ids(one, 100)
    with closing(shallow_model.load(config)) as other:
        expected = all_rows(other, ids, table(other, 100))
    # OpenVINO's weights are rounded to 8 bits, these to none, or to bf16.
    assert relative(all_rows(one, ids, table(one, 100)), expected) < 0.05


def test_it_is_loaded_from_the_store_and_says_so(shallow_model: ShallowModel) -> None:
    config = EngineConfig(num_blocks=4)
    stages: list[LoadStage] = []
    with closing(
        load_engine(shallow_model.spec, shallow_model.store, config, stages.append)
    ) as engine:
        assert engine.info.vocabulary_size == 49_152
    assert stages == [LoadStage.CONVERT]


def test_the_factory_makes_it() -> None:
    with closing(create_engine(EngineConfig(engine="torch", num_blocks=4))) as engine:
        assert engine.info.name == "torch" and engine.info.exact
        warm_up(engine, 70)


def test_a_gpu_that_is_not_there_is_named(shallow_model: ShallowModel) -> None:
    if torch.cuda.is_available():
        pytest.fail("run the tests of a GPU's kernels instead: python -m bench.gpu")
    with pytest.raises(ConfigError, match="finds no GPU"):
        TorchEngine(DecoderFile(shallow_model.file), EngineConfig(num_blocks=4, device="cuda"))
