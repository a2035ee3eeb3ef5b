"""One client connection: a chat per bidirectional stream, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from outrider.client.protocol import ACK_DELAY_S, CloseCode
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import DrainingError, MalformedFrameError, OutriderError, OverloadedError
from services.edge.chat import Chat
from services.edge.quic.bounded import BoundedConnection
from services.edge.quic.budget import Budget
from services.edge.quic.dispatch import Routes
from services.edge.quic.early import STREAM_BYTES, EarlyStreams
from services.edge.quotas import Count, Rate
from services.edge.resumption.reception import StreamOwner
from services.edge.session.events import ClientFailed, ClientGone
from services.edge.session.events import Input as SessionInput
from services.edge.typeahead import TypeaheadPrefill
from services.edge.unasked import Unasked
from services.edge.wire.client import DESCRIBE, DESCRIBE_STREAM, describe, is_typed_text

if TYPE_CHECKING:
    from services.edge.quic.listener import Address, Listener

_BULK_DATAGRAM_BYTES = 1000
"""Datagrams this full belong to a long prompt, whose sender waits for acknowledgements before it
sends on (RFC 9002, section 7.3.1)."""
_BULK_ACK_DELAY_S = 0.001


class EdgeConnection(QuicConnectionProtocol):
    """Events of one QUIC connection, sorted to the chats of its streams."""

    def __init__(
        self,
        quic: BoundedConnection,
        listener: Listener,
        address: Address,
        budget: Budget,
        routes: Routes,
    ) -> None:
        """`budget` is of what it holds for its client, `routes` its connection ids."""
        super().__init__(quic)
        self.listener = listener
        self.address = address
        self.budget = budget
        self._connection_id_issued_handler = routes.add
        self._connection_id_retired_handler = routes.remove
        self._connection_terminated_handler = routes.clear
        self._chats: dict[int, ChatStream] = {}
        self._counted = False
        self.secret = secrets.token_bytes(16)
        """Names a client that does not name itself, while it is here."""
        # None: the handshake is complete.
        self._early: EarlyStreams | None = EarlyStreams(
            Budget(listener.limits.max_frame_bytes + STREAM_BYTES, listener.early_room)
        )
        self._has_ended = False
        self.unpaid_s = 0.0
        """Of the loop's time, by its datagrams; whoever looks at them settles it."""
        self._used_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = self._loop.call_later(
            listener.limits.handshake_timeout_s, self._too_slow
        )

    @property
    def is_proven(self) -> bool:
        """Whether the handshake is complete."""
        return self._early is None

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """A datagram came. What it made the chats ask of a region goes out before the answer to
        the client, and datagrams that came together are answered together."""
        assert isinstance(data, bytes)
        # aioquic has no public setting for it.
        bulk = len(data) >= _BULK_DATAGRAM_BYTES
        self._quic._ack_delay = _BULK_ACK_DELAY_S if bulk else ACK_DELAY_S
        try:
            self._quic.receive_datagram(data, addr, now=self._loop.time())
            self._process_events()
        except Exception as failure:
            # A defect, or bytes that aioquic did not expect, end this connection and no other.
            self.fail(failure)
            return
        self._transmit_soon()

    def fail(self, failure: Exception) -> None:
        """The edge cannot go on with this connection."""
        self.listener.parts.telemetry.refused("failure", error=repr(failure))
        self.drop("the edge failed in this connection")

    def drop(self, reason: str) -> None:
        """Say goodbye and keep nothing, not even for those who did not hear it (RFC 9000, section
        10.2, has a closing period for them). Its chats may go on without it."""
        if self._has_ended:
            return
        self._quic.close(QuicErrorCode.INTERNAL_ERROR, QuicFrameType.PADDING, reason)
        with contextlib.suppress(Exception):  # if that is what failed, it goes without a word
            self.transmit()
        at = self._quic.get_timer()
        if at is not None:
            self._quic.handle_timer(max(at, self._loop.time()))
        self._process_events()
        self.transmit()

    def _too_slow(self) -> None:
        self.listener.parts.telemetry.refused("handshake timeout")
        self.drop("the handshake took too long")

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

    def stop_typeaheads(self) -> None:
        """What was typed is sent: nothing needs to be computed ahead of it any more."""
        for stream in list(self._chats.values()):
            if isinstance(stream.chat, TypeaheadPrefill):
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
        early, self._early = self._early, None
        assert early is not None
        self._stop_watching()
        self.listener.shook_hands()
        if not self.listener.admit(self):
            early.take()
            self.close(CloseCode.OVERLOADED, "this edge has all the connections it takes")
            return
        self._counted = True
        self._look_after(self.listener.limits.idle_timeout_s)
        for stream_id, data, end_stream in early.take():
            self._received(stream_id, data, end_stream)

    def _look_after(self, wait_s: float) -> None:
        self._watch = self._loop.call_later(wait_s, self._check_use)

    def _check_use(self) -> None:
        """PINGs keep an address translation open, not a place at an edge."""
        idle_s = self.listener.limits.idle_timeout_s
        if self._chats:
            self._used_at = self._loop.time()
        left_s = self._used_at + idle_s - self._loop.time()
        if left_s > 0:
            self._look_after(left_s)
            return
        self._watch = None
        self.close(CloseCode.DONE, "nothing was asked for a while")

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _gone(self, stream_id: int, *, client_ended: bool = False) -> None:
        if self._early is not None:
            self._early.drop(stream_id)
        if (stream := self._chats.get(stream_id)) is not None:
            stream.gone(client_ended=client_ended)
        elif client_ended:
            # A stream of nothing but its end: without ours, it would stay.
            self._quic.reset_stream(stream_id, CloseCode.DONE)

    def _received_early(self, early: EarlyStreams, stream_id: int, data: bytes, end: bool) -> None:
        is_whole = stream_id % 4 == 0 and stream_id not in early
        if is_whole and data == DESCRIBE_STREAM:
            self._quic.send_stream_data(stream_id, encode_frame(self.description()), True)
            return
        self.listener.parts.telemetry.early_data(len(data))
        if not early.keep(stream_id, data, end):
            early.take()
            self.close(CloseCode.OVERLOADED, "too much data before the handshake was complete")

    def description(self) -> bytes:
        """The frame that says what this edge is."""
        parts = self.listener.parts
        digest, window_s = parts.policy.vocabulary_digest, parts.reception.window_s
        return describe(parts.name, parts.region, parts.offer, digest, window_s)

    def _received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if self._early is not None:
            self._received_early(self._early, stream_id, data, end_stream)
            return
        if not self._counted:
            return
        self._used_at = self._loop.time()
        stream = self._chats.get(stream_id)
        if stream is None:
            stream = self._opened(stream_id)
            if stream is None:
                return
        stream.received(data, end_stream)
        if end_stream and stream.chat.closed:
            self.forget(stream_id)

    def _opened(self, stream_id: int) -> ChatStream | None:
        """Another stream: None if not even an answer is possible."""
        now = self._loop.time()
        try:
            self.listener.quotas.hold(self.address.key, Count.STREAMS, now)
        except OverloadedError:
            self.listener.parts.telemetry.refused("streams")
            self._quic.reset_stream(stream_id, CloseCode.OVERLOADED)
            self._quic.stop_stream(stream_id, CloseCode.OVERLOADED)
            return None
        stream = self._chats[stream_id] = ChatStream(self, stream_id)
        try:
            self.check_draining()
            limit = self.listener.limits.max_chats_per_connection
            if len(self._chats) > limit:
                raise OverloadedError(f"a connection has at most {limit} chats at a time")
        except OutriderError as error:
            stream.chat.feed(ClientFailed(error))
        return stream

    def check_draining(self) -> None:
        """Raises DrainingError if no chat begins any more."""
        if self.listener.draining:
            raise DrainingError("this edge is shutting down; connect to another")

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """A chat begins: it counts among those of its address and of its client (empty: it is the
        whole tenant's) until what this returns is called, which may be long after the connection.
        Raises OverloadedError."""
        listener, now = self.listener, self._loop.time()
        held = contextlib.ExitStack()
        try:
            listener.quotas.hold(self.address.key, Count.CHATS, now)
            held.callback(listener.quotas.release, self.address.key, Count.CHATS)
            if client:
                listener.client_quotas.hold(client, Count.CHATS, now)
                held.callback(listener.client_quotas.release, client, Count.CHATS)
        except OverloadedError:
            held.close()
            listener.parts.telemetry.refused("chats")
            raise
        return held.close

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Use up so much of what the client and its address may use; False if that is too much."""
        listener, now = self.listener, self._loop.time()
        try:
            listener.quotas.spend(self.address.key, rate, amount, now)
            if client:
                listener.client_quotas.spend(client, rate, amount, now)
        except OverloadedError:
            self.listener.parts.telemetry.refused(rate.value)
            return False
        return True

    def forget(self, stream_id: int) -> None:
        """Both sides of the stream are done."""
        if (stream := self._chats.pop(stream_id, None)) is not None:
            self._used_at = self._loop.time()
            stream.let_go()
            self.listener.quotas.release(self.address.key, Count.STREAMS)

    def _terminated(self, *, gave_up: bool) -> None:
        self._has_ended = True
        self._stop_watching()
        if self._early is not None:
            self._early.take()
            self._early = None
            self.listener.shook_hands()
        streams, self._chats = self._chats, {}
        for stream in streams.values():
            stream.lost(gave_up=gave_up)
            self.listener.quotas.release(self.address.key, Count.STREAMS)
        self.budget.clear()
        self._loop.call_soon(self._let_go)
        self.listener.left(self, self.address)
        if self._counted:
            self._counted = False
            self.listener.dismiss(self)

    def _let_go(self) -> None:
        """Once whoever ended it is done with it: nothing of it refers to itself any more."""
        assert isinstance(self._quic, BoundedConnection)
        self._quic.let_go()
        self._connection_id_issued_handler = self._connection_id_retired_handler = _no_route
        self._connection_terminated_handler = _nothing


def _no_route(cid: bytes) -> None:
    """An ended connection has no ids."""


def _nothing() -> None:
    """And ends once."""


class Nobody:
    """Owns streams that have ended: a chat and its stream would keep each other otherwise, until
    they are collected, and a collection of what an attack leaves holds the loop."""

    awaits_request = False
    closed = True

    def receive(self, payload: bytes) -> None:
        """Nothing is read."""

    def feed(self, item: SessionInput) -> None:
        """Nothing happens."""

    def client_lost(self) -> None:
        """Nobody minds."""


NOBODY = Nobody()


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
        self._num_held = 0
        self.chat: StreamOwner = Unasked(self, connection.listener.parts)

    @property
    def address(self) -> str:
        """The address prefix of its client."""
        return self._connection.address.key

    @property
    def connection_secret(self) -> bytes:
        """What all streams of the connection have in common, and nobody else has."""
        return self._connection.secret

    def received(self, data: bytes, end_stream: bool) -> None:
        """Bytes from the client; `end_stream`: no more will follow."""
        self._client_ended = end_stream
        if self._ended or self.chat.closed:
            return
        try:
            for payload in self._decoder.feed(data):
                self._frame(payload)
            self._hold()
            if end_stream and not self._decoder.at_boundary:
                raise MalformedFrameError("the stream ended inside a frame")
            if end_stream and self.chat.awaits_request:
                raise MalformedFrameError("the stream ended before a chat request came")
        except OutriderError as error:
            self.chat.feed(ClientFailed(error))

    def _hold(self) -> None:
        """Take from the budget what is kept: of a frame that is not whole yet, and those that wait
        for their turn. Raises OverloadedError."""
        num_bytes, budget = self._decoder.num_held, self._connection.budget
        if isinstance(self.chat, Unasked):
            num_bytes += self.chat.num_bytes
        if num_bytes <= self._num_held:
            budget.give_back(self._num_held - num_bytes)
        elif not budget.take(num_bytes - self._num_held):
            raise OverloadedError("there is no room for so much of requests that are not whole yet")
        self._num_held = num_bytes

    def let_go(self) -> None:
        """Nothing more is read."""
        self._connection.budget.give_back(self._num_held)
        self._num_held = 0
        self._decoder = FrameDecoder()

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """As EdgeConnection."""
        return self._connection.begin_chat(client)

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """As EdgeConnection."""
        return self._connection.spend(rate, amount, client)

    def _frame(self, payload: bytes) -> None:
        if payload == DESCRIBE and self.chat.awaits_request:
            self.send(self._connection.description())
            self.chat.feed(ClientGone())  # there never was one
            return
        if isinstance(self.chat, TypeaheadPrefill) and not is_typed_text(payload):
            self._connection.stop_typeaheads()  # the prompt itself
        self.chat.receive(payload)

    def begin(self, frames: list[bytes]) -> None:
        """The first frame is whole, and these wait: a chat begins, or somebody types. Raises
        DrainingError."""
        parts = self._connection.listener.parts
        self._connection.check_draining()
        try:
            if is_typed_text(frames[0]):
                self.chat = TypeaheadPrefill(self, parts)
            else:
                self._connection.stop_typeaheads()
                self.chat = Chat(self, parts)
            self._hold()
            for payload in frames:
                self._frame(payload)
        except Exception as failure:
            self._connection.fail(failure)

    def follow(self, owner: StreamOwner) -> None:
        """The stream belongs to another one from now on."""
        if not self._ended:
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
        self.chat = NOBODY

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
        self.chat = NOBODY
        self.let_go()
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
