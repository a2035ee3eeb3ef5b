"""A stream whose answer is one frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from outrider.client.streams import Connection
from outrider.codec.frames import FrameDecoder
from outrider.errors import OutriderError, UnavailableError

T = TypeVar("T")


async def answer(connection: Connection, frame: bytes, read: Callable[[bytes], T]) -> T:
    """Ask the edge at the other end; `read` makes the answer of its frame's payload. Raises
    UnavailableError, what `read` raises, or the edge's own error."""
    question = _Question(read)
    stream_id = connection.open(question, frame)
    try:
        return await question.answer
    finally:
        connection.drop(stream_id)


class _Question(Generic[T]):
    """A stream whose answer is one frame."""

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._decoder = FrameDecoder()
        self._read = read
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection."""
        try:
            for payload in self._decoder.feed(data):
                self._settle(self._read(payload))
            if end_stream and not self.answer.done():
                raise UnavailableError("the edge ended the stream without an answer; ask again")
        except OutriderError as error:
            self.failed(error)

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _settle(self, answer: T) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)
