"""The kernels of GPUs, run by Triton's interpreter, compute what PyTorch's operations compute; and
a row's bits do not depend on the rows beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.engines.base import SequenceSlice
from outrider.engines.torch.call_plan import BLOCK_TOKENS, CallPlan, SpareBlocks, plan_call, size_of
from outrider.engines.torch.experts import sorted_by_expert
from outrider.engines.torch.kernels import AttentionTiles, Kernels
from outrider.engines.torch.matrices import GROUP_VALUES, GroupedMatrix, rounded_to_groups
from outrider.engines.torch.plain_kernels import PlainKernels
from outrider.engines.torch.triton_kernels import TritonKernels

pytestmark = pytest.mark.torch

PLAIN, TRITON = PlainKernels(), TritonKernels()
KERNELS = pytest.mark.parametrize("kernels", [PLAIN, TRITON], ids=["plain", "triton"])
NUM_BLOCKS = 80
SPARE = SpareBlocks(NUM_BLOCKS, NUM_BLOCKS + 1)
HEADS, KV_HEADS = 6, 2


def randoms(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_same(kernels: Kernels, actual: Tensor, expected: Tensor) -> None:
    """To the bit; but Triton's interpreter makes a product by numpy's, in which bits depend on the
    place of a row. `python -m bench.gpu` compares the bits of a GPU."""
    if kernels is PLAIN:
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def pool(size: int) -> Tensor:
    """Of one layer; blocks that nobody has are zero."""
    filled = randoms(NUM_BLOCKS + 2, 2, KV_HEADS, BLOCK_TOKENS, size)
    filled[NUM_BLOCKS:] = 0
    return filled


def slices(*lengths: tuple[int, int]) -> list[SequenceSlice]:
    """Of tokens held, and new ones; blocks are those of the pool from its end to its beginning."""
    parts, free = [], np.arange(NUM_BLOCKS, dtype=np.int32)[::-1].copy()
    for number, (past, count) in enumerate(lengths):
        needed = -(-(past + count) // BLOCK_TOKENS)
        tokens = np.zeros(count, np.int32)
        parts.append(SequenceSlice(number, tokens, past, free[:needed], 1))
        free = free[needed:]
    return parts


def plan_of(kernels: Kernels, parts: list[SequenceSlice]) -> CallPlan:
    size = size_of(parts, tile_rows=kernels.tile_rows, span_blocks=kernels.span_blocks)
    return plan_call(parts, SPARE, size)


def attended(
    kernels: Kernels,
    parts: list[SequenceSlice],
    queries: Tensor,
    held: Tensor,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Of queries [n, heads, size] of all tokens of the slices."""
    plan = plan_of(kernels, parts)
    whole = queries.new_zeros((len(plan.tokens), *queries.shape[1:]))
    whole[: len(queries)] = queries
    numbers = (plan.query_rows, plan.query_positions, plan.num_blocks, plan.tables)
    tiles = AttentionTiles(*map(torch.from_numpy, numbers))
    return kernels.attended(whole, held, tiles, window, sinks)[: len(queries)]


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("size", [16, 24, 64])
def test_attention_is_the_same_by_both(window: int, size: int) -> None:
    parts = slices((1100, 19), (5, 1), (60, 3))
    queries, held = randoms(23, HEADS, size, seed=1), pool(size)
    expected = attended(PLAIN, parts, queries, held, window)
    torch.testing.assert_close(
        attended(TRITON, parts, queries, held, window), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("window", [0, 3])
def test_attention_is_softmax_over_what_a_row_sees(window: int) -> None:
    """The definition, in 64 bits."""
    parts, size = slices((29, 9)), 16
    queries, held = randoms(9, HEADS, size, seed=1), pool(size)
    # [2, kv heads, tokens, size]
    mine = held[torch.from_numpy(parts[0].blocks.astype(np.int64))].permute(1, 2, 0, 3, 4)
    keys, values = mine.reshape(2, KV_HEADS, -1, size).double()
    for kernels in (PLAIN, TRITON):
        rows = attended(kernels, parts, queries, held, window)
        for row in range(9):
            end = 29 + row + 1
            begin = end - window if window else 0
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                scores = keys[shared, begin:end] @ queries[row, head].double()
                expected = torch.softmax(scores, 0) @ values[shared, begin:end]
                torch.testing.assert_close(rows[row, head].double(), expected, rtol=1e-4, atol=1e-5)


@KERNELS
def test_attention_of_a_row_does_not_depend_on_the_rest_of_its_call(kernels: Kernels) -> None:
    size, held = 16, pool(16)
    queries = randoms(20, HEADS, size, seed=1)
    whole = attended(kernels, slices((500, 20)), queries, held)
    for row in (0, 7, 8, 19):
        part = slices((500 + row, 1))[0]
        alone = part._replace(blocks=slices((500, 20))[0].blocks)
        others = slices((0, 0 + 1), (40, 3))[1:]
        for company in ([], others):
            mixed = torch.cat([queries[row : row + 1], randoms(3, HEADS, size, seed=7)])
            count = 1 + sum(len(other.tokens) for other in company)
            rows = attended(kernels, [alone, *company], mixed[:count], held)
            assert_same(kernels, rows[0], whole[row])


@KERNELS
def test_what_lies_behind_a_sequence_may_be_no_number(kernels: Kernels) -> None:
    size, parts = 16, slices((40, 3))
    queries, held = randoms(3, HEADS, size, seed=1), pool(16)
    expected = attended(kernels, parts, queries, held)
    held[int(parts[0].blocks[-1]), :, :, 43 % BLOCK_TOKENS :] = torch.nan
    assert_same(kernels, attended(kernels, parts, queries, held), expected)


@KERNELS
@pytest.mark.parametrize(("depth", "columns"), [(32, 40), (100, 130)])
def test_products_are_those_of_matrices(kernels: Kernels, depth: int, columns: int) -> None:
    rows, matrix = randoms(128, depth), randoms(columns, depth, seed=1)
    product = kernels.product(rows, matrix)
    torch.testing.assert_close(product, rows @ matrix.T, rtol=1e-4, atol=1e-4)
    for begin in range(0, 128, 64):
        part = kernels.product(rows[begin : begin + 64], matrix)
        assert_same(kernels, part, product[begin : begin + 64])
    turned = torch.roll(rows, 5, 0)
    assert_same(kernels, torch.roll(kernels.product(turned, matrix), -5, 0), product)


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_of_groups_are_those_of_the_numbers_they_stand_for(
    kernels: Kernels, dtype: torch.dtype
) -> None:
    rows = randoms(64, 96)
    matrix = GroupedMatrix(*rounded_to_groups(randoms(130, 96, seed=1)), dtype)
    expected = rows.to(dtype).double() @ matrix.dense().double().T
    product = kernels.product(rows, matrix)
    torch.testing.assert_close(product.double(), expected, rtol=1e-4, atol=1e-4)
    assert_same(kernels, torch.roll(kernels.product(rows.roll(5, 0), matrix), -5, 0), product)


@pytest.mark.parametrize("numbers", [randoms(3, 96), torch.zeros(3, 64)])
def test_rounded_numbers_are_within_half_a_step(numbers: Tensor) -> None:
    matrix = GroupedMatrix(*rounded_to_groups(numbers), torch.float32)
    apart = (matrix.dense() - numbers).abs().unflatten(-1, (-1, GROUP_VALUES))
    # A scale is rounded to f16, and the largest number is 127 of it.
    assert (apart <= 0.57 * matrix.scales[..., None].float()).all()


choices = st.integers(1, 6).flatmap(
    lambda most: st.lists(
        st.lists(st.integers(0, most), min_size=2, max_size=2), min_size=1, max_size=40
    )
)


@given(choices, st.sampled_from([1, 8, 16]))
def test_each_row_stands_in_a_tile_of_each_of_its_experts(
    chosen: list[list[int]], tile_rows: int
) -> None:
    num_experts = 6  # as a choice: none
    tiles, lines = sorted_by_expert(torch.tensor(chosen), num_experts, tile_rows)
    assert tiles.rows.shape == (len(tiles.experts), tile_rows)
    places = lines.flatten().tolist()
    assert len(set(places)) == len(places)
    for row, (experts, own) in enumerate(zip(chosen, lines.tolist(), strict=True)):
        for expert, line in zip(experts, own, strict=True):
            assert tiles.experts[line // tile_rows] == expert
            assert tiles.rows.flatten()[line] == row
    empty = tiles.rows.flatten().tolist()
    assert all(row == len(chosen) for at, row in enumerate(empty) if at not in set(places))


@KERNELS
@pytest.mark.parametrize("is_grouped", [False, True])
def test_products_of_experts_are_those_of_their_matrices(
    kernels: Kernels, is_grouped: bool
) -> None:
    rows = randoms(20, 64)
    grouped = GroupedMatrix(*rounded_to_groups(randoms(5, 70, 64, seed=1)), torch.float32)
    dense = grouped.dense()
    chosen = torch.from_numpy(np.random.default_rng(2).integers(0, 6, (20, 2)))
    tiles, lines = sorted_by_expert(chosen, 5, kernels.expert_rows)
    products = kernels.expert_products(rows, grouped if is_grouped else dense, tiles)[lines]
    for row in range(20):
        for choice, expert in enumerate(chosen[row].tolist()):
            expected = dense[expert] @ rows[row] if expert < 5 else torch.zeros(70)
            torch.testing.assert_close(products[row, choice], expected, rtol=1e-4, atol=1e-4)
    # As in a call of its own.
    alone, places = sorted_by_expert(chosen[7:8], 5, kernels.expert_rows)
    again = kernels.expert_products(rows[7:8], grouped if is_grouped else dense, alone)
    assert_same(kernels, again[places][0], products[7])


@pytest.mark.parametrize("window", [0, 40])
def test_sinks_take_their_share_of_the_weights(window: int) -> None:
    """The definition, in 64 bits, over several splits."""
    parts, size = slices((1100, 3)), 16
    queries, held, sinks = randoms(3, HEADS, size, seed=1), pool(size), randoms(HEADS, seed=2) * 3
    mine = held[torch.from_numpy(parts[0].blocks.astype(np.int64))].permute(1, 2, 0, 3, 4)
    keys, values = mine.reshape(2, KV_HEADS, -1, size).double()
    for kernels in (PLAIN, TRITON):
        rows = attended(kernels, parts, queries, held, window, sinks)
        for row in range(3):
            end = 1100 + row + 1
            begin = end - window if window else 0
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                scores = keys[shared, begin:end] @ queries[row, head].double()
                shares = torch.softmax(torch.cat([scores, sinks[head : head + 1].double()]), 0)
                expected = shares[:-1] @ values[shared, begin:end]
                torch.testing.assert_close(rows[row, head].double(), expected, rtol=1e-4, atol=1e-5)


@KERNELS
def test_norms_are_over_each_row(kernels: Kernels) -> None:
    rows, gain = randoms(24, 100), randoms(100, seed=1)
    power = (rows.double() ** 2).mean(-1, keepdim=True)
    expected = (rows.double() / (power + 1e-5).sqrt() * gain.double()).float()
    normed = kernels.normed(rows, gain, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=1e-5, atol=1e-6)
    assert_same(kernels, kernels.normed(rows[7:8], gain, 1e-5), normed[7:8])
    heads = rows.reshape(24, 4, 25)
    assert kernels.normed(heads, gain[:25], 1e-5).shape == heads.shape
