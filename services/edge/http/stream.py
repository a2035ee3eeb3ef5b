"""The chats of one HTTP reply: their events are written at once, and wait, within bounds, for the
connection to take them. The backlog of a client that resumed is written as the connection takes
it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from outrider.errors import DuplicateSessionError, OutriderError, OverloadedError
from outrider.session.client import Failed
from services.edge.chat.stream import ENDED, Backlog, ChatHandler, Peer
from services.edge.http.api import ReplyWriter
from services.edge.session.events import ClientEvent, ClientFailed, ClientGone

_SLOW: Final = "the client does not read its reply"
_MAX_PIECES_AT_ONCE: Final = 8
"""Most pieces of backlogs in one turn of the event loop; a reply without stream takes them at
once."""


class Client(Peer, Protocol):
    """The receiver of a reply, as its chats see it."""

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat; call the result at its end. See RequestStream.begin_chat."""
        ...


class ChatStream:
    """One chat of a reply; a RequestStream."""

    def __init__(self, reply: RunningReply, index: int, client: Client) -> None:
        self._reply = reply
        self._index = index
        self._client = client
        self._backlog: Backlog | None = None
        """Earlier events that a client that resumed still has to get."""
        self._is_ending = False
        """Whether the stream ends once its backlog is written, with `_last`."""
        self._last: ClientEvent | None = None
        self.handler: ChatHandler = ENDED
        self.is_over = False

    @property
    def address(self) -> str:
        """Prefix of the client's address; see RequestStream.address."""
        return self._client.address

    @property
    def connection_secret(self) -> bytes:
        """Random bytes shared by requests of one connection; see
        RequestStream.connection_secret."""
        return self._client.connection_secret

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat; call the result at its end. See RequestStream.begin_chat."""
        return self._client.begin_chat(client)

    def follow(self, handler: ChatHandler) -> None:
        """Pass later input to `handler`; see RequestStream.follow."""
        if not self.is_over:
            self.handler = handler

    def tell(self, event: ClientEvent, token: str = "") -> None:
        """Send an event. HTTP clients resume by their idempotency key, so the token is not sent.
        See ClientStream.tell."""
        if not self.is_over:
            self._reply.told(self._index, event)

    def catch_up(self, backlog: Backlog) -> None:
        """Send the backlog first; see ClientStream.catch_up."""
        if not self.is_over:
            self._backlog = backlog
            self._reply.catches_up(self)

    def send_piece(self) -> bool:
        """Write the next piece of the backlog; False if none is left."""
        if (backlog := self._backlog) is None:
            return False
        if (piece := backlog.next()) is not None:
            self._reply.told(self._index, piece[0], is_live=False)
            return True
        self._backlog = None
        if self._is_ending:
            self._end(self._last)
        return False

    def end(self, last: ClientEvent | None = None) -> None:
        """End the stream; see ClientStream.end."""
        if self.is_over:
            return
        self.handler = ENDED
        if self._backlog is not None and not self._backlog.is_over:
            self._is_ending, self._last = True, last
        else:
            self._end(last)

    def _end(self, last: ClientEvent | None) -> None:
        self.is_over = True
        self._backlog = None
        if last is not None:
            self._reply.told(self._index, last)
        self._reply.chat_ended()

    def leave(self, *, may_return: bool) -> None:
        """The client is gone; `may_return`: it may ask for the rest of the chat."""
        handler, self.handler = self.handler, ENDED
        self.is_over = True
        self._backlog = None
        if may_return:
            handler.client_lost()
        else:
            handler.feed(ClientGone())

    def fail(self, error: OutriderError) -> None:
        """The chat ends, for this reason."""
        self.handler.feed(ClientFailed(error))


class RunningReply:
    """All chats of one reply. Its client's connection takes what `next` returns; if it does not
    keep up, the reply ends."""

    def __init__(
        self, writer: ReplyWriter, num_chats: int, client: Client, max_unsent_bytes: int
    ) -> None:
        self._writer = writer
        self._max_unsent_bytes = max_unsent_bytes
        self._unsent: list[bytes] = []
        self._num_unsent_bytes = 0
        self._num_unsent_live_bytes = 0
        """The part of them that is not from a backlog."""
        self._catching_up: deque[ChatStream] = deque()
        """Chats with a backlog, in turn."""
        self._num_running = num_chats
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._push: Callable[[bytes], bool] | None = None
        self._is_push_due = False
        self._pushed_at = float("-inf")
        self._is_left = False
        self.error: OutriderError | None = None
        """Why it failed."""
        self.streams = [ChatStream(self, index, client) for index in range(num_chats)]

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._is_left or self.error is not None or not self._num_running

    @property
    def is_left(self) -> bool:
        """Whether its client is gone."""
        return self._is_left

    async def next(self, patience_s: float | None = None) -> bytes | None:
        """Bytes since the last call; empty if none came for `patience_s` (None: no limit), None at
        the end."""
        self._send_backlogs()
        while self._catching_up and not self._unsent and not self.is_over:
            await asyncio.sleep(0)  # others have their turn
            self._send_backlogs()
        if not self._unsent and not self.is_over:
            await self._wait(patience_s)
        return self._taken() or (None if self.is_over else b"")

    def begin_pushing(self, push: Callable[[bytes], bool]) -> None:
        """From now on what comes while the client's connection waits in `next` is passed to `push`
        first, all of a turn of the event loop together. It is Exchange.push: no task has to wake up
        for a token."""
        self._push = push

    async def _wait(self, patience_s: float | None) -> None:
        """Until something came that was not pushed, or nothing at all for so long."""
        at = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            while not self._waiter.done():
                at = max(at, self._pushed_at)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if patience_s is None else at + patience_s):
                        await asyncio.shield(self._waiter)
                if self._pushed_at <= at:
                    return
        finally:
            self._waiter = None

    def _taken(self) -> bytes:
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._num_unsent_bytes = self._num_unsent_live_bytes = 0
        return data

    @property
    def is_placed(self) -> bool:
        """Whether a region has, or had, one of its chats."""
        return any(it.handler.is_placed for it in self.streams)

    async def ended(self) -> None:
        """Return when nothing more comes."""
        while not self.is_over:
            await self.next()

    def leave(self, *, may_return: bool) -> None:
        """The client is gone, or has all of it; chats that still run end, unless it may return."""
        if self._is_left:
            return
        self._is_left = True
        # They refer to this reply, which would have to be collected as garbage.
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.leave(may_return=may_return)
        self._wake()

    def fail(self, error: OutriderError) -> None:
        """End the reply and its chats with an error. A reply whose chats have all ended is whole,
        even if its client does not have all of it yet."""
        if self.is_over:
            return
        for stream in self.streams:
            if not stream.is_over:
                stream.fail(error)
        self._failed(error)

    # For its chats.

    def catches_up(self, stream: ChatStream) -> None:
        """A chat has a backlog."""
        self._catching_up.append(stream)
        self._send_backlogs()

    def told(self, index: int, event: ClientEvent, *, is_live: bool = True) -> None:
        """Write an event of a chat; `is_live`: it is not from a backlog."""
        if self.is_over:
            return
        if isinstance(event, Failed):
            self._failed(event.error)
            return
        data = self._writer.take(index, event)
        if not data:
            return
        self._unsent.append(data)
        self._num_unsent_bytes += len(data)
        self._has_news()
        if is_live:
            self._num_unsent_live_bytes += len(data)
            if self._num_unsent_live_bytes > self._max_unsent_bytes:
                self.fail(OverloadedError(_SLOW))

    def chat_ended(self) -> None:
        """A chat is over."""
        self._num_running -= 1
        self._wake()

    def _send_backlogs(self) -> None:
        """Write more of the backlogs, as far as they fit."""
        num_left = _MAX_PIECES_AT_ONCE
        while self._catching_up and num_left and not self.is_over:
            if self._num_unsent_bytes > self._max_unsent_bytes // 2:
                return
            num_left -= 1
            stream = self._catching_up.popleft()
            if stream.send_piece():
                self._catching_up.append(stream)

    def _failed(self, error: OutriderError) -> None:
        """A chat failed, so the reply does: it is whole or not at all. If another request resumes
        one of its chats, it will resume the others too."""
        if self.error is None:
            self.error = error
        is_taken_over = isinstance(error, DuplicateSessionError)
        for stream in self.streams:
            if not stream.is_over:
                stream.leave(may_return=is_taken_over)
        self._wake()

    def _has_news(self) -> None:
        if self._push is None:
            self._wake()
        elif not self._is_push_due:
            self._is_push_due = True
            self._loop.call_soon(self._push_unsent)

    def _push_unsent(self) -> None:
        self._is_push_due = False
        waits = self._waiter is not None and not self._waiter.done()
        if not (waits and self._unsent and self._push is not None):
            return  # `next` was called again, and returns it
        if self._catching_up or not self._push(b"".join(self._unsent)):
            self._wake()
            return
        self._taken()
        self._pushed_at = self._loop.time()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
