"""The fake engine: the contract, and that caller's mistakes show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.errors import EngineError
from tests.engines.seam.contract import EngineContract
from tests.engines.seam.driving import (
    all_rows,
    opened,
    random_ids,
    run,
    table,
)


class TestFakeEngine(EngineContract):
    @pytest.fixture(
        params=[
            FakeOptions(),
            FakeOptions(block_tokens=32, seed=5),
            FakeOptions(num_candidates=64),
        ]
    )
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        return FakeEngine(request.param)

    @pytest.fixture
    def other(self, engine: FakeEngine) -> Engine:
        return FakeEngine(engine.options)

    @pytest.fixture
    def spare(self) -> Engine:
        return FakeEngine()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_a_wrong_block_table_shows(engine: FakeEngine) -> None:
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    expected = all_rows(engine, ids, blocks)
    swapped = blocks[[1, 0, *range(2, len(blocks))]]
    foreign = np.append(blocks[:1], [b for b in range(20) if b not in blocks]).astype(np.int32)
    with opened(engine, ids) as (sequence,):
        for wrong in (swapped, foreign):
            row = run(engine, sequence, ids[59:], 59, wrong, 1)
            assert (row != expected[59:]).all()
            all_rows(engine, ids, blocks)


@pytest.mark.parametrize("past", [57, 58, 60])
def test_a_wrong_past_shows(engine: FakeEngine, past: int) -> None:
    ids, blocks = random_ids(engine, 60), table(engine, 70)
    expected = all_rows(engine, ids, blocks)
    with opened(engine, ids) as (sequence,):
        row = run(engine, sequence, ids[59:], past, blocks, 1)
    assert (row != expected[59:]).all()


def test_rejected_drafts_kept_by_mistake_show(engine: FakeEngine) -> None:
    ids, blocks = random_ids(engine, 60), table(engine, 70)
    expected = all_rows(engine, ids, blocks)
    with opened(engine, ids) as (sequence,):
        run(engine, sequence, random_ids(engine, 5, 8), 40, blocks, 0)
        row = run(engine, sequence, ids[45:], 45, blocks, 1)
    assert (row != expected[59:]).all()


def test_kv_reused_behind_another_prefix_shows(engine: FakeEngine) -> None:
    size = engine.info.block_tokens
    ids, blocks = random_ids(engine, 2 * size + 1), table(engine, 2 * size + 1)
    expected = all_rows(engine, ids, blocks)
    with opened(engine, ids) as (sequence,):
        run(engine, sequence, random_ids(engine, size, 8), 0, blocks, 0)
        run(engine, sequence, ids[:size], 0, table(engine, size, first=size), 0)
        run(engine, sequence, random_ids(engine, size, 8), 0, blocks, 0)
        run(engine, sequence, ids[size:], size, blocks, 0)
        good = table(engine, size, first=size)
        run(engine, sequence, ids[:size], 0, good, 0)
        mixed = np.append(good[:1], blocks[1:])
        row = run(engine, sequence, ids[-1:], 2 * size, mixed, 1)
    assert (row != expected[-1:]).all()


def test_two_slices_writing_one_block_show(engine: FakeEngine) -> None:
    prompts = [random_ids(engine, 10, seed) for seed in (1, 2)]
    blocks = table(engine, 10)
    expected = [all_rows(engine, ids, blocks) for ids in prompts]
    with opened(engine, *prompts) as sequences:
        answers = engine.step(
            [
                SequenceSlice(sequence, ids, 0, blocks, 10)
                for sequence, ids in zip(sequences, prompts, strict=True)
            ]
        )
    assert any(
        (answer.logits != rows).any() for answer, rows in zip(answers, expected, strict=True)
    )


def test_slots_behind_the_last_token_are_spoiled(engine: FakeEngine) -> None:
    size = engine.info.block_tokens
    ids, blocks = random_ids(engine, 3 * size), table(engine, 3 * size)
    expected = all_rows(engine, ids, blocks)
    with opened(engine, ids) as (sequence,):
        run(engine, sequence, ids[:2], 0, blocks, 0)  # Now only 2 tokens of block 0 are good.
        row = run(engine, sequence, ids[-1:], 3 * size - 1, blocks, 1)
    assert (row != expected[-1:]).all()


def test_fewer_rows_than_declared_are_refused() -> None:
    engine = FakeEngine(FakeOptions(min_rows=2))
    ids, blocks = random_ids(engine, 4), table(engine, 4)
    with opened(engine, ids) as (sequence,):
        with pytest.raises(EngineError, match="at least 2"):
            run(engine, sequence, ids[:1], 0, blocks, 1)
        assert len(run(engine, sequence, ids[:2], 0, blocks, 2)) == 2


def test_the_configured_step_fails_and_only_that() -> None:
    engine = FakeEngine(FakeOptions(fail_on_step=2))
    ids, blocks = random_ids(engine, 4), table(engine, 4)
    with opened(engine, ids) as (sequence,):
        first = run(engine, sequence, ids, 0, blocks, 4)
        with pytest.raises(EngineError, match="call 2 fails"):
            run(engine, sequence, ids, 0, blocks, 4)
        assert (run(engine, sequence, ids, 0, blocks, 4) == first).all()
    assert engine.num_steps == 3


def test_virtual_time_counts_calls_and_tokens() -> None:
    engine = FakeEngine(FakeOptions(fixed_ms=8.0, row_ms=0.5))
    all_rows(engine, random_ids(engine, 10), table(engine, 10), chunk=4)
    assert engine.step_ms == 8.0 + 2 * 0.5
    assert engine.total_ms == 3 * 8.0 + 10 * 0.5


def test_the_fingerprint_is_of_what_it_computes_and_of_nothing_else() -> None:
    def fingerprint(**options: Any) -> bytes:
        return FakeEngine(FakeOptions(**options)).info.fingerprint

    first = fingerprint()
    assert len(first) == 32
    for same in ({"num_blocks": 9}, {"block_tokens": 8}, {"min_rows": 2}, {"fixed_ms": 5.0}):
        assert fingerprint(**same) == first
    for other in ({"seed": 1}, {"vocabulary_size": 65}, {"repetition": 0.0}):
        assert fingerprint(**other) != first


def test_the_fingerprint_is_of_the_rows_that_a_sequence_gets() -> None:
    engine = FakeEngine(FakeOptions(seed=3))
    ids = probe_ids(engine.info.vocabulary_size, 16)
    assert engine.info.fingerprint == fingerprint_of(all_rows(engine, ids, table(engine, 16)))
