"""A bounded map, filled, and against a list in order of last use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.lru_map import LruMap


def test_a_full_map_drops_the_least_recently_used() -> None:
    entries: LruMap[str, int] = LruMap(3)
    for number, key in enumerate("abc"):
        entries.put(key, number)
    assert entries.get("a") == 0
    assert entries.peek("b") == 1 and "b" in entries, "neither is a use"
    entries.put("d", 3)
    assert list(entries.items()) == [("c", 2), ("a", 0), ("d", 3)]
    entries.put("c", 4)
    entries.put("e", 5)
    assert list(reversed(entries.items())) == [("e", 5), ("c", 4), ("d", 3)]


def test_one_that_alone_weighs_too_much_drops_no_other() -> None:
    entries: LruMap[str, int] = LruMap(3, max_weight=5, weigh=lambda key, value: value)
    for key in "abc":
        entries.put(key, 1)
    entries.put("d", 6)
    entries.put("c", 6)
    assert list(entries.items()) == [("a", 1), ("b", 1)] and entries.weight == 2


OPERATIONS = ["put", "get", "pop", "pop_first", "drop_oldest", "peek", "clear"]


@given(
    st.integers(0, 5),
    st.integers(0, 20),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 8))),
)
def test_it_keeps_what_was_used_last(
    max_entries: int, max_weight: int, operations: list[tuple[str, int]]
) -> None:
    """Against a list in order of use; a value weighs a third of itself."""
    dropped: list[int] = []
    entries: LruMap[int, int] = LruMap(
        max_entries,
        max_weight=max_weight,
        weigh=lambda key, value: value // 3,
        on_drop=dropped.append,
    )
    model: list[tuple[int, int]] = []
    all_dropped: list[int] = []

    def weight() -> int:
        return sum(value // 3 for _, value in model)

    for number, (operation, key) in enumerate(operations):
        known = dict(model).get(key)
        rest = [entry for entry in model if entry[0] != key]
        if operation == "put":
            entries.put(key, number)
            model = rest if number // 3 > max_weight else [*rest, (key, number)]
            while len(model) > max_entries or weight() > max_weight:
                all_dropped.append(model.pop(0)[1])
        elif operation == "pop_first":
            first = next((entry for entry in model if entry[1] % 2), None)
            assert entries.pop_first(lambda value: value % 2 == 1) == (first and first[1])
            model = [entry for entry in model if entry != first]
        elif operation == "drop_oldest" and model:
            entries.drop_oldest()
            all_dropped.append(model.pop(0)[1])
        elif operation == "get":
            assert entries.get(key) == known
            model = model if known is None else [*rest, (key, known)]
        elif operation == "pop":
            assert entries.pop(key) == known
            model = rest
        elif operation == "clear":
            entries.clear()
            model = []
        else:
            assert entries.peek(key) == known and (key in entries) == (known is not None)
        assert list(entries.items()) == model and len(entries) == len(model)
        assert list(reversed(entries.items())) == model[::-1]
        assert entries.weight == weight() and entries.is_full == (len(model) >= max_entries)
        assert dropped == all_dropped
