"""Length-prefixed frames on a byte stream: a LEB128 length, then that many bytes of payload.

The protocol between client and edge (protos/outrider/v1/edge.proto). No frame is empty: a
payload is always a message with something in it.
"""

from __future__ import annotations

from typing import Final

from outrider.codec import varint
from outrider.errors import FrameTooLargeError, MalformedFrameError, OutriderError

DEFAULT_MAX_FRAME_BYTES: Final = 1 << 20
MIN_MEAN_FRAME_BYTES: Final = 128
"""Least mean size of the frames of a limited stream, beyond its free ones."""


_SHORT: Final = tuple(bytes([size]) for size in range(0x80))
"""The lengths of nearly all frames, as varints."""


def encode_frame(payload: bytes) -> bytes:
    """`payload` with its length before it. Raises MalformedFrameError for an empty one."""
    if not payload:
        raise MalformedFrameError("an empty frame cannot be sent; send a message with content")
    size = len(payload)
    return (_SHORT[size] if size < len(_SHORT) else varint.encode(size)) + payload


class FrameDecoder:
    """Cuts a byte stream into frames, however it arrives.

    Memory: never more than the bytes that arrived for one frame, at most `max_frame_bytes`; a
    length without payload reserves nothing. Each payload byte is copied once when its frame arrives
    whole, otherwise twice (plus the amortised growth of one buffer).

    Time: a frame costs about a microsecond beside its bytes. For peers that are not trusted, limit
    frames to `num_free`, and one more for each MIN_MEAN_FRAME_BYTES received.

    After a protocol error the stream cannot be read any further: every `feed` raises that error.
    """

    def __init__(
        self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES, *, num_free: int | None = None
    ) -> None:
        """`num_free`: see the class; None: any number of frames."""
        if not 0 < max_frame_bytes <= varint.MAX_VALUE:
            raise ValueError(f"max_frame_bytes must be 1 .. {varint.MAX_VALUE}")
        self._max_frame_bytes = max_frame_bytes
        self._num_free = num_free
        """Frames that may still come, whatever their size."""
        self._num_bytes = 0
        """Bytes of frames, less what frames beyond the free ones have used."""
        self._length = 0
        self._shift = 0
        self._in_payload = False
        self._partial = bytearray()
        self._error: OutriderError | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here: no frame has begun without ending."""
        return not self._in_payload and not self._shift and self._error is None

    @property
    def num_held(self) -> int:
        """Bytes kept of a frame that is not whole yet."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes, in order.

        Raises FrameTooLargeError as soon as a length above the limit is known, before any byte
        of that payload is kept, and MalformedFrameError for an empty frame, a length that is no
        varint, or too many frames of next to nothing. Frames that stood before the bad one in the
        same `data` are dropped with it.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._cut(memoryview(data))
        except OutriderError as error:
            self._error = error.bare()
            self._partial = bytearray()
            raise

    def _cut(self, data: memoryview) -> list[bytes]:
        frames: list[bytes] = []
        at = 0
        end = len(data)
        while at < end:
            if not self._in_payload:
                self._take_length_byte(data[at])
                at += 1
                continue
            taken = data[at : at + self._length - len(self._partial)]
            at += len(taken)
            if len(self._partial) + len(taken) < self._length:
                self._partial += taken
                break
            frames.append(self._finish(taken))
        return frames

    def _finish(self, last: memoryview) -> bytes:
        if self._partial:
            self._partial += last
            payload = bytes(self._partial)
            self._partial = bytearray()
        else:
            payload = bytes(last)
        self._in_payload = False
        self._length = self._shift = 0
        if self._num_free is not None:
            self._count(len(payload), self._num_free)
        return payload

    def _count(self, num_bytes: int, num_free: int) -> None:
        self._num_bytes += num_bytes
        if num_free:
            self._num_free = num_free - 1
        elif self._num_bytes >= MIN_MEAN_FRAME_BYTES:
            self._num_bytes -= MIN_MEAN_FRAME_BYTES
        else:
            raise MalformedFrameError("too many frames of next to nothing; send more in each")

    def _take_length_byte(self, byte: int) -> None:
        self._length |= (byte & 0x7F) << self._shift
        if self._length > self._max_frame_bytes:
            raise FrameTooLargeError(
                f"a frame of at least {self._length} bytes is above the limit of "
                f"{self._max_frame_bytes}; send less in one frame"
            )
        if byte & 0x80:
            self._shift += 7
            if self._shift >= 7 * varint.MAX_BYTES:
                raise MalformedFrameError("a frame length is longer than 5 bytes")
            return
        if not byte:
            what = "not in its shortest form" if self._shift else "zero"
            raise MalformedFrameError(f"a frame length is {what}")
        self._in_payload = True
