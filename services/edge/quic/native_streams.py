"""The native protocol's streams of one client: those of a QUIC connection, or of a WebTransport
session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outrider.client.protocol import CloseCode
from outrider.errors import OutriderError
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.context import EdgeContext
from services.edge.chat.typeahead import end_typing
from services.edge.limits.listener import ListenerLimits, MemoryBudget
from services.edge.limits.quotas import Count, Rate, too_many
from services.edge.quic.ids_question import IdsQuestion
from services.edge.quic.streams import EdgeStream, Transport


class Connection(Protocol):
    """The connection that carries the streams."""

    context: EdgeContext
    limits: ListenerLimits
    budget: MemoryBudget
    secret: bytes
    """16 random bytes that identify a client that does not name itself, while it is connected."""

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

    def hold_stream(self) -> bool:
        """Count a stream of its address prefix; False, and nothing is counted, if there are too
        many."""
        ...

    def release_stream(self) -> None:
        """A stream is done."""
        ...


class NativeStreams:
    """Opens a stream for each chat, within limits, and passes on what its client sends. Implements
    `StreamConnection` for its streams."""

    def __init__(self, connection: Connection, transport: Transport) -> None:
        self.context = connection.context
        self.limits = connection.limits
        self.budget = connection.budget
        self.secret = connection.secret
        self.transport = transport
        self._connection = connection
        self._streams: dict[int, EdgeStream] = {}
        self._catching_up: set[EdgeStream] = set()
        """Streams whose clients came back and still lack events."""

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._streams

    @property
    def has_questions(self) -> bool:
        """Whether the client waits for the ids of a text."""
        return any(isinstance(it.handler, IdsQuestion) for it in self._streams.values())

    def was_used(self) -> bool:
        """Asked now and then: whether any stream is served, or its client reads what is left of it.
        Gives up clients that read nothing of the backlog of a chat that is over."""
        for stream in list(self._catching_up):
            stream.check_reading()
        return any(stream.was_used() for stream in self._streams.values())

    # From the client.

    def received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Bytes of a stream, which may be new; `end_stream`: no more will follow."""
        stream = self._streams.get(stream_id) or self._open(stream_id)
        if stream is None:
            return
        stream.received(data, end_stream)
        if end_stream and stream.handler.closed and not stream.catches_up:
            self.forget(stream_id)

    def reset(self, stream_id: int) -> None:
        """The client ended its side of a stream before it was complete."""
        self._gone(stream_id, client_ended=True)
        self.forget(stream_id)

    def stopped(self, stream_id: int) -> None:
        """The client reads a stream no more."""
        self._gone(stream_id, client_ended=False)

    def acknowledged(self) -> None:
        """The client may have acknowledged something: continue backlogs."""
        for stream in list(self._catching_up):
            stream.send_backlog()

    # From the edge.

    def fail_chats(self, error: OutriderError) -> None:
        """End every chat with an error, and send it."""
        for stream in list(self._streams.values()):
            stream.fail(error)

    def lost(self, *, gave_up: bool) -> dict[int, bool]:
        """Nothing reaches the client any more; `gave_up`: it said that it wants nothing further.
        Returns the streams that were open, and of each whether its client had ended it."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(gave_up=gave_up)
            stream.release()
            self._connection.release_stream()
        return {number: stream.client_ended for number, stream in streams.items()}

    def _open(self, stream_id: int) -> EdgeStream | None:
        """A new stream; None if its address prefix has too many to answer even with an error."""
        if not self._connection.hold_stream():
            self.transport.reset_stream(stream_id, CloseCode.OVERLOADED)
            self.transport.stop_stream(stream_id, CloseCode.OVERLOADED)
            return None
        stream = self._streams[stream_id] = EdgeStream(self, stream_id)
        try:
            self.check_draining()
            limit = self.limits.max_chats_per_connection
            if len(self._streams) > limit:
                raise too_many(Count.CHATS, limit)
        except OutriderError as error:
            stream.fail(error)
        return stream

    def _gone(self, stream_id: int, *, client_ended: bool) -> None:
        if (stream := self._streams.get(stream_id)) is not None:
            stream.gone(client_ended=client_ended)
        elif client_ended:
            # A stream without data: unless it is reset from this side too, it stays open.
            self.transport.reset_stream(stream_id, CloseCode.DONE)

    # For its streams.

    @property
    def prefix(self) -> str:
        """The client's address prefix."""
        return self._connection.prefix

    def transmit_soon(self) -> None:
        """Send what is queued once this turn of the loop is over."""
        self._connection.transmit_soon()

    def fail(self, failure: Exception) -> None:
        """The edge cannot continue with the connection."""
        self._connection.fail(failure)

    def check_draining(self) -> None:
        """Raises DrainingError if no chat begins any more."""
        self._connection.check_draining()

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """See `StreamConnection.begin_chat`."""
        return self._connection.begin_chat(client)

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """See `StreamConnection.spend`."""
        return self._connection.spend(rate, amount, client)

    def end_typing(self) -> AnswerAhead | None:
        """See `StreamConnection.end_typing`."""
        return end_typing(stream.handler for stream in self._streams.values())

    def catches_up(self, stream: EdgeStream, *, is_over: bool = False) -> None:
        """See `StreamConnection.catches_up`."""
        if is_over:
            self._catching_up.discard(stream)
        else:
            self._catching_up.add(stream)

    def forget(self, stream_id: int) -> None:
        """Both directions of the stream are done."""
        if (stream := self._streams.pop(stream_id, None)) is not None:
            stream.release()
            self._connection.release_stream()
