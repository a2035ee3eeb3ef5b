"""The OpenVINO engine on a few layers of the real model, which have all of its kernels in a
fraction of its time; on all of them where that is what a test is about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from structlog.testing import capture_logs

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.cpu_features import cpu_flags
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.errors import ConfigError
from tests.engines.seam.contract import EngineContract
from tests.engines.seam.driving import (
    all_rows,
    assert_same,
    opened,
    random_ids,
    run,
    table,
)
from tests.engines.shallow_model import NUM_LAYERS, ShallowModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shallow(shallow_model: ShallowModel) -> Iterator[OpenVinoEngine]:
    """Tests close the sequences they open, never the engine."""
    config = EngineConfig(num_blocks=384, max_fixed_rows=8, prepare_first=True)
    with closing(shallow_model.load(config)) as engine:
        yield engine


@pytest.fixture(scope="module")
def two_threads(shallow_model: ShallowModel) -> Iterator[OpenVinoEngine]:
    """The same model on another number of threads, with a smaller pool."""
    config = EngineConfig(threads=2, num_blocks=16, max_fixed_rows=0)
    with closing(shallow_model.load(config)) as engine:
        yield engine


class TestOpenVinoEngine(EngineContract):
    @pytest.fixture
    def engine(self, shallow: OpenVinoEngine) -> Engine:
        return shallow

    @pytest.fixture
    def other(self, two_threads: OpenVinoEngine) -> Engine:
        return two_threads

    @pytest.fixture
    def spare(self, shallow_model: ShallowModel) -> Engine:
        return shallow_model.load(EngineConfig(num_blocks=4, max_fixed_rows=0))


LAYER_BLOCK_BYTES = {"bf16": 24_576, "f32": 49_152}
"""Of 32 tokens in one layer with 3 heads of 64 keys and values."""


def test_threads_do_not_change_a_bit(shallow: OpenVinoEngine, two_threads: OpenVinoEngine) -> None:
    ids = random_ids(shallow, 120)
    expected = all_rows(shallow, ids, table(shallow, 120))
    for chunk in (120, 5, 1):
        assert_same(all_rows(two_threads, ids, table(two_threads, 120), chunk), expected)


def test_every_size_that_is_prepared_computes_the_same(openvino_engine: OpenVinoEngine) -> None:
    engine, ids = openvino_engine, random_ids(openvino_engine, 90)
    # Without VNNI a call of one row has another kernel, and is computed as one of two.
    single = (1,) if cpu_flags() & {"avx512_vnni", "avx_vnni"} else ()
    assert engine.info.sizing.sizes == (*single, 2, 4, 6, 8, 12, 16, 24, 32)
    expected = all_rows(engine, ids, table(engine, 90))
    # 3, 5 and 7 rows leave room in their calls; 9 run as 12, 33 as 48 on the model for any number;
    # 90 are computed as 64 and 26 where products of many rows have another kernel.
    for chunk in (1, 2, 3, 4, 5, 6, 7, 8, 9, 33):
        assert_same(all_rows(engine, ids, table(engine, 90, chunk), chunk), expected)


def test_an_engine_computes_the_same_before_and_after_its_sizes_are_prepared(
    shallow_model: ShallowModel,
) -> None:
    with closing(shallow_model.load(EngineConfig(num_blocks=16, max_fixed_rows=0))) as unprepared:
        ids = random_ids(unprepared, 40)
        expected = all_rows(unprepared, ids, table(unprepared, 40))
    engine = shallow_model.load(EngineConfig(num_blocks=16, max_fixed_rows=1))
    # Some of these calls come before the size is ready, some after.
    for _ in range(4):
        assert_same(all_rows(engine, ids, table(engine, 40), chunk=1), expected)
    engine.close()


@pytest.mark.parametrize("precision", ["bf16", "f32"])
@pytest.mark.parametrize("dynamic_quantization", [True, False])
def test_settings_whose_kernels_differ_for_few_rows_are_exact_too(
    shallow_model: ShallowModel, precision: Precision, dynamic_quantization: bool
) -> None:
    """Which ones these are depends on the CPU; calls are padded past them."""
    config = EngineConfig(
        num_blocks=16,
        max_fixed_rows=4,
        prepare_first=True,
        precision=precision,
        dynamic_quantization=dynamic_quantization,
    )
    try:
        engine = shallow_model.load(config)
    except ConfigError as error:
        if "does not compute in bf16" not in error.message:
            raise
        pytest.skip(error.message)
    ids = random_ids(engine, 50)
    expected = all_rows(engine, ids, table(engine, 50))
    for chunk in (1, 2, 3, 5, 33):
        assert_same(all_rows(engine, ids, table(engine, 50, chunk), chunk), expected)
    assert engine.info.block_bytes == LAYER_BLOCK_BYTES[precision] * NUM_LAYERS
    engine.close()


def test_sizes_larger_than_the_probe_are_prepared_too(shallow_model: ShallowModel) -> None:
    config = EngineConfig(num_blocks=16, max_fixed_rows=64, prepare_first=True)
    with capture_logs() as said:
        shallow_model.load(config).close()
    chosen = next(line["num_rows"] for line in said if line["event"] == "call_sizes_chosen")
    prepared = next(line["num_rows"] for line in said if line["event"] == "call_sizes_prepared")
    assert list(prepared) == list(chosen)


def test_engines_of_one_model_have_one_fingerprint(
    shallow: OpenVinoEngine, two_threads: OpenVinoEngine
) -> None:
    assert len(shallow.info.fingerprint) == 32
    assert shallow.info.fingerprint == two_threads.info.fingerprint


def test_closing_does_not_wait_for_all_sizes(shallow_model: ShallowModel) -> None:
    engine = shallow_model.load(EngineConfig(num_blocks=4, max_fixed_rows=64))
    engine.close()
    names = [thread.name for thread in threading.enumerate()]
    assert "preparation" not in names


def test_a_long_prompt_in_chunks_equals_one_pass(shallow: OpenVinoEngine) -> None:
    engine, ids = shallow, random_ids(shallow, 1540)
    blocks, others = table(engine, 1540, first=192), table(engine, 1540, 7)
    with opened(engine, ids, ids) as (whole, chunked):
        expected = run(engine, whole, ids, 0, blocks, 20)
        for past in range(0, 1440, 96):
            run(engine, chunked, ids[past : past + 96], past, others, 0)
        assert_same(run(engine, chunked, ids[1440:], 1440, others, 20), expected)
        for past in range(1520, 1540):
            row = run(engine, chunked, ids[past : past + 1], past, others, 1)
            assert_same(row, expected[past - 1520 : past - 1519])


def test_inexact_has_no_scratch_and_says_so(shallow_model: ShallowModel) -> None:
    exact = shallow_model.load(EngineConfig(num_blocks=8, max_fixed_rows=0))
    config = EngineConfig(num_blocks=8, exact=False, max_fixed_rows=2, prepare_first=True)
    inexact = shallow_model.load(config)
    assert not inexact.info.exact
    assert (inexact.info.min_rows, inexact.info.scratch_tokens) == (1, 0)
    ids = random_ids(inexact, 64)  # Two blocks to the last slot.
    expected = all_rows(exact, ids, table(exact, 64))
    exact.close()
    blocks = table(inexact, 64)
    assert len(blocks) == 2
    assert_same(all_rows(inexact, ids, blocks, chunk=2), expected)
    single = all_rows(inexact, ids, blocks, chunk=1)
    assert np.isfinite(single).all()
    assert (single != expected).any()  # The reason for duplicating rows; see decision 0002.
    inexact.close()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kv_bytes": 1 << 50}, "MiB of memory are needed"),
        ({"num_blocks": 1 << 30}, "the KV pool takes"),
        ({"max_context_tokens": 2016, "num_blocks": 63}, "2016 tokens takes 64 blocks"),
        ({"max_context_tokens": 8193}, "the model has at most 8192"),
    ],
)
def test_what_has_no_room_is_refused(
    shallow_model: ShallowModel, asked: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        shallow_model.load(EngineConfig(max_fixed_rows=0, **asked))  # type: ignore[arg-type]


def test_a_pool_takes_its_share_of_what_is_free(shallow_model: ShallowModel) -> None:
    config = EngineConfig(kv_share=0.01, max_context_tokens=3000, max_fixed_rows=0)
    engine = shallow_model.load(config)
    info = engine.info
    assert info.max_context_tokens == 3000
    assert info.num_blocks * info.block_bytes >= 3001 * info.block_bytes // info.block_tokens
    assert "1% of" in info.pool_reason
    engine.close()
