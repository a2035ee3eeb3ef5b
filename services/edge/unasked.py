"""A client's stream on which nothing was asked yet."""

from __future__ import annotations

import asyncio
from typing import Protocol

from outrider.errors import DeadlineError, OutriderError
from services.edge.parts import EdgeParts
from services.edge.resumption.audience import ClientStream
from services.edge.session.events import ClientFailed, Failed
from services.edge.session.events import Input as SessionInput
from services.edge.wire import client as client_wire


class UnaskedStream(ClientStream, Protocol):
    """Where a request may come from."""

    def begin(self, frames: list[bytes]) -> None:
        """It is this stream's turn: here is its first frame, and what came behind it meanwhile.
        Raises OutriderError if nothing begins any more."""
        ...


class Unasked:
    """Owns a stream until its first frame is whole and it is its turn. All that it costs until then
    is what came of it, and a timer: a chat is some thirty objects, and a datagram may open a
    hundred streams."""

    def __init__(self, stream: UnaskedStream, parts: EdgeParts) -> None:
        self._stream = stream
        self._parts = parts
        self._frames: list[bytes] = []
        self.closed = False
        self.num_bytes = 0
        """Of whole frames that wait."""
        wait_s = parts.policy.request_timeout_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._too_late)

    @property
    def awaits_request(self) -> bool:
        """Whether the first frame has not come yet."""
        return not self._frames

    def receive(self, payload: bytes) -> None:
        """A frame from the client."""
        if self.closed:
            return
        self._frames.append(payload)
        self.num_bytes += len(payload)
        if len(self._frames) == 1:
            self._timer.cancel()
            self._parts.slices.do(self._begin)

    def feed(self, item: SessionInput) -> None:
        """The stream ends: with an error, or without a word."""
        if self.closed:
            return
        self.client_lost()
        last = b""
        if isinstance(item, ClientFailed):
            last = client_wire.write(Failed(item.error.bare()), self._parts.name)
        self._stream.end(last)

    def client_lost(self) -> None:
        """The client's connection is no more, or another one owns the stream."""
        self.closed, self._frames, self.num_bytes = True, [], 0
        self._timer.cancel()

    def _begin(self) -> None:
        if self.closed:
            return
        try:
            self._stream.begin(self._frames)
        except OutriderError as error:
            self.feed(ClientFailed(error))
        else:
            self.client_lost()

    def _too_late(self) -> None:
        why = "the stream was opened but no chat request came; send it first"
        self.feed(ClientFailed(DeadlineError(why)))
