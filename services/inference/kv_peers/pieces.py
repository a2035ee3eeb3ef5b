"""Frames of blocks in pieces: a message is small, whatever the size of a model's blocks (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from outrider.errors import MalformedFrameError

PIECE_BYTES: Final = 256 << 10
MAX_BLOCKS: Final = 1024
"""Most blocks of one request."""


def cut(frame: bytes) -> Iterator[memoryview]:
    """The frame's pieces, in order."""
    view = memoryview(frame)
    for begin in range(0, len(view), PIECE_BYTES):
        yield view[begin : begin + PIECE_BYTES]


class FrameAssembler:
    """Frames from pieces. Nothing is reserved for what a piece only announces."""

    def __init__(self, num_wanted: int, max_frame_bytes: int) -> None:
        self._num_wanted = num_wanted
        self._max_frame_bytes = max_frame_bytes
        self._next = 0
        """Least index that may begin."""
        self._index = -1
        """Index of the incomplete frame; -1: no frame is incomplete."""
        self._num_bytes = 0
        self._parts: list[bytes] = []
        self._held = 0

    def add(self, index: int, num_bytes: int, data: bytes) -> tuple[int, bytes] | None:
        """Add one piece; returns the index and the bytes of the frame that it completes, or None.
        Raises MalformedFrameError for a piece that does not continue the incomplete frame, was not
        asked for, or comes out of turn."""
        if self._index < 0:
            if not self._next <= index < self._num_wanted:
                raise MalformedFrameError(f"block {index} is not asked for, or comes out of turn")
            if not 0 < num_bytes <= self._max_frame_bytes:
                raise MalformedFrameError(f"a block's frame is said to have {num_bytes} bytes")
            self._index, self._num_bytes, self._parts, self._held = index, num_bytes, [], 0
        if (index, num_bytes) != (self._index, self._num_bytes) or not data:
            raise MalformedFrameError("a piece does not continue its frame")
        self._held += len(data)
        if self._held > num_bytes:
            raise MalformedFrameError("a block's frame is longer than announced")
        self._parts.append(data)
        if self._held < num_bytes:
            return None
        self._next, self._index = index + 1, -1
        frame = b"".join(self._parts)
        self._parts = []
        return index, frame
