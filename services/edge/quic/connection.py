"""One client connection: a chat per bidirectional stream, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from outrider.client.protocol import ACK_DELAY_S, CloseCode
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import DrainingError, MalformedFrameError, OutriderError, OverloadedError
from services.edge.chat import Chat
from services.edge.prefill.typist import Typist
from services.edge.resumption.reception import StreamOwner
from services.edge.session.inputs import ClientFailed, ClientGone
from services.edge.wire.client import DESCRIBE, DESCRIBE_STREAM, describe, is_typed_text

if TYPE_CHECKING:
    from services.edge.quic.listener import Listener

_BULK_DATAGRAM_BYTES = 1000
"""Datagrams this full belong to a long prompt, whose sender waits for acknowledgements before it
sends on (RFC 9002, section 7.3.1)."""
_BULK_ACK_DELAY_S = 0.001


class EdgeConnection(QuicConnectionProtocol):
    """Events of one QUIC connection, sorted to the chats of its streams."""

    def __init__(self, quic: QuicConnection, stream_handler: Any, *, listener: Listener) -> None:
        super().__init__(quic, stream_handler)
        self.listener = listener
        self._chats: dict[int, ChatStream] = {}
        self._counted = False
        # What came before the handshake was complete, in 0-RTT. It may be a recording that somebody
        # sends again (RFC 8470), so nothing is done about it yet. None: the handshake is complete.
        self._early: list[tuple[int, bytes, bool]] | None = []
        self._early_bytes = 0

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """A datagram came. What it made the chats ask of a region goes out before the answer to
        the client, and datagrams that came together are answered together."""
        assert isinstance(data, bytes)
        # aioquic has no public setting for it.
        bulk = len(data) >= _BULK_DATAGRAM_BYTES
        self._quic._ack_delay = _BULK_ACK_DELAY_S if bulk else ACK_DELAY_S
        self._quic.receive_datagram(data, addr, now=self._loop.time())
        self._process_events()
        self._transmit_soon()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event, in order."""
        match event:
            case HandshakeCompleted():
                self._admit()
            case StreamDataReceived(data, end_stream, stream_id):
                self._received(stream_id, data, end_stream)
            case StreamReset(stream_id=stream_id):
                self._gone(stream_id, client_ended=True)
                self.forget(stream_id)
            case StopSendingReceived(stream_id=stream_id):
                self._gone(stream_id)
            case ConnectionTerminated(error_code, frame_type):
                # An application's close, unless it says that the client will be back; anything
                # else is a loss that the client may not even know of yet.
                said_so = frame_type is None and error_code != CloseCode.COMING_BACK
                self._terminated(gave_up=said_so)

    def fail_chats(self, error: OutriderError) -> None:
        """End every chat with an error, and send it."""
        for stream in list(self._chats.values()):
            stream.chat.feed(ClientFailed(error))

    def stop_typists(self) -> None:
        """What was typed is sent: nothing needs to be computed ahead of it any more."""
        for stream in list(self._chats.values()):
            if isinstance(stream.chat, Typist):
                stream.chat.feed(ClientGone())

    def transmit_soon(self) -> None:
        """Send what is queued once this turn of the loop is over: frames share datagrams."""
        self._transmit_soon()

    def unacknowledged_bytes(self, stream_id: int) -> int:
        """Bytes of a stream that the client has not taken yet."""
        # aioquic has no public figure for it, and without one a client that does not read would
        # make the edge keep all it was ever sent.
        stream = self._quic._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def _admit(self) -> None:
        early, self._early = self._early or [], None
        self._free_early()
        if not self.listener.admit(self):
            self.close(CloseCode.OVERLOADED, "this edge has all the connections it takes")
            return
        self._counted = True
        for stream_id, data, end_stream in early:
            self._received(stream_id, data, end_stream)

    def _gone(self, stream_id: int, *, client_ended: bool = False) -> None:
        if self._early is not None:
            self._early = [early for early in self._early if early[0] != stream_id]
        if (stream := self._chats.get(stream_id)) is not None:
            stream.gone(client_ended=client_ended)

    def _received_early(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        assert self._early is not None
        is_whole = stream_id % 4 == 0 and all(early[0] != stream_id for early in self._early)
        if is_whole and data == DESCRIBE_STREAM:
            self._quic.send_stream_data(stream_id, encode_frame(self.description()), True)
            return
        self.listener.parts.telemetry.early_data(len(data))
        total = self._early_bytes + len(data)
        too_much = total > self.listener.limits.max_frame_bytes
        if too_much or not self.listener.early_room.take(len(data)):
            self._early.clear()
            self._free_early()
            self.close(CloseCode.OVERLOADED, "too much data before the handshake was complete")
            return
        self._early.append((stream_id, data, end_stream))
        self._early_bytes = total

    def _free_early(self) -> None:
        self.listener.early_room.give_back(self._early_bytes)
        self._early_bytes = 0

    def description(self) -> bytes:
        """The frame that says what this edge is."""
        parts = self.listener.parts
        digest, window_s = parts.policy.vocabulary_digest, parts.reception.window_s
        return describe(parts.name, parts.region, parts.offer, digest, window_s)

    def _received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if self._early is not None:
            self._received_early(stream_id, data, end_stream)
            return
        if not self._counted:
            return
        if stream_id % 4 != 0:  # RFC 9000, section 2.1: opened by the client, bidirectional
            self._quic.stop_stream(stream_id, CloseCode.BAD_FRAME)
            return
        stream = self._chats.get(stream_id)
        if stream is None:
            stream = self._chats[stream_id] = ChatStream(self, stream_id)
            if (refusal := self._refusal()) is not None:
                stream.chat.feed(ClientFailed(refusal))
        stream.received(data, end_stream)
        if end_stream and stream.chat.closed:
            self.forget(stream_id)

    def _refusal(self) -> OutriderError | None:
        limit = self.listener.limits.max_chats_per_connection
        if self.listener.draining:
            return DrainingError("this edge is shutting down; connect to another")
        if len(self._chats) > limit:
            return OverloadedError(f"a connection has at most {limit} chats at a time")
        return None

    def forget(self, stream_id: int) -> None:
        """Both sides of the stream are done."""
        self._chats.pop(stream_id, None)

    def _terminated(self, *, gave_up: bool) -> None:
        self._free_early()
        streams, self._chats = self._chats, {}
        for stream in streams.values():
            stream.lost(gave_up=gave_up)
        if self._counted:
            self._counted = False
            self.listener.dismiss(self)


class ChatStream:
    """A bidirectional stream: frames in, frames out, back-pressure."""

    def __init__(self, connection: EdgeConnection, stream_id: int) -> None:
        limits = connection.listener.limits
        self._connection = connection
        self._stream_id = stream_id
        self._decoder = FrameDecoder(limits.max_frame_bytes)
        self._max_unsent_bytes = limits.max_unsent_bytes
        self._client_ended = False
        self._gone = False
        self._stalled = False
        self._ended = False
        self.chat: StreamOwner = Chat(self, connection.listener.parts)

    def received(self, data: bytes, end_stream: bool) -> None:
        """Bytes from the client; `end_stream`: no more will follow."""
        self._client_ended = end_stream
        if self._ended or self.chat.closed:
            return
        try:
            for payload in self._decoder.feed(data):
                self._frame(payload)
            if end_stream and not self._decoder.at_boundary:
                raise MalformedFrameError("the stream ended inside a frame")
            if end_stream and self.chat.awaits_request:
                raise MalformedFrameError("the stream ended before a chat request came")
        except OutriderError as error:
            self.chat.feed(ClientFailed(error))

    def _frame(self, payload: bytes) -> None:
        if payload == DESCRIBE and self.chat.awaits_request:
            self.send(self._connection.description())
            self.chat.feed(ClientGone())  # there never was one
            return
        begins = self.chat.awaits_request
        if is_typed_text(payload):
            if begins:
                chat, self.chat = self.chat, Typist(self, self._connection.listener.parts)
                chat.client_lost()
        elif begins or isinstance(self.chat, Typist):  # not the cancel of an earlier chat
            self._connection.stop_typists()
        self.chat.receive(payload)

    def follow(self, owner: StreamOwner) -> None:
        """The stream belongs to another one from now on."""
        self.chat = owner

    def lost(self, *, gave_up: bool) -> None:
        """The connection is no more; `gave_up`: the client said that it wants nothing further."""
        self._gone = True
        if self._ended:
            return
        if gave_up:
            self.chat.feed(ClientGone())
        else:
            self.chat.client_lost()

    def gone(self, *, client_ended: bool) -> None:
        """The client gave one direction up, and so the chat; the other one ends too, or the stream
        would stay. `client_ended`: nothing more will come."""
        self._client_ended |= client_ended
        if not (self._ended or self.chat.closed):
            self._connection._quic.reset_stream(self._stream_id, CloseCode.DONE)
        if self._client_ended:
            self._connection.forget(self._stream_id)
        else:
            self._connection._quic.stop_stream(self._stream_id, CloseCode.DONE)
        self.lost(gave_up=True)
        self._connection.transmit_soon()

    def send(self, payload: bytes) -> None:
        """Queue a frame. A client that leaves too much unread loses the chat."""
        if self._gone or self._stalled:
            return
        self._write(encode_frame(payload), False)
        if self._connection.unacknowledged_bytes(self._stream_id) > self._max_unsent_bytes:
            self._stalled = True
            self.chat.feed(ClientFailed(OverloadedError("the client does not read its chat")))

    def end(self, last: bytes = b"") -> None:
        """End the stream: after what was sent and the frame `last`, if there is one, or at once if
        the client does not read."""
        self._ended = True
        if self._gone:
            return
        quic = self._connection._quic
        if self._stalled:
            quic.reset_stream(self._stream_id, CloseCode.SLOW_READER)
        else:
            self._write(encode_frame(last) if last else b"", True)
        if self._client_ended:
            self._connection.forget(self._stream_id)
        else:
            quic.stop_stream(self._stream_id, CloseCode.DONE)
        self._connection.transmit_soon()

    def _write(self, data: bytes, end_stream: bool) -> None:
        try:
            self._connection._quic.send_stream_data(self._stream_id, data, end_stream)
        except RuntimeError:  # the client asked to stop before it sent anything
            self.gone(client_ended=False)
        self._connection.transmit_soon()
