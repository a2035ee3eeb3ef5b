"""What is kept of 0-RTT: whole again, bounded, each frame by itself."""

from __future__ import annotations

from services.edge.quic.budget import Budget
from services.edge.quic.early import STREAM_BYTES, EarlyStreams


def test_streams_come_out_whole_and_nothing_stays() -> None:
    room = Budget(10_000)
    early = EarlyStreams(room)
    for piece in (b"a", b"b", b"c"):
        assert early.keep(0, piece, False)
        assert early.keep(4, piece.upper(), piece == b"c")
    assert 4 in early and 8 not in early
    assert room.num_bytes == 6 + 2 * STREAM_BYTES
    assert early.take() == [(0, b"abc", False), (4, b"ABC", True)]
    assert room.num_bytes == 0 and early.take() == []


def test_bytes_and_streams_both_count() -> None:
    room = Budget(3 * STREAM_BYTES)
    early = EarlyStreams(room)
    assert sum(early.keep(4 * number, b"", False) for number in range(1000)) == 3
    early.drop(4)
    early.drop(400)
    assert room.num_bytes == 2 * STREAM_BYTES
    assert sum(early.keep(0, b"x", False) for _ in range(10_000)) == STREAM_BYTES


def test_a_flood_of_single_bytes_is_one_object() -> None:
    early = EarlyStreams(Budget(1 << 20))
    for _ in range(64_000):
        assert early.keep(0, b"x", False)
    assert len(early._streams) == 1
    assert early.take() == [(0, b"x" * 64_000, False)]
