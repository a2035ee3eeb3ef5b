"""Session frames in the messages of a stream: all that is ready goes as one message, within bounds.

A message of grpc.aio costs its sender and its receiver some 50 to 100 us each, a frame in it 1 to 3
us: the sessions of one engine call share the price of one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Final, Protocol, TypeVar

from outrider.codec import varint
from outrider.config import MIN_MESSAGE_BYTES
from outrider.errors import MalformedFrameError
from outrider.rpc.outbox import Outbox


class Frame(Protocol):
    """A SessionUp or a SessionDown."""

    def SerializeToString(self) -> bytes: ...


MessageT = TypeVar("MessageT")
FrameT = TypeVar("FrameT", bound=Frame)
OutgoingT = TypeVar("OutgoingT", bound=Frame | bytes)
"""A frame, or its bytes where they were made without a message."""
FrameT_co = TypeVar("FrameT_co", bound=Frame, covariant=True)


class FrameMessage(Protocol[FrameT_co]):
    """A request or a response of a stream of sessions."""

    @property
    def frames(self) -> Sequence[FrameT_co]:
        """The frames, in the order in which they were queued."""
        ...


MAX_FRAMES: Final = 1024
"""Most frames of one message, sent or received."""
MAX_BATCH_BYTES: Final = MIN_MESSAGE_BYTES // 2
"""Most bytes of a message with more than one frame: some 500 commits."""
MAX_OPENS_PER_TURN: Final = 32
"""Frames taken before the event loop does other work where they may be opens, which are the
dearest: some 0.2 ms each."""


_TAG: Final = b"\x0a"
"""Tag of field 1, `frames` in all these messages, of wire type LEN (Protocol Buffers, encoding)."""
_HEADS: Final = tuple(_TAG + varint.encode(length) for length in range(128))


async def outgoing(
    outbox: Outbox[OutgoingT], parse: Callable[[bytes], MessageT]
) -> AsyncIterator[MessageT]:
    """Messages, each with all that waits when the stream can take one. `parse` makes a message of
    its bytes; copying frames into a message would take protobuf twice as long. Ends and raises as
    iterating over the outbox does."""
    async for frames in outbox.batches(MAX_FRAMES, MAX_BATCH_BYTES, _serialized):
        parts: list[bytes] = []
        for frame in frames:
            length = len(frame)
            parts += (_HEADS[length] if length < 128 else _TAG + varint.encode(length), frame)
        yield parse(b"".join(parts))


async def received(
    messages: AsyncIterable[FrameMessage[FrameT]], per_turn: int = MAX_OPENS_PER_TURN
) -> AsyncIterator[list[FrameT]]:
    """The frames of a stream, at most `per_turn` in a turn of the event loop. Raises
    MalformedFrameError for a message without frames or with more than MAX_FRAMES."""
    async for message in messages:
        frames = list(message.frames[: MAX_FRAMES + 1])
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise MalformedFrameError(
                f"a message has {len(frames) or 'no'} frames; send 1 to {MAX_FRAMES} in one"
            )
        if len(frames) <= per_turn:
            yield frames
            continue
        for begin in range(0, len(frames), per_turn):
            yield frames[begin : begin + per_turn]
            await asyncio.sleep(0)


def _serialized(frame: Frame | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else frame.SerializeToString()
