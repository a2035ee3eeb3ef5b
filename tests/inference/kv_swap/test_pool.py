"""Whose packed blocks are in memory, and whose go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.kv_swap.pool import SwapPool


def names(group: bytes, count: int) -> tuple[bytes, ...]:
    return tuple(b"%s %d" % (group, n) for n in range(count))


def test_a_session_finds_what_it_lost_and_nothing_of_another_group() -> None:
    pool = SwapPool(100)
    pool.want(1, b"a", names(b"a", 3))
    pool.want(2, b"b", names(b"b", 3))
    assert pool.put(b"a 2", b"two") and pool.put(b"a 0", b"zero")
    assert pool.frames(1) == [(0, b"zero"), (2, b"two")]
    assert pool.frames(2) == [] == pool.frames(3)
    pool.forget(1)
    assert pool.num_bytes == len(pool) == 0 and pool.num_sessions == 1


def test_what_nobody_wants_and_what_is_too_large_is_not_kept() -> None:
    pool = SwapPool(10)
    assert not pool.put(b"a 0", b"x")
    pool.want(1, b"a", names(b"a", 1))
    assert not pool.put(b"a 0", b"x" * 11)
    assert pool.num_bytes == 0


def test_what_two_sessions_have_in_common_goes_with_the_last_of_them() -> None:
    pool = SwapPool(100)
    pool.want(1, b"a", names(b"a", 2))
    pool.want(2, b"a", names(b"a", 1))
    pool.put(b"a 0", b"zero")
    pool.forget(1)
    assert pool.frames(2) == [(0, b"zero")]
    pool.forget(2)
    assert pool.num_bytes == 0


def test_a_session_that_is_preempted_again_with_less_still_wants_all() -> None:
    pool = SwapPool(100)
    pool.want(1, b"a", names(b"a", 2))
    pool.put(b"a 1", b"one")
    pool.want(1, b"a", names(b"a", 1))
    assert pool.frames(1) == [(1, b"one")]
    pool.want(1, b"a", names(b"a", 3))
    pool.put(b"a 2", b"two")
    assert len(pool.frames(1)) == 2
    pool.forget(1)
    assert pool.num_bytes == pool.num_sessions == 0


def test_a_group_that_fills_the_memory_gives_way_to_others_up_to_an_equal_share() -> None:
    pool = SwapPool(100)
    for number, group in enumerate((b"greedy", b"modest")):
        pool.want(number, group, names(group, 100))
    for name in names(b"greedy", 100):
        pool.put(name, b"0123456789")
    assert pool.num_bytes == 100
    for name in names(b"modest", 100):
        pool.put(name, b"0123456789")
    assert [len(pool.frames(number)) for number in (0, 1)] == [5, 5]
    for name in names(b"greedy", 50):
        pool.put(name, b"0123456789")
    assert [len(pool.frames(number)) for number in (0, 1)] == [5, 5]


_GROUPS = (b"a", b"b", b"c")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("want", "put", "forget")),
        st.integers(0, 5),
        st.integers(0, 6),
        st.integers(1, 40),
    ),
    max_size=80,
)


@given(_STEPS)
def test_it_keeps_its_bound_and_in_the_end_nothing(
    steps: list[tuple[str, int, int, int]],
) -> None:
    pool = SwapPool(100)
    for what, session, index, size in steps:
        group = _GROUPS[session % 3]
        if what == "want":
            pool.want(session, group, names(group, index))
        elif what == "put":
            pool.put(b"%s %d" % (group, index), bytes(size))
        else:
            pool.forget(session)
            assert not pool.frames(session)
        assert 0 <= pool.num_bytes <= 100
    for session in range(6):
        pool.forget(session)
    assert pool.num_bytes == len(pool) == pool.num_sessions == 0
