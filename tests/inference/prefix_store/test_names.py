"""Names that are remembered, so many at most."""

from __future__ import annotations

from services.inference.prefix_store.tier import Names


def test_the_least_recently_added_is_forgotten() -> None:
    names = Names(max_names=2)
    assert not names.add(b"a") and not names.add(b"b")
    assert names.add(b"a"), "it was there"
    assert not names.add(b"c")
    assert len(names) == 2 and b"a" in names and b"b" not in names
    names.discard(b"a")
    names.discard(b"never added")
    assert len(names) == 1 and b"c" in names


def test_a_name_is_forgotten_some_time_after_it_was_added_last() -> None:
    now = [100.0]
    names = Names(max_names=2, lasts_s=10.0, clock=lambda: now[0])
    assert not names.add(b"a")
    now[0] = 109.0
    assert names.add(b"a")
    now[0] = 118.0
    assert b"a" in names
    now[0] = 119.0
    assert b"a" not in names
    assert not names.add(b"a"), "it was not there any more"
