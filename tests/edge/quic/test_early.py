"""Room for 0-RTT: bounded over all connections, and free again."""

from __future__ import annotations

from services.edge.quic.early import EarlyRoom


def test_what_has_no_room_is_not_kept_and_what_goes_makes_room() -> None:
    room = EarlyRoom(10)
    assert room.take(6) and room.take(4)
    assert not room.take(1)
    assert room.num_bytes == 10
    room.give_back(6)
    assert room.take(6) and not room.take(1)
