"""Runs of one chat are charged what the dearest of them costs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.counting.charges import Charges


@given(st.lists(st.tuples(st.sampled_from([b"", b"one", b"two"]), st.integers(0, 100))))
def test_together_they_are_charged_the_most_of_them(runs: list[tuple[bytes, int]]) -> None:
    charges, charged = Charges(), {b"": 0, b"one": 0, b"two": 0}
    for chat, amount in runs:
        part = charges.add(chat, amount)
        assert part >= 0
        charged[chat] += part
    for chat in (b"one", b"two"):
        assert charged[chat] == max((a for c, a in runs if c == chat), default=0)
    assert charged[b""] == sum(a for c, a in runs if c == b""), "who says nothing has no other run"


def test_only_the_last_chats_are_known() -> None:
    charges = Charges(max_chats=4)
    for number in range(100):
        charges.add(bytes([number + 1]), 10)
    assert charges.add(bytes([100]), 15) == 5
    assert charges.add(bytes([1]), 15) == 15
