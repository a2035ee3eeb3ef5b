"""A client's streams: frames in, frames out, back-pressure. The first frame decides what is served
on a stream. The protobuf frames of the native protocol are read and written here: a chat takes
inputs and gives events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from outrider.client.protocol import CloseCode
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import DeadlineError, MalformedFrameError, OutriderError, OverloadedError
from outrider.session.client import Failed
from outrider.session.client_wire import write
from services.edge.access.identity import Credential, Identity
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.context import EdgeContext
from services.edge.chat.opening import identify, open_chat
from services.edge.chat.stream import ENDED, Backlog, ChatHandler
from services.edge.chat.typeahead import TypeaheadPrefill
from services.edge.limits.listener import ListenerLimits, MemoryBudget
from services.edge.limits.quotas import Rate
from services.edge.quic.ids_question import IdsQuestion
from services.edge.session.events import (
    ChatAsked,
    ChatRequest,
    ClientEvent,
    ClientFailed,
    ClientGone,
)
from services.edge.session.events import Input as SessionInput
from services.edge.wire import client as client_wire

_FREE_FRAMES: Final = 1024
"""Frames of one stream that its FrameDecoder allows whatever their size. A chat needs three; a
prompt that is typed may need one for each key."""
_MAX_CHAT_FRAMES: Final = 64
"""After a chat's request: a cancel, and an acknowledgement of its resume token."""
_FRAME_OBJECT_BYTES: Final = 48
"""Bytes of memory that a waiting frame takes beside its content."""
_NOT_ASKED: Final = 1 << 62
"""More bytes than are ever unread: with it `was_used` says yes the next time."""


class Transport(Protocol):
    """What carries the bytes of streams: a QUIC connection, or a request over HTTP/2."""

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """Queue bytes; `end_stream`: they are the last. Raises RuntimeError if the client stopped
        the stream before."""
        ...

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        """Send nothing more, not even what is queued."""
        ...

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        """Have the client send nothing more."""
        ...

    def num_unacknowledged_bytes(self, stream_id: int) -> int:
        """Bytes sent that the client may not have read yet."""
        ...


class StreamConnection(Protocol):
    """A connection, as its streams see it."""

    context: EdgeContext
    limits: ListenerLimits
    budget: MemoryBudget
    secret: bytes

    @property
    def transport(self) -> Transport:
        """What carries its streams."""
        ...

    @property
    def prefix(self) -> str:
        """The client's address prefix."""
        ...

    def transmit_soon(self) -> None:
        """Send what is queued once this turn of the loop is over."""
        ...

    def fail(self, failure: Exception) -> None:
        """The edge cannot continue with this connection."""
        ...

    def check_draining(self) -> None:
        """Raises DrainingError if no chat begins any more."""
        ...

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat of this client, until the returned function is called. Raises
        OverloadedError."""
        ...

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Charge `amount` to the quotas of a client and its address prefix; False if a quota does
        not allow it."""
        ...

    def end_typing(self) -> AnswerAhead | None:
        """End the streams of typed text. Returns the reply that may have been begun to it."""
        ...

    def catches_up(self, stream: EdgeStream, *, is_over: bool = False) -> None:
        """A stream has a backlog, to be continued whenever the client acknowledges something;
        `is_over`: it has none any more."""
        ...

    def forget(self, stream_id: int) -> None:
        """Both directions of the stream are done."""
        ...


class EdgeStream:
    """A bidirectional stream. `handler` is what is served on it: a PendingRequest first, then a
    chat or typed text, and at last ENDED."""

    def __init__(self, connection: StreamConnection, stream_id: int) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._decoder = FrameDecoder(connection.limits.max_frame_bytes, num_free=_FREE_FRAMES)
        self._num_chat_frames = 0
        """Frames received after the request."""
        self._max_unsent_bytes = connection.limits.max_unsent_bytes
        self._client_ended = False
        """Nothing more comes from the client."""
        self._gone = False
        """Nothing more reaches the client."""
        self._stalled = False
        """The client left too much unread."""
        self._ended = False
        self._backlog: Backlog | None = None
        """Events that a client that came back still lacks; None: it has caught up."""
        self._end_frame: bytes | None = None
        """Last frame of the stream, sent once its backlog is over; empty: end without a frame;
        None: the stream stays open."""
        self._is_read = False
        """Whether any of the backlog was sent since `check_reading` was called last."""
        self._num_live_bytes = 0
        """Bytes sent besides the backlog."""
        self._num_unread_before = _NOT_ASKED
        """Bytes, when `was_used` was asked last."""
        self._num_held_bytes = 0
        """Taken from the connection's budget."""
        self.handler: PendingRequest | TypeaheadPrefill | ChatHandler = PendingRequest(
            self, connection.context
        )

    @property
    def address(self) -> str:
        """The address prefix of its client."""
        return self._connection.prefix

    @property
    def connection_secret(self) -> bytes:
        """16 random bytes that the streams of its connection share, and no others."""
        return self._connection.secret

    def received(self, data: bytes, end_stream: bool) -> None:
        """Bytes from the client; `end_stream`: no more will follow."""
        self._client_ended = end_stream
        if self._ended or self.handler.closed:
            return
        try:
            self._take(self._decoder.feed(data))
            self._hold()
            if end_stream and not self._decoder.at_boundary:
                raise MalformedFrameError("the stream ended inside a frame")
            if (
                end_stream
                and isinstance(self.handler, PendingRequest)
                and not self.handler.has_request
            ):
                raise MalformedFrameError("the stream ended before a chat request came")
        except OutriderError as error:
            self.fail(error)

    def fail(self, error: OutriderError) -> None:
        """End what is served with an error, and send that."""
        self.handler.feed(ClientFailed(error))

    def begin(self, frames: list[bytes]) -> None:
        """Serve the request in the first frame, and pass the others on. Raises OutriderError for a
        request that cannot be served."""
        connection = self._connection
        connection.check_draining()
        self._hold()
        try:
            if client_wire.is_typed_text(frames[0]):
                self.handler = TypeaheadPrefill(self, connection.context)
                self.handler.receive(frames[0])
            elif client_wire.asks_for_ids(frames[0]):
                most = self._max_unsent_bytes - _FRAME_OBJECT_BYTES
                question = IdsQuestion(self, connection.context, most)
                self.handler = question
                question.receive(frames[0])
            else:
                ahead = connection.end_typing()
                request, identity = self._read_request(frames[0])
                open_chat(self, request, identity, connection.context, ahead)
            self._take_further(frames[1:])
        except OutriderError:
            raise
        except Exception as failure:
            connection.fail(failure)

    def _take_further(self, payloads: Sequence[bytes]) -> None:
        """Pass on frames after the first. The handler deals with those that are wrong."""
        try:
            self._take(payloads)
        except OutriderError as error:
            self.fail(error)

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """See `StreamConnection.begin_chat`."""
        return self._connection.begin_chat(client)

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """See `StreamConnection.spend`."""
        return self._connection.spend(rate, amount, client)

    def follow(self, handler: ChatHandler) -> None:
        """Pass the client's further frames to `handler` from now on."""
        if not self._ended:
            self.handler = handler

    def lost(self, *, gave_up: bool) -> None:
        """The connection has ended; `gave_up`: the client said that it wants nothing further."""
        self._gone = True
        self._drop_backlog()
        if self._ended:
            return
        if gave_up:
            self.handler.feed(ClientGone())
        else:
            self.handler.client_lost()
        self.handler = ENDED

    def gone(self, *, client_ended: bool) -> None:
        """The client gave one direction up, and with it the chat. The other direction ends too, or
        the stream would stay open. `client_ended`: nothing more will come."""
        transport = self._connection.transport
        self._client_ended |= client_ended
        if self.catches_up or not (self._ended or self.handler.closed):
            transport.reset_stream(self._stream_id, CloseCode.DONE)
        if self._client_ended:
            self._connection.forget(self._stream_id)
        else:
            transport.stop_stream(self._stream_id, CloseCode.DONE)
        self.lost(gave_up=True)
        self._connection.transmit_soon()

    def tell(self, event: ClientEvent, token: str = "") -> None:
        """See `ClientStream.tell`. A client that leaves too much unread loses the chat."""
        self.send(write(event, self._connection.context.name, token))

    def send(self, payload: bytes) -> None:
        """Queue a frame, under the same limit on unread bytes as `tell`."""
        if self._gone or self._stalled:
            return
        frame = encode_frame(payload)
        self._num_live_bytes += len(frame)
        self._write(frame, False)
        # A client that came back may not have read all of its backlog yet.
        most = self._max_unsent_bytes
        if self._num_live_bytes > most and self._num_unread > most:
            self._stalled = True
            self.fail(OverloadedError("the client does not read its chat"))

    def was_used(self) -> bool:
        """Asked now and then: whether it is served, has ended since it was asked last, or the
        client has acknowledged some of it since."""
        before, self._num_unread_before = self._num_unread_before, self._num_unread
        return not self.handler.closed or self.catches_up or self._num_unread_before < before

    @property
    def client_ended(self) -> bool:
        """Whether nothing more comes from the client."""
        return self._client_ended

    @property
    def catches_up(self) -> bool:
        """Whether it has a backlog."""
        return self._backlog is not None

    def catch_up(self, backlog: Backlog) -> None:
        """See `ClientStream.catch_up`."""
        if self._gone:
            return
        self._backlog = backlog
        self._connection.catches_up(self)
        self.send_backlog()

    def send_backlog(self) -> None:
        """Continue the backlog, as far as there is room."""
        while (backlog := self._backlog) is not None and not backlog.is_over:
            if self._num_unread > self._max_unsent_bytes // 2:
                return
            if (piece := backlog.next()) is not None:
                self._is_read = True
                self._write(self._frame_of(*piece), False)
        if self._backlog is None:
            return
        self._drop_backlog()
        if self._end_frame is not None:
            self._end(self._end_frame)

    def check_reading(self) -> None:
        """Called now and then: give up a client that reads nothing of the backlog of a chat that is
        over. While a chat runs, its log is kept anyway."""
        if self._end_frame is not None and not self._is_read:
            self._stalled = True
            self._drop_backlog()
            self._end(self._end_frame)
        self._is_read = False

    def end(self, last: ClientEvent | None = None) -> None:
        """End the stream: after what was sent, all of a backlog, and `last`, if there is one, or at
        once if the client does not read."""
        frame = b"" if last is None else self._frame_of(last)
        self.handler = ENDED
        self.release()
        if self._backlog is not None and not self._backlog.is_over:
            self._end_frame = frame
            return
        self._drop_backlog()
        self._end(frame)

    def _end(self, frame: bytes) -> None:
        self._ended = True
        self._num_unread_before = _NOT_ASKED
        if self._gone:
            return
        transport = self._connection.transport
        if self._stalled:
            transport.reset_stream(self._stream_id, CloseCode.SLOW_READER)
        else:
            self._write(frame, True)
        if self._client_ended:
            self._connection.forget(self._stream_id)
        else:
            transport.stop_stream(self._stream_id, CloseCode.DONE)
        self._connection.transmit_soon()

    def release(self) -> None:
        """Nothing more is read: give the memory of unfinished frames back."""
        self._connection.budget.give_back(self._num_held_bytes)
        self._num_held_bytes = 0
        self._decoder = FrameDecoder()

    def _take(self, payloads: Sequence[bytes]) -> None:
        """Frames that came together. Raises MalformedFrameError for too many."""
        for payload in payloads:
            handler = self.handler
            if handler.closed:
                return
            if isinstance(handler, PendingRequest):
                handler.receive(payload)
            elif isinstance(handler, TypeaheadPrefill):
                self._typed(handler, payload)
            else:
                self._num_chat_frames += 1
                if self._num_chat_frames > _MAX_CHAT_FRAMES:
                    raise MalformedFrameError(
                        "too many frames for one chat; open a stream for each"
                    )
                _pass_on(payload, handler)

    def _typed(self, handler: TypeaheadPrefill, payload: bytes) -> None:
        if client_wire.is_typed_text(payload):
            handler.receive(payload)
        else:
            self._connection.end_typing()  # the prompt itself

    def _read_request(self, payload: bytes) -> tuple[ChatRequest, Identity]:
        """The request, and the identity that makes it. Raises OutriderError."""
        identity: Identity | None = None

        def admit(credential: Credential) -> None:
            nonlocal identity
            identity = identify(self, credential, self._connection.context)

        read = client_wire.read(payload, admit)
        if isinstance(read, client_wire.TokenArrived):
            raise MalformedFrameError(
                "no token was sent that could be acknowledged; ask for a chat first"
            )
        if not isinstance(read, ChatAsked):
            raise MalformedFrameError(
                "a cancel is out of place; a stream is one chat, request first"
            )
        assert identity is not None
        return read.request, identity

    @property
    def _num_unread(self) -> int:
        return self._connection.transport.num_unacknowledged_bytes(self._stream_id)

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self._backlog = None
            self._connection.catches_up(self, is_over=True)

    def _frame_of(self, event: ClientEvent, token: str = "") -> bytes:
        return encode_frame(write(event, self._connection.context.name, token))

    def _hold(self) -> None:
        """Charge the budget for the kept data: an incomplete frame, and waiting frames. Raises
        OverloadedError."""
        budget = self._connection.budget
        num_bytes = self._decoder.num_held
        if isinstance(self.handler, PendingRequest):
            num_bytes += self.handler.num_bytes
        if num_bytes <= self._num_held_bytes:
            budget.give_back(self._num_held_bytes - num_bytes)
        elif not budget.take(num_bytes - self._num_held_bytes):
            raise OverloadedError(
                "this edge has no memory for more incomplete requests; send fewer at once"
            )
        self._num_held_bytes = num_bytes

    def _write(self, data: bytes, end_stream: bool) -> None:
        try:
            self._connection.transport.send_stream_data(self._stream_id, data, end_stream)
        except RuntimeError:  # the client stopped the stream before it sent anything
            self.gone(client_ended=False)
        self._connection.transmit_soon()


class PendingRequest:
    """Handles a stream until its first frame is whole and a time slice is free for it. Until then a
    stream costs the bytes it sent and a timer: a chat is some thirty objects, and a datagram may
    open a hundred streams."""

    def __init__(self, stream: EdgeStream, context: EdgeContext) -> None:
        self._stream = stream
        self._context = context
        self._frames: list[bytes] = []
        self.closed = False
        self.num_bytes = 0
        """Bytes of the waiting frames."""
        self.has_request = False
        """Whether the first frame has arrived."""
        wait_s = context.request_timeout_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._too_late)

    def receive(self, payload: bytes) -> None:
        """A frame from the client. A DESCRIBE is answered at once."""
        if self.closed:
            return
        if payload == client_wire.DESCRIBE and not self.has_request:
            self._stream.send(self._context.description.frame)
            self.feed(ClientGone())
            return
        self._frames.append(payload)
        self.num_bytes += len(payload) + _FRAME_OBJECT_BYTES
        if not self.has_request:
            self.has_request = True
            self._timer.cancel()
            self._context.time_slicer.submit(self._begin)

    def feed(self, item: SessionInput) -> None:
        """The stream ends: with an error, or without a frame."""
        if self.closed:
            return
        self.client_lost()
        if isinstance(item, ClientFailed):
            self._context.telemetry.refused(item.error.reason)
            self._stream.end(Failed(item.error.bare()))
        else:
            self._stream.end()

    def client_lost(self) -> None:
        """The client's connection was lost, or another handler has the stream."""
        self.closed = True
        self._frames = []
        self.num_bytes = 0
        self._timer.cancel()

    def _begin(self) -> None:
        if self.closed:
            return
        frames, self._frames = self._frames, []
        self.num_bytes = 0
        try:
            self._stream.begin(frames)
        except OutriderError as error:
            self.feed(ClientFailed(error))
        else:
            self.client_lost()

    def _too_late(self) -> None:
        why = "the stream was opened but no chat request came; send it first"
        self.feed(ClientFailed(DeadlineError(why)))


def _pass_on(payload: bytes, chat: ChatHandler) -> None:
    """A further frame from the client of a chat."""
    try:
        read = client_wire.read(payload)
    except OutriderError as error:
        chat.feed(ClientFailed(error))
        return
    if isinstance(read, client_wire.TokenArrived):
        chat.token_arrived()
    else:
        chat.feed(read)
