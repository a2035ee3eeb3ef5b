"""Every row of a call stands once, is written where it belongs, and sees its own sequence."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import SequenceSlice
from outrider.engines.torch.call_plan import (
    BLOCK_TOKENS,
    QUERY_ROWS,
    CallPlan,
    CallSize,
    SpareBlocks,
    plan_call,
    size_of,
)

SPARE = SpareBlocks(zero=1000, waste=1001)
lengths = st.lists(
    st.tuples(st.integers(0, 700), st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=6
)


def slices_of(lengths: list[tuple[int, int, int]]) -> list[SequenceSlice]:
    """Of tokens held, new ones and rows asked for; blocks are random, no block is in two."""
    free = np.random.default_rng(1).permutation(1000).astype(np.int32)
    parts, used = [], 0
    for number, (past, count, rows) in enumerate(lengths):
        needed = -(-(past + count) // BLOCK_TOKENS)
        tokens = (1 + number * 100 + np.arange(count)).astype(np.int32)
        blocks = free[used : used + needed]
        parts.append(SequenceSlice(number, tokens, past, blocks, min(rows, count)))
        used += needed
    return parts


def planned(parts: list[SequenceSlice], tile_rows: int = 8, span_blocks: int = 8) -> CallPlan:
    size = size_of(parts, tile_rows=tile_rows, span_blocks=span_blocks)
    return plan_call(parts, SPARE, size)


@given(lengths, st.sampled_from([8, 64]), st.sampled_from([1, 8, 32]))
def test_a_plan_is_filled_up_to_whole_tiles(
    lengths: list[tuple[int, int, int]], tile_rows: int, span_blocks: int
) -> None:
    parts = slices_of(lengths)
    plan = planned(parts, tile_rows, span_blocks)
    num_rows, count = len(plan.tokens), sum(len(part.tokens) for part in parts)
    assert num_rows % tile_rows == 0 and count <= num_rows < count + tile_rows
    assert plan.tables.shape[1] % span_blocks == 0
    assert 0 <= len(plan.logits_rows) - plan.num_logits < tile_rows
    assert (plan.num_blocks > 0).all()


@given(lengths, st.tuples(*[st.integers(0, 90)] * 4))
def test_each_row_stands_once_and_has_its_place(
    lengths: list[tuple[int, int, int]], more: tuple[int, int, int, int]
) -> None:
    parts = slices_of(lengths)
    least = size_of(parts, tile_rows=8, span_blocks=8)
    size = CallSize(*(one + other for one, other in zip(least, more, strict=True)))
    plan = plan_call(parts, SPARE, size)
    assert (len(plan.tokens), len(plan.tables)) == size[:2]
    assert (plan.tables.shape[1], len(plan.logits_rows)) == size[2:]
    num_rows, count = len(plan.tokens), sum(len(part.tokens) for part in parts)
    assert set(plan.write_blocks[count:]) <= {SPARE.waste}
    seen = plan.query_rows[plan.query_rows < num_rows]
    assert sorted(seen) == list(range(count))
    assert (plan.query_positions[plan.query_rows == num_rows] == -1).all()
    assert list(plan.num_blocks) == sorted(plan.num_blocks, reverse=True)
    first = 0
    for part in parts:
        for offset, token in enumerate(part.tokens):
            position = part.past + offset
            row = first + offset
            assert plan.tokens[row] == token and plan.positions[row] == position
            assert plan.write_blocks[row] == part.blocks[position // BLOCK_TOKENS]
            assert plan.write_slots[row] == position % BLOCK_TOKENS
            tile, line = np.argwhere(plan.query_rows == row)[0]
            assert plan.query_positions[tile, line] == position
            held = position // BLOCK_TOKENS + 1
            assert held <= plan.num_blocks[tile]
            assert list(plan.tables[tile, :held]) == list(part.blocks[:held])
            assert set(plan.tables[tile, plan.num_blocks[tile] :]) <= {SPARE.zero}
        first += len(part.tokens)


@given(lengths)
def test_a_tile_holds_rows_of_one_sequence(lengths: list[tuple[int, int, int]]) -> None:
    plan = planned(slices_of(lengths))
    owners = plan.tokens[np.minimum(plan.query_rows, len(plan.tokens) - 1)] // 100
    for tile in range(len(plan.query_rows)):
        real = plan.query_rows[tile] < len(plan.tokens)
        assert 1 <= real.sum() <= QUERY_ROWS
        assert len(set(owners[tile][real])) == 1


@given(lengths)
def test_the_rows_asked_for_are_the_last_of_each_slice(
    lengths: list[tuple[int, int, int]],
) -> None:
    parts = slices_of(lengths)
    plan = planned(parts)
    wanted: list[int] = []
    first = 0
    for part in parts:
        first += len(part.tokens)
        wanted += range(first - part.num_rows, first)
    assert plan.num_logits == len(wanted)
    assert list(plan.logits_rows[: plan.num_logits]) == wanted
