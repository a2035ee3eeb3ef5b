"""A bounded map, filled, and against a list that is sorted by last use."""

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


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["put", "get", "pop", "peek", "clear"]), st.integers(0, 8))),
)
def test_it_keeps_what_was_used_last(max_entries: int, operations: list[tuple[str, int]]) -> None:
    entries: LruMap[int, int] = LruMap(max_entries)
    model: list[tuple[int, int]] = []
    for number, (operation, key) in enumerate(operations):
        known = dict(model).get(key)
        rest = [entry for entry in model if entry[0] != key]
        if operation == "put":
            entries.put(key, number)
            rest.append((key, number))
            model = rest[len(rest) - max_entries :] if len(rest) > max_entries else rest
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
