"""One client connection: its handshake, its timeouts, and whose its streams are."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Final

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

from outrider.client.protocol import ACK_DELAY_S, ALPN, NO_COMMON_PROTOCOL, CloseCode
from outrider.codec.frames import encode_frame
from outrider.errors import DrainingError, OverloadedError
from outrider.telemetry.logs import failure_place
from services.edge.chat.context import EdgeContext
from services.edge.limits.listener import AddressState, ListenerQuotas, MemoryBudget
from services.edge.limits.quotas import Count, Rate
from services.edge.quic.aioquic_shim import BoundedConnection, ConnectionProtocol
from services.edge.quic.alpn import ApplicationService, StreamService
from services.edge.quic.early_data import STREAM_BYTES, EarlyStreams
from services.edge.quic.native_streams import NativeStreams
from services.edge.quic.server import Routes
from services.edge.wire.client import DESCRIBE_STREAM

_BULK_DATAGRAM_BYTES: Final = 1000
"""Datagrams this full belong to a long prompt, whose sender waits for acknowledgements before it
sends on (RFC 9002, section 7.3.1)."""
_BULK_ACK_DELAY_S: Final = 0.001


class EdgeConnection(ConnectionProtocol):
    """Passes the events of one QUIC connection to its streams."""

    def __init__(
        self,
        quic: BoundedConnection,
        *,
        context: EdgeContext,
        shared: ListenerQuotas,
        address: AddressState,
        budget: MemoryBudget,
        routes: Routes,
        services: Mapping[str, ApplicationService],
        on_ended: Callable[[EdgeConnection], None],
    ) -> None:
        """`budget`: memory for data kept for its client; `routes`: its connection IDs; `services`:
        by application protocol, besides the native one."""
        super().__init__(
            quic,
            on_id_issued=routes.add,
            on_id_retired=routes.remove,
            on_terminated=routes.clear,
        )
        self.context = context
        self.limits = shared.limits
        self.budget = budget
        self.secret = secrets.token_bytes(16)
        """Identifies a client that does not name itself, while it is connected."""
        self.unbilled_s = 0.0
        """See `Receiver.unbilled_s`. The server changes it."""
        self.is_admitted = False
        """Whether its handshake is complete and the edge has room for it."""
        self._shared = shared
        self._address = address
        self._on_ended = on_ended
        self.native = NativeStreams(self, quic)
        """Streams of the native protocol."""
        self._services = services
        self._service: StreamService | None = None
        """Serves the streams of another protocol, once the handshake is complete."""
        self._early: EarlyStreams | None = EarlyStreams(
            MemoryBudget(self.limits.max_frame_bytes + STREAM_BYTES, shared.early_data)
        )
        """0-RTT data; None: the handshake is complete."""
        self._has_ended = False
        self._used_at = self._loop.time()
        """When a stream was last used."""
        self._watchdog: asyncio.TimerHandle | None = self._loop.call_later(
            self.limits.handshake_timeout_s, self._handshake_timed_out
        )

    @property
    def prefix(self) -> str:
        """The client's address prefix."""
        return self._address.prefix

    @property
    def peer(self) -> NetworkAddress | None:
        """The client's present address."""
        address = self.quic.get_peer_address()
        return None if address is None else (address[0], address[1])

    @property
    def local(self) -> NetworkAddress | None:
        """The edge's own address on this connection."""
        assert self._transport is not None
        address = self._transport.get_extra_info("sockname")
        return None if address is None else (address[0], address[1])

    @property
    def is_validated(self) -> bool:
        """Whether the handshake is complete."""
        return self._early is None

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """A datagram came. What it makes chats ask of a region goes out before the answer to the
        client, and datagrams that came together are answered together."""
        assert isinstance(data, bytes)
        is_bulk = len(data) >= _BULK_DATAGRAM_BYTES
        self.quic.set_ack_delay(_BULK_ACK_DELAY_S if is_bulk else ACK_DELAY_S)
        try:
            self.quic.receive_datagram(data, addr, now=self._loop.time())
            self.process_events()
            self.native.acknowledged()
        except Exception as failure:
            # A defect, or bytes that aioquic did not expect, end this connection and no other.
            self.fail(failure)
            return
        if self._service is not None:
            self._service.acknowledged()
        if self.quic.needs_transmit():
            self.transmit_soon()
        else:
            self.watch_timer()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event, in order."""
        match event:
            case HandshakeCompleted():
                self._handshake_completed()
            case StreamDataReceived(data, end_stream, stream_id):
                self._received(stream_id, data, end_stream)
            case StreamReset(stream_id=stream_id) if self._service is not None:
                self._service.reset(stream_id)
            case StreamReset(stream_id=stream_id):
                self._drop_early(stream_id)
                self.native.reset(stream_id)
            case StopSendingReceived(stream_id=stream_id) if self._service is not None:
                self._service.stopped(stream_id)
            case StopSendingReceived(stream_id=stream_id):
                self._drop_early(stream_id)
                self.native.stopped(stream_id)
            case ConnectionTerminated(error_code, frame_type):
                if error_code == NO_COMMON_PROTOCOL and frame_type is not None:
                    self._refused_protocol()
                # An application's close means that the client gave up, unless it says that it will
                # be back. Anything else is a loss that the client may not even know of yet.
                gave_up = frame_type is None and error_code != CloseCode.COMING_BACK
                self._terminated(gave_up=gave_up)

    def fail(self, failure: Exception) -> None:
        """The edge cannot continue with this connection."""
        self.context.telemetry.refused("failure", error=failure_place(failure))
        self.drop("the edge failed in this connection")

    def drop(self, reason: str) -> None:
        """Close and forget the connection at once. Skips the closing period of RFC 9000, section
        10.2, which repeats the close for clients that missed it. Its chats may continue without
        it."""
        if self._has_ended:
            return
        self.quic.close(QuicErrorCode.INTERNAL_ERROR, QuicFrameType.PADDING, reason)
        with contextlib.suppress(Exception):  # if sending is what failed, the client learns nothing
            self.transmit()
        at = self.quic.get_timer()
        if at is not None:
            self.quic.handle_timer(max(at, self._loop.time()))
        self.process_events()
        self.transmit()

    def drain(self) -> None:
        """The edge stops: inform the client, if its protocol can."""
        if self._service is not None:
            self._service.drain()

    def break_cycles(self) -> None:
        """See `ConnectionProtocol.break_cycles`."""
        super().break_cycles()
        del self.native  # it knows this connection

    def close_for(self, code: CloseCode, reason: str) -> None:
        """Close the connection with the code that its protocol has for `code`."""
        service = self._services.get(self.quic.application_protocol)
        self.close(code if service is None else service.close_code(code), reason)

    # For its streams.

    def check_draining(self) -> None:
        """Raises DrainingError if no chat begins any more."""
        if self._shared.is_draining:
            raise DrainingError("this edge is shutting down; connect to another")

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat against the quotas of this connection's address prefix and `client`; returns
        the call that releases it. Raises OverloadedError."""
        return self._shared.hold_chat(self.prefix, client, self._loop.time())

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Charge `amount` to the quotas of a client and its address prefix; False if a quota does
        not allow it."""
        try:
            self._shared.spend(self.prefix, rate, amount, client, self._loop.time())
        except OverloadedError:
            self.context.telemetry.refused(rate.value)
            return False
        return True

    def hold_stream(self) -> bool:
        """Count a stream of its address prefix; False, and nothing is counted, if there are too
        many to answer even with an error."""
        try:
            self._shared.quotas.hold(self.prefix, Count.STREAMS, self._loop.time())
        except OverloadedError:
            self.context.telemetry.refused("streams")
            return False
        return True

    def release_stream(self) -> None:
        """A stream is done."""
        self._used_at = self._loop.time()
        self._shared.quotas.release(self.prefix, Count.STREAMS)

    # Handshake and timeouts.

    def _handshake_timed_out(self) -> None:
        self.context.telemetry.refused("handshake timeout")
        self.drop("the handshake took too long")

    def _handshake_completed(self) -> None:
        early, self._early = self._early, None
        assert early is not None
        self._stop_watchdog()
        self._handshake_ended()
        service = self._services.get(self.quic.application_protocol)
        if not self._shared.admit():
            early.take()
            self.context.telemetry.refused("connections")
            if self._shared.is_draining:
                self.close_for(CloseCode.SHUTTING_DOWN, "this edge is shutting down")
            else:
                self.close_for(CloseCode.OVERLOADED, "this edge has all the connections it takes")
            return
        if service is not None:
            self._service = service.open(self)
        self.is_admitted = True
        self.context.telemetry.connections(+1)
        self._watch_use(self.limits.idle_timeout_s)
        for stream_id, data, end_stream in early.take():
            self._received(stream_id, data, end_stream)

    def _handshake_ended(self) -> None:
        self._shared.handshakes.handshake_ended()
        self.context.telemetry.half_open(self._shared.handshakes.num_half_open)

    def _watch_use(self, wait_s: float) -> None:
        self._watchdog = self._loop.call_later(wait_s, self._check_use)

    def _check_use(self) -> None:
        """A connection without streams is closed, as is one with streams that are over but for the
        client's end: PINGs keep an address translation open, not a place at an edge."""
        is_used = self.native.was_used()
        if is_used or (self._service is not None and not self._service.is_idle):
            self._used_at = self._loop.time()
        left_s = self._used_at + self.limits.idle_timeout_s - self._loop.time()
        if left_s > 0:
            self._watch_use(left_s)
            return
        self._watchdog = None
        self.close_for(CloseCode.DONE, "nothing was asked for a while")

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    # Streams.

    def _received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if self._early is not None:
            self._received_early(self._early, stream_id, data, end_stream)
            return
        if not self.is_admitted:
            return
        self._used_at = self._loop.time()
        if self._service is not None:
            self._service.received(stream_id, data, end_stream)
            return
        self.native.received(stream_id, data, end_stream)

    def _drop_early(self, stream_id: int) -> None:
        if self._early is not None:
            self._early.drop(stream_id)

    def _received_early(self, early: EarlyStreams, stream_id: int, data: bytes, end: bool) -> None:
        is_native = self.quic.application_protocol not in self._services
        is_whole = stream_id % 4 == 0 and stream_id not in early
        if is_native and is_whole and data == DESCRIBE_STREAM:
            self.quic.send_stream_data(
                stream_id, encode_frame(self.context.description.frame), True
            )
            return
        self.context.telemetry.early_data(len(data))
        if not early.keep(stream_id, data, end):
            early.take()
            self.context.telemetry.refused("early data")
            self.close_for(CloseCode.OVERLOADED, "too much data before the handshake was complete")

    # The end.

    def _refused_protocol(self) -> None:
        ours = ", ".join((ALPN, *self._services))
        why = f"the client speaks none of {ours}: it may be of another version"
        self.context.telemetry.refused("protocol", why=why)

    def _terminated(self, *, gave_up: bool) -> None:
        self._has_ended = True
        self._stop_watchdog()
        if self._early is not None:
            self._early.take()
            self._early = None
            self._handshake_ended()
        self.native.lost(gave_up=gave_up)
        if self._service is not None:
            self._service.lost()
            self._service = None
        self.budget.clear()
        # Once the caller, which may be in the middle of an event, is done with it.
        self._loop.call_soon(self.break_cycles)
        self._shared.connection_ended(self._address)
        if self.is_admitted:
            self.is_admitted = False
            self._shared.dismiss()
            self.context.telemetry.connections(-1)
        self._on_ended(self)
