"""The contract on the OpenVINO engine in each arithmetic. tests/engines/test_openvino.py has it in
the one that is the default on this CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.cpu_features import cpu_flags
from outrider.engines.openvino.engine import OpenVinoEngine
from tests.engines.seam.contract import EngineContract
from tests.engines.shallow_model import ShallowModel, computes_in_bf16

pytestmark = [pytest.mark.model, pytest.mark.soak]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is computed between the weights, which have 8 bits in all of them."""

    precision: Precision
    dynamic_quantization: bool


ARITHMETICS = {
    "f32": Arithmetic("f32", dynamic_quantization=False),
    "bf16": Arithmetic("bf16", dynamic_quantization=False),
    "int8": Arithmetic("auto", dynamic_quantization=True),
}
"""int8: products whose inputs are rounded to 8 bits."""


@pytest.fixture(scope="module", params=ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    if request.param == "bf16" and not computes_in_bf16():
        pytest.skip("this CPU does not compute in bf16")
    if request.param == "int8" and not cpu_flags() & {"avx512_vnni", "avx_vnni"}:
        pytest.skip("this CPU has no VNNI: OpenVINO rounds no inputs on it")
    return ARITHMETICS[request.param]


@pytest.fixture(scope="module")
def one(shallow_model: ShallowModel, arithmetic: Arithmetic) -> Iterator[OpenVinoEngine]:
    """Tests close the sequences they open, never the engine."""
    with closing(shallow_model.load(config_of(arithmetic, 384, max_fixed_rows=8))) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(shallow_model: ShallowModel, arithmetic: Arithmetic) -> Iterator[OpenVinoEngine]:
    """The same model with a smaller pool, and no models of their own for calls of few rows."""
    with closing(shallow_model.load(config_of(arithmetic, 16))) as engine:
        yield engine


def config_of(arithmetic: Arithmetic, num_blocks: int, max_fixed_rows: int = 0) -> EngineConfig:
    return EngineConfig(
        num_blocks=num_blocks,
        max_fixed_rows=max_fixed_rows,
        prepare_first=True,
        precision=arithmetic.precision,
        dynamic_quantization=arithmetic.dynamic_quantization,
    )


class TestArithmetics(EngineContract):
    @pytest.fixture
    def engine(self, one: OpenVinoEngine) -> Engine:
        return one

    @pytest.fixture
    def other(self, two: OpenVinoEngine) -> Engine:
        return two

    @pytest.fixture
    def spare(self, shallow_model: ShallowModel, arithmetic: Arithmetic) -> Engine:
        return shallow_model.load(config_of(arithmetic, 4))
