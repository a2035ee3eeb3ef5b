"""The KV pool's size: what was asked for, or a share of what is free."""

from __future__ import annotations

import pytest

from outrider.engines.free_memory import FreeMemory
from outrider.engines.kv_budget import CEILING_BYTES, BlockShape, Budget
from outrider.errors import ConfigError

MIB = 1 << 20
SHAPE = BlockShape(num_bytes=MIB, num_tokens=32, scratch_tokens=1)


def blocks(budget: Budget, free_bytes: int | None = None) -> int:
    def measure() -> FreeMemory:
        assert free_bytes is not None, "nothing had to be measured"
        return FreeMemory(free_bytes, "a test")

    return budget.decide(SHAPE, measure).num_blocks


def test_what_is_asked_for_is_not_measured() -> None:
    assert blocks(Budget(num_blocks=7, num_bytes=999 * MIB)) == 7
    assert blocks(Budget(num_bytes=10 * MIB - 1)) == 9


@pytest.mark.parametrize(
    ("free_mib", "expected"),
    [(1000, 300), (100, 64), (50, 50), (1 << 20, CEILING_BYTES // MIB)],
)
def test_a_share_of_what_is_free(free_mib: int, expected: int) -> None:
    assert blocks(Budget(share=0.3), free_mib * MIB) == expected


@pytest.mark.parametrize(("context", "needed"), [(31, 1), (32, 2), (63, 2), (8192, 257)])
def test_one_sequence_of_the_context_asked_fits_or_it_is_an_error(
    context: int, needed: int
) -> None:
    assert blocks(Budget(num_blocks=needed, context_tokens=context)) == needed
    for budget in (Budget(num_blocks=needed - 1), Budget(num_bytes=needed * MIB - 1)):
        asked = Budget(budget.num_blocks, budget.num_bytes, context_tokens=context)
        with pytest.raises(ConfigError, match=f"{context} tokens takes {needed} blocks"):
            blocks(asked)


def test_a_measured_pool_grows_to_what_one_sequence_needs() -> None:
    budget = Budget(share=0.1, context_tokens=8000)
    assert blocks(budget, 400 * MIB) == 251
    with pytest.raises(ConfigError, match="8000 tokens takes 251 blocks"):
        blocks(budget, 250 * MIB)


def test_a_pool_has_a_block() -> None:
    with pytest.raises(ConfigError, match="one block takes 1 blocks or 1048576 bytes"):
        blocks(Budget(num_bytes=MIB - 1))
