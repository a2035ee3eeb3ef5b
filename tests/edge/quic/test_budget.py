"""Memory held for clients: bounded for one, for all, and free again."""

from __future__ import annotations

from services.edge.quic.budget import Budget


def test_what_has_no_room_is_not_held_and_what_goes_makes_room() -> None:
    room = Budget(10)
    assert room.take(6) and room.take(4)
    assert not room.take(1)
    assert room.num_bytes == 10
    room.give_back(6)
    assert room.take(6) and not room.take(1)


def test_what_one_takes_the_others_do_not_have() -> None:
    everything = Budget(10)
    one, other = Budget(8, everything), Budget(8, everything)
    assert one.take(8) and not one.take(1)
    assert not other.take(3) and other.num_bytes == 0 and everything.num_bytes == 8
    assert other.take(2)
    one.clear()
    assert one.num_bytes == 0 and everything.num_bytes == 2
    assert other.take(6)
