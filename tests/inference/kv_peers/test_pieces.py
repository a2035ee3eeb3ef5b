"""Frames in pieces: whole again, or refused before anything is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from services.inference.kv_peers.pieces import PIECE_BYTES, FrameAssembler, cut

LIMIT = 3 * PIECE_BYTES


@given(st.lists(st.integers(1, LIMIT), min_size=1, max_size=4))
def test_frames_are_whole_again(sizes: list[int]) -> None:
    assembler = FrameAssembler(len(sizes), LIMIT)
    frames = [bytes([index]) * size for index, size in enumerate(sizes)]
    found = []
    for index, frame in enumerate(frames):
        for piece in cut(frame):
            assert len(piece) <= PIECE_BYTES
            if (whole := assembler.add(index, len(frame), bytes(piece))) is not None:
                found.append(whole)
    assert found == list(enumerate(frames))


@pytest.mark.parametrize(
    "pieces",
    [
        [(2, 1, b"x")],  # not asked for
        [(0, 0, b"")],
        [(0, LIMIT + 1, b"x")],
        [(0, 2, b"")],
        [(0, 2, b"xyz")],
        [(0, 2, b"x"), (1, 2, b"x")],
        [(0, 2, b"x"), (0, 3, b"x")],
        [(1, 1, b"x"), (0, 1, b"x")],
        [(0, 1, b"x"), (0, 1, b"x")],
    ],
)
def test_what_is_no_frame_is_refused(pieces: list[tuple[int, int, bytes]]) -> None:
    assembler = FrameAssembler(2, LIMIT)
    *before, last = pieces
    for piece in before:
        assembler.add(*piece)
    with pytest.raises(MalformedFrameError):
        assembler.add(*last)
