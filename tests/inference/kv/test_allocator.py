"""The block allocator against a naive count of holders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.kv.allocator import BlockAllocator


def test_misuse_is_refused() -> None:
    allocator = BlockAllocator(1)
    with pytest.raises(RuntimeError, match="released twice"):
        allocator.release(0)
    with pytest.raises(RuntimeError, match="cannot be retained"):
        allocator.retain(0)


@given(st.lists(st.tuples(st.sampled_from("arl"), st.integers(0, 5))))
def test_agrees_with_a_list_of_holders(ops: list[tuple[str, int]]) -> None:
    allocator, held = BlockAllocator(6), list[int]()
    for op, pick in ops:
        if op == "a" and allocator.num_free:
            block = allocator.allocate()
            assert block not in held
            held.append(block)
        elif held and op == "r":
            allocator.retain(held[pick % len(held)])
            held.append(held[pick % len(held)])
        elif held and op == "l":
            block = held.pop(pick % len(held))
            assert allocator.release(block) == held.count(block)
        assert allocator.num_free == 6 - len(set(held))
        allocator.check_invariants()
