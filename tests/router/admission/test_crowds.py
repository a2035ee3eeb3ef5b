"""How many sessions of an address outrank others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.crowds import Crowds
from services.router.admission.policy import Priority

ADDRESSES = st.sampled_from([b"", b"a", b"b", b"c"])


@given(st.lists(st.tuples(ADDRESSES, st.sampled_from(Priority), st.booleans()), max_size=60))
def test_what_is_counted_is_what_is_open(
    events: list[tuple[bytes, Priority, bool]],
) -> None:
    crowds = Crowds(2)
    live = list[tuple[bytes, Priority]]()
    for address, asked, leaves in events:
        if leaves and live:
            crowds.leave(*live.pop(0))
        priority = min(asked, crowds.highest(address))
        crowds.enter(address, priority)
        live.append((address, priority))
        outranking = [one for one, granted in live if one and granted > Priority.LOW]
        assert len(crowds) == len(set(outranking))
        assert all(outranking.count(one) <= 2 for one in outranking)
        assert crowds.highest(b"") is Priority.HIGH
    for one in live:
        crowds.leave(*one)
    assert not len(crowds)
