"""Engines from configurations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, SizingRule, no_work
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine, warm_up
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.engines.footprint import MAX_LOGITS_ROWS
from outrider.errors import ConfigError, UnknownModelError


def test_the_fake_engine_takes_its_options() -> None:
    engine = create_engine(EngineConfig(engine="fake", fake=FakeOptions(vocabulary_size=10)))
    assert isinstance(engine, FakeEngine)
    assert engine.info.vocabulary_size == 10


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no-such-model"):
        create_engine(EngineConfig(model="no-such-model", model_store=tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("engine", "tpu"), ("precision", "int3"), ("threads", 0), ("num_blocks", 0)),
        *(("kv_bytes", -1), ("kv_share", 0.0), ("kv_share", 1.1), ("max_context_tokens", -1)),
    ],
)
def test_bad_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineConfig(**{field: value})


class Recorder(FakeEngine):
    """Notes the sizes of its calls."""

    def __init__(self, options: FakeOptions) -> None:
        super().__init__(options)
        self.sizes: list[int] = []
        self.logits: list[int] = []

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        self.sizes.append(sum(len(part.tokens) for part in slices))
        self.logits.append(sum(part.num_rows for part in slices))
        return super().step(slices, overlapped_work)


@pytest.mark.parametrize(("max_rows", "num_blocks", "most"), [(0, 64, 0), (5, 64, 5), (999, 2, 31)])
def test_every_size_that_fits_once(max_rows: int, num_blocks: int, most: int) -> None:
    sizing = SizingRule(tuple(range(1, 40)))
    engine = Recorder(
        FakeOptions(num_blocks=num_blocks, block_tokens=16, scratch_tokens=1, sizing=sizing)
    )
    warm_up(engine, max_rows)
    assert engine.sizes == list(range(1, most + 1))


@pytest.mark.parametrize(("max_rows", "sizes"), [(0, []), (300, [1])])
def test_an_engine_that_tells_no_sizes_apart_is_called_once(
    max_rows: int, sizes: list[int]
) -> None:
    engine = Recorder(FakeOptions())
    warm_up(engine, max_rows)
    assert engine.sizes == sizes


def test_only_sizes_that_the_engine_tells_apart() -> None:
    sizing = SizingRule((1, 2, 4), quantum=16)
    engine = Recorder(FakeOptions(num_blocks=64, block_tokens=16, sizing=sizing))
    warm_up(engine, 40)
    assert engine.sizes == [1, 2, 4, 16, 32, 40]


def test_logits_are_asked_for_as_many_rows_as_a_step_of_replies_has() -> None:
    engine = Recorder(FakeOptions(num_blocks=64, block_tokens=16, sizing=SizingRule((8, 200))))
    warm_up(engine, 200)
    assert engine.sizes == [8, 200]
    assert engine.logits == [8, MAX_LOGITS_ROWS]


def test_the_engine_is_free_afterwards() -> None:
    engine = FakeEngine(FakeOptions())
    warm_up(engine, 4)
    engine.open(0, np.zeros(1, np.int32))
