"""What a replica takes, and what is refused for it."""

from __future__ import annotations

import pytest

from outrider.engines.footprint import (
    MIB,
    RESERVE_BYTES,
    Footprint,
    check_pool,
    fixed_budget,
)
from outrider.engines.free_memory import FreeMemory
from outrider.errors import InsufficientMemoryError

GIB = 1 << 30
PLAIN = Footprint(
    process_bytes=MIB, model_bytes=10 * MIB, logits_bytes=2 * MIB, kv_bytes=7 * MIB, fixed_bytes=GIB
)


def free(num_bytes: int) -> FreeMemory:
    return FreeMemory(num_bytes, "a test")


def test_what_only_makes_calls_faster_is_not_needed() -> None:
    assert PLAIN.needed_bytes == 20 * MIB
    assert PLAIN.total_bytes == 20 * MIB + GIB
    PLAIN.check(free(20 * MIB))


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(InsufficientMemoryError) as refused:
        PLAIN.check(free(20 * MIB - 1))
    words = refused.value.message
    for part in ("20 MiB of memory are needed", "7 MiB for its KV pool", "a test leaves 20 MiB"):
        assert part in words
    assert "lower kv_bytes" in words


def test_replicas_and_other_processes_count_together() -> None:
    PLAIN.check(free(70 * MIB), num_replicas=3, others_bytes=10 * MIB)
    with pytest.raises(
        InsufficientMemoryError, match=r"each of 3 replicas.*11 MiB for other processes"
    ):
        PLAIN.check(free(70 * MIB), num_replicas=3, others_bytes=11 * MIB)


def test_nothing_is_refused_where_free_memory_cannot_be_read() -> None:
    PLAIN.check(None, num_replicas=1000)
    check_pool(GIB, None)


def test_a_pool_that_does_not_fit_is_refused() -> None:
    check_pool(MIB, free(MIB))
    with pytest.raises(InsufficientMemoryError, match="takes 2 MiB, a test leaves 1 MiB"):
        check_pool(2 * MIB, free(MIB))


@pytest.mark.parametrize(
    ("free_bytes", "kv_bytes", "expected"),
    [
        (None, 0, 2 * GIB),
        (0, 0, 0),
        (RESERVE_BYTES + GIB, GIB // 2, GIB // 2),
        (RESERVE_BYTES + 30 * GIB, 0, 2 * GIB),
        (RESERVE_BYTES + 100 * GIB, 0, 5 * GIB),
    ],
    ids=["unknown", "none", "little", "enough", "plenty"],
)
def test_models_for_few_rows_take_what_is_left_within_bounds(
    free_bytes: int | None, kv_bytes: int, expected: int
) -> None:
    assert fixed_budget(free_bytes, kv_bytes) == expected
