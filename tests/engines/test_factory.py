"""Engines from configurations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.engines.base import SequenceSlice, SizingRule
from outrider.engines.factory import warm_up
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.engines.footprint import MAX_LOGITS_ROWS
from tests.engines.hooked import HookedEngine


class Recorder(HookedEngine):
    """Notes the sizes of its calls."""

    def __init__(self, options: FakeOptions) -> None:
        super().__init__(options)
        self.sizes: list[int] = []
        self.logits: list[int] = []

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        self.sizes.append(sum(len(part.tokens) for part in slices))
        self.logits.append(sum(part.num_rows for part in slices))


EVERY = SizingRule(tuple(range(1, 40)))


@pytest.mark.parametrize(
    ("sizing", "num_blocks", "max_rows", "sizes"),
    [
        (EVERY, 64, 0, []),
        (EVERY, 64, 5, [1, 2, 3, 4, 5]),
        pytest.param(EVERY, 2, 999, list(range(1, 32)), id="as many as fit the pool"),
        pytest.param(SizingRule(), 64, 300, [1], id="no sizes to tell apart"),
        (SizingRule((1, 2, 4), quantum=16), 64, 40, [1, 2, 4, 16, 32, 40]),
        (SizingRule((8, 200)), 64, 200, [8, 200]),
    ],
)
def test_each_size_that_the_engine_tells_apart_is_computed_once(
    sizing: SizingRule, num_blocks: int, max_rows: int, sizes: list[int]
) -> None:
    options = FakeOptions(num_blocks=num_blocks, block_tokens=16, scratch_tokens=1, sizing=sizing)
    engine = Recorder(options)
    warm_up(engine, max_rows)
    assert engine.sizes == sizes
    # As many rows as a step of replies has.
    assert engine.logits == [min(size, MAX_LOGITS_ROWS) for size in sizes]


def test_the_engine_is_free_afterwards() -> None:
    engine = FakeEngine(FakeOptions())
    warm_up(engine, 4)
    engine.open(0, np.zeros(1, np.int32))
