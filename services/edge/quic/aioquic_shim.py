"""All that reaches into aioquic's private parts: bounds on what a peer can make a connection hold
or process, and names for what the public interface lacks. Its streams are in `aioquic_streams`.

aioquic 1.7.2 by itself doubles its receive windows whenever half of one was used, by the highest
offset that came, and allocates every gap before it; it looks for a fragment's place from the first
one on; it keeps every packet of acknowledgements until the peer acknowledges it, which no peer has
to. RFC 9000, section 21 describes the attacks (21.6 on commitment of streams, 21.7 on fragments and
reassembly). What aioquic bounds itself is not repeated here: ranges to acknowledge, answers to
PATH_CHALLENGE, paths, connection IDs in use and to be retired.

This module overrides private methods, so it works with one version of aioquic (`check_version`);
`python -m tools.library_internals --try aioquic` says what a newer one changes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aioquic
from aioquic._buffer import Buffer as Buffer
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import size_uint_var
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    END_STATES,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    NetworkAddress,
    QuicConnection,
    QuicConnectionId,
    QuicNetworkPath,
    QuicReceiveContext,
    stream_is_client_initiated,
    stream_is_unidirectional,
)
from aioquic.quic.events import ConnectionIdIssued
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch, ExtensionType, SessionTicket
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outrider.errors import ConfigError
from services.edge.limits.listener import MemoryBudget
from services.edge.limits.quotas import RateLimit, TokenBucket
from services.edge.quic.aioquic_streams import (
    BoundedReceiver,
    BoundedSender,
    CryptoReceiver,
    ReceiveState,
    excessive,
)
from services.edge.quic.connection_ids import ConnectionIds
from services.edge.quic.early_data import TicketStore

AIOQUIC_VERSION: Final = "1.7.2"
_MAX_SENT_PACKETS: Final = 1024
"""Beyond, packets that hold nothing but acknowledgements are forgotten."""
_SWEEP_EVERY_PACKETS: Final = 64
_FRAMES_AT_ONCE: Final = 64
"""Taken from the rate limit at once: it costs as much as taking one."""
_MAX_ISSUED_IDS: Final = 8
"""Connection IDs issued to a peer: aioquic's number, for peers that take that many."""
_MAX_PEER_CONNECTION_IDS: Final = 1024
"""Issued by a peer that has not retired earlier ones."""
_LEAST_STREAM_FRAME_BYTES: Final = 24
"""Room below which no stream's data is added to a packet: the longest header of a frame, and some
data."""
_TIMER_GRANULARITY_S: Final = 0.001
"""Granularity of the event loop's timers."""
_STREAM: Final = QuicFrameType.STREAM_BASE | 2
_STREAM_WITH_OFFSET: Final = _STREAM | 4
"""Frames that say how long they are."""
_STREAMS: Final = RateLimit(per_s=200.0, burst=1000.0)
_FRAMES: Final = RateLimit(per_s=10_000.0, burst=30_000.0)


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """Limits on the streams of one application protocol."""

    stream_window_bytes: int = 1 << 20
    """How far a bidirectional stream may be ahead of the data read of it, and so the most that is
    read of it at once. 0-RTT is sent by the limits of an earlier connection, so they may not shrink
    between releases (RFC 9000, section 7.4.1)."""
    max_unidirectional_streams: int = 0
    """Open at a time."""
    unidirectional_window_bytes: int = 1 << 20
    """Like `stream_window_bytes`, for a unidirectional stream."""


_DEFAULT_PROTOCOL: Final = ProtocolLimits()


@dataclass(frozen=True, slots=True)
class QuicLimits:
    """Limits on one connection."""

    connection_window_bytes: int = 1 << 20
    """How far all streams together may be ahead of the data that the edge has read of them. For
    0-RTT, see `ProtocolLimits.stream_window_bytes`."""
    max_fragments: int = 2048
    """Pieces of one stream received out of order. One lost datagram at the start of a window leaves
    some 950."""
    max_streams: int = 96
    """Bidirectional streams open at a time."""
    protocols: Mapping[str, ProtocolLimits] = field(default_factory=dict)
    """Limits that differ for an application protocol, by its ALPN name."""
    streams: RateLimit = _STREAMS
    """Opened, including those that are reset at once."""
    frames: RateLimit = _FRAMES
    """Processed, at some 10 us each. An upload has one per 1200 bytes, a reader of 64 chats some
    1500 per second."""


def check_version() -> None:
    """Raises ConfigError for another aioquic than this file was written for."""
    if aioquic.__version__ != AIOQUIC_VERSION:
        raise ConfigError(
            f"the edge needs aioquic {AIOQUIC_VERSION}, not {aioquic.__version__}: its bounds "
            "against hostile clients override private methods of that version; install that one"
        )


def _no_probe() -> None:
    """An ended connection sends no probes."""


class RetryTokens(QuicRetryTokenHandler):
    """Handler of Retry tokens with a given key: aioquic makes a new key for each handler."""

    def __init__(self, key: bytes) -> None:
        """`key`: 16 bytes. Handlers with the same key accept each other's tokens."""
        super().__init__()
        self._aead = AESGCM(key)


class BoundedConnection(QuicConnection):
    """A server's connection. What it holds for its peer is taken from `budget`, which the caller
    clears when the connection has ended."""

    def __init__(
        self,
        *,
        limits: QuicLimits,
        budget: MemoryBudget,
        now: float,
        tickets: Mapping[str, TicketStore[SessionTicket]] | None = None,
        ids: ConnectionIds | None = None,
        **settings: Any,
    ) -> None:
        """`tickets`: stores by application protocol, since a ticket is valid only for the protocol
        that it was issued with (RFC 8446, section 4.2.10); None: no 0-RTT. `ids` makes the
        connection IDs; None: random ones. `settings`: see QuicConnection."""
        super().__init__(**settings)
        self._ids = ids
        if ids is not None:
            self._host_cids.clear()
            self._host_cid_seq = 0
            first = self._issue(ids, was_sent=True)
            self.host_cid = self._local_initial_source_connection_id = first.cid
        self._tickets = tickets
        if tickets is not None:
            self._session_ticket_fetcher = self._take_ticket
            self._session_ticket_handler = self._add_ticket
        self._unread: dict[int, int] = {}
        """Bytes of streams that their application has not read."""
        self._limits = limits
        self._now = now
        self._receiving = ReceiveState(budget)
        self._frames = TokenBucket(limits.frames, now)
        self._opened = TokenBucket(limits.streams, now)
        self._next_sweep = _MAX_SENT_PACKETS
        self._sweep_at = 0
        self._frames_left = 0
        for limit, value in (
            (self._local_max_data, limits.connection_window_bytes),
            (self._local_max_streams_bidi, limits.max_streams),
            (self._local_max_streams_uni, 0),
        ):
            limit.value = limit.sent = value
        self._protocol = _DEFAULT_PROTOCOL
        self._frame_handlers: dict[int, tuple[Callable[..., None], Any]]
        self._frame_handlers = getattr(self, "_QuicConnection__frame_handlers")  # noqa: B009 (mangled)
        for kind, (handler, epochs) in self._frame_handlers.items():
            self._frame_handlers[kind] = self._counted(handler), epochs

    @property
    def num_unread_bytes(self) -> int:
        """Bytes up to the highest offsets received that are not read yet."""
        return self._receiving.num_unread_bytes

    @property
    def application_protocol(self) -> str:
        """ALPN name of the protocol that client and edge agreed on; empty before they have."""
        return (self.tls.alpn_negotiated or "") if hasattr(self, "tls") else ""

    def num_unacknowledged_bytes(self, stream_id: int) -> int:
        """Bytes of a stream that the peer has not acknowledged; none of one that was reset."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    @property
    def is_delivered(self) -> bool:
        """Whether the peer has acknowledged all that was written to streams, their ends too, or
        nothing is sent any more."""
        senders = [stream.sender for stream in self._streams.values()]
        return self._state in END_STATES or not any(
            len(it._buffer) or (it._buffer_fin is not None and not it.is_finished) for it in senders
        )

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """See `QuicConnection.send_stream_data`. An existing bidirectional stream is written
        without its checks."""
        stream = self._streams.get(stream_id)
        if stream is None or stream_is_unidirectional(stream_id):
            super().send_stream_data(stream_id, data, end_stream)
        else:
            stream.sender.write(data, end_stream)

    def set_unread(self, stream_id: int, num_bytes: int) -> None:
        """So many bytes that came on a stream are kept until its application reads them: the peer
        gets no room for others in their place."""
        self._receiving.has_read = True
        self._receiving.num_unread_bytes += num_bytes - self._unread.pop(stream_id, 0)
        if num_bytes:
            self._unread[stream_id] = num_bytes

    def stop_reading(self, stream_id: int, error_code: int) -> None:
        """Ask the peer to send no more on a stream, if it has not sent all of it."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.receiver.stop(error_code)

    def set_ack_delay(self, seconds: float) -> None:
        """How long to wait for further packets before they are acknowledged."""
        self._ack_delay = seconds

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """See `QuicConnection.receive_datagram`."""
        self._now = now
        super().receive_datagram(data, addr, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """See `QuicConnection.datagrams_to_send`."""
        datagrams = self._unamplified(super().datagrams_to_send(now))
        if self._packet_number >= self._sweep_at:
            self._sweep_at = self._packet_number + _SWEEP_EVERY_PACKETS
            for space in self._spaces.values():
                if len(space.sent_packets) > self._next_sweep:
                    self._sweep(space)
        return datagrams

    def _unamplified(
        self, datagrams: list[tuple[bytes, NetworkAddress]]
    ) -> list[tuple[bytes, NetworkAddress]]:
        """Those that may be sent: to an address that is not validated at most three times the bytes
        that came from it (RFC 9000, section 8.1). aioquic's packets that close a connection ignore
        this."""
        for path in [it for it in self._network_paths if not it.is_validated]:
            for at in reversed([at for at, (_, to) in enumerate(datagrams) if to == path.addr]):
                if path.bytes_sent <= 3 * path.bytes_received:
                    break
                path.bytes_sent -= len(datagrams.pop(at)[0])
        return datagrams

    def needs_transmit(self) -> bool:
        """Whether `datagrams_to_send` may have something to send: True where it is not sure. Behind
        an acknowledgement there mostly is nothing, and it takes an empty packet to find that
        out."""
        if not self._handshake_confirmed or not self._is_plain(self._network_paths[0]):
            return True
        space = self._application_space
        return space.ack_at is not None or self._has_limits_to_write or bool(self._waiting())

    def break_cycles(self) -> None:
        """It has ended: remove the references to itself, so that it is freed at once. To collect
        the connections of an attack as garbage would hold the loop for 100 ms per thousand."""
        self._frame_handlers.clear()
        self._cryptos.clear()
        self._cryptos_initial.clear()
        for space in self._spaces.values():
            space.sent_packets.clear()  # they know whom to tell of their delivery
        self._streams.clear()
        self._session_ticket_fetcher = self._session_ticket_handler = None
        self._loss._send_probe = _no_probe
        if hasattr(self, "tls"):  # not before the first packet was read
            for name, value in list(vars(self.tls).items()):
                if getattr(value, "__self__", None) is self:
                    setattr(self.tls, name, None)

    @property
    def _num_opened(self) -> int:
        """Streams that the peer has opened."""
        return self._local_max_streams_bidi.used + self._local_max_streams_uni.used

    def _is_plain(self, path: QuicNetworkPath) -> bool:
        """Whether there is nothing to write but acknowledgements, limits and streams' data, as in
        nearly every packet of a chat."""
        if (
            not self._handshake_confirmed
            or self._state in END_STATES
            or self._close_pending
            or self._handshake_done_pending
            or self._streams_blocked_pending
            or self._ping_pending
            or self._probe_pending
            or self._datagrams_pending
            or self._retire_connection_ids
            or not path.is_validated
            or path.remote_challenges
            or not self._application_crypto.sender.buffer_is_empty
        ):
            return False
        for cid in self._host_cids:
            if not cid.was_sent:
                return False
        for stream in self._streams_queue:
            sender, receiver = stream.sender, stream.receiver
            if (
                sender.reset_pending
                or receiver.stop_pending
                or (sender.is_finished and receiver.is_finished)
            ):
                return False
        return True

    @property
    def _has_limits_to_write(self) -> bool:
        """Whether MAX_DATA, MAX_STREAMS or MAX_STREAM_DATA may have to be sent."""
        if self._receiving.has_read:
            return True
        data, bidi = self._local_max_data, self._local_max_streams_bidi
        uni = self._local_max_streams_uni
        return data.value != data.sent or bidi.value != bidi.sent or uni.value != uni.sent

    def _waiting(self) -> list[QuicStream]:
        """Streams with data to be sent, in the order in which they are served."""
        return [
            stream
            for stream in self._streams_queue
            if not stream.sender.buffer_is_empty and not stream.is_blocked
        ]

    def _write_application(
        self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, now: float
    ) -> None:
        """See `QuicConnection._write_application`, which looks at every stream three times for each
        packet, and begins one packet more than is sent. This one does neither."""
        if not self._is_plain(network_path):
            super()._write_application(builder, network_path, now)
            return
        space, crypto = self._application_space, self._cryptos[Epoch.ONE_RTT]
        waiting = self._waiting()
        while True:
            # Acknowledgements are not paced.
            if space.ack_at is None or space.ack_at >= now:
                self._pacing_at = self._loss._pacer.next_send_time(now=now)
                if self._pacing_at is not None:
                    return
            has_ack = space.ack_at is not None and space.ack_at <= now
            has_limits = self._has_limits_to_write
            if not (waiting or has_ack or has_limits):
                return
            builder.start_packet(QuicPacketType.ONE_RTT, crypto)
            if has_ack:
                self._write_ack_frame(builder=builder, space=space, now=now)
            if has_limits:
                self._write_connection_limits(builder=builder, space=space)
                for stream in self._streams.values():
                    self._write_stream_limits(builder=builder, space=space, stream=stream)
                self._receiving.has_read = False
            waiting = self._write_streams(builder, space, waiting)
            if builder.packet_is_empty:
                return
            self._loss._pacer.update_after_send(now=now)

    def _write_streams(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, waiting: list[QuicStream]
    ) -> list[QuicStream]:
        """Data of these streams, in this order, as much as the packet takes; returns those that
        still wait. Where some do, those that were served go behind them."""
        served = list[QuicStream]()
        try:
            for stream in waiting:
                if builder.remaining_flight_space < _LEAST_STREAM_FRAME_BYTES:
                    break
                sender = stream.sender
                most = sender.highest_offset + self._remote_max_data - self._remote_max_data_used
                most = min(most, stream.max_stream_data_remote)
                if isinstance(sender, BoundedSender) and sender.num_new:
                    used = _write_new(builder, stream.stream_id or 0, sender, most)
                else:
                    used = self._write_stream_frame(
                        builder=builder, space=space, stream=stream, max_offset=most
                    )
                    # aioquic finds this out when it next looks for something to send.
                    sender.buffer_is_empty = not (len(sender._pending) or sender._pending_eof)
                self._remote_max_data_used += used
                if used:
                    served.append(stream)
        finally:
            left = [stream for stream in waiting if not stream.sender.buffer_is_empty]
            if left and served:
                # By identity: streams are compared by what is in them.
                numbers = {id(stream) for stream in served}
                rest = [stream for stream in self._streams_queue if id(stream) not in numbers]
                self._streams_queue = [*rest, *served]
                left = [stream for stream in left if id(stream) not in numbers] + [
                    stream for stream in left if id(stream) in numbers
                ]
        return left

    def _on_max_stream_data_delivery(self, delivery: QuicDeliveryState, stream: QuicStream) -> None:
        super()._on_max_stream_data_delivery(delivery, stream)
        if delivery != QuicDeliveryState.ACKED:
            self._receiving.has_read = True

    def _sweep(self, space: QuicPacketSpace) -> None:
        # Packets of nothing but acknowledgements are not in flight, and a peer that never
        # acknowledges them makes them pile up. Nothing needs to know when one has arrived.
        for number in [n for n, packet in space.sent_packets.items() if not packet.in_flight]:
            del space.sent_packets[number]
        # What is in flight is bounded by the congestion window; it is not searched each time.
        self._next_sweep = max(_MAX_SENT_PACKETS, 2 * len(space.sent_packets))

    def _counted(self, handler: Callable[..., None]) -> Callable[..., None]:
        def handle(context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
            if not self._frames_left:
                if not self._frames.take(_FRAMES_AT_ONCE, self._now):
                    raise excessive(frame_type, "too many frames")
                self._frames_left = _FRAMES_AT_ONCE
            self._frames_left -= 1
            handler(context, frame_type, buf)

        return handle

    def _take_ticket(self, label: bytes) -> SessionTicket | None:
        store = (self._tickets or {}).get(self.application_protocol)
        return None if store is None else store.take(label)

    def _add_ticket(self, ticket: SessionTicket) -> None:
        store = (self._tickets or {}).get(self.application_protocol)
        if store is not None:
            store.add(ticket)

    def _alpn_handler(self, alpn_protocol: str) -> None:
        protocol = self._limits.protocols.get(alpn_protocol, _DEFAULT_PROTOCOL)
        self._protocol = protocol
        self._local_max_stream_data_bidi_remote = protocol.stream_window_bytes
        self._local_max_stream_data_uni = protocol.unidirectional_window_bytes
        limit = self._local_max_streams_uni
        limit.value = limit.sent = protocol.max_unidirectional_streams
        # The parameters were written with the handshake's beginning, before the client had chosen.
        self.tls.handshake_extensions = [
            (ExtensionType.QUIC_TRANSPORT_PARAMETERS, self._serialize_transport_parameters())
        ]
        super()._alpn_handler(alpn_protocol)

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        for stream in self._crypto_streams.values():
            # CRYPTO frames do not count in flow control.
            stream.receiver = CryptoReceiver(ReceiveState(self._receiving.budget))
        # Found here once: a lookup by Epoch hashes its name, in Python.
        self._application_space = self._spaces[Epoch.ONE_RTT]
        self._application_crypto = self._crypto_streams[Epoch.ONE_RTT]

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        num_opened = self._num_opened
        stream = super()._get_or_create_stream(frame_type, stream_id)
        is_peers = stream_is_client_initiated(stream_id)
        if is_peers and not isinstance(stream.receiver, BoundedReceiver):
            # One that was opened by a higher stream ID (RFC 9000, section 2.1) comes here later.
            limit = self._limits.max_fragments
            stream.receiver = BoundedReceiver(stream_id, self._receiving, limit)
            writable = not stream_is_unidirectional(stream_id)
            stream.sender = BoundedSender(stream_id, writable=writable)
        num_opened = self._num_opened - num_opened
        if num_opened and not self._opened.take(num_opened, self._now):
            raise excessive(frame_type, "too many streams")
        return stream

    def _handle_new_connection_id_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        super()._handle_new_connection_id_frame(context, frame_type, buf)
        if len(self._peer_cid_sequence_numbers) > _MAX_PEER_CONNECTION_IDS:
            raise excessive(frame_type, "too many connection IDs")

    def _replenish_connection_ids(self) -> None:
        num_before = len(self._host_cids)
        if self._ids is None:
            super()._replenish_connection_ids()
        else:
            most = min(_MAX_ISSUED_IDS, self._remote_active_connection_id_limit)
            while len(self._host_cids) < most:
                self._issue(self._ids, was_sent=False)
        # aioquic tells of an ID once it is written, which the routes would hear of with the next
        # datagram: one of a client that moved uses the ID already, and would find no connection.
        for cid in self._host_cids[num_before:]:
            self._events.append(ConnectionIdIssued(connection_id=cid.cid))

    def _issue(self, ids: ConnectionIds, *, was_sent: bool) -> QuicConnectionId:
        cid = ids.new(self._configuration.connection_id_length)
        issued = QuicConnectionId(cid, self._host_cid_seq, ids.reset_token(cid), was_sent)
        self._host_cids.append(issued)
        self._host_cid_seq += 1
        return issued

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        """MAX_DATA is what was read plus a window; it is sent when it can grow by half a window."""
        data, window = self._local_max_data, self._limits.connection_window_bytes
        granted = data.used - self._receiving.num_unread_bytes + window
        if 2 * (granted - data.value) >= window:
            data.value = granted
        self._write_limit(builder, data)
        for streams in (self._local_max_streams_bidi, self._local_max_streams_uni):
            # As aioquic does: when fewer are left to be opened than can be given.
            if streams.sent - streams.used < streams.value - streams.sent:
                self._write_limit(builder, streams)

    def _write_limit(self, builder: QuicPacketBuilder, limit: Limit) -> None:
        if limit.value == limit.sent:
            return
        buf = builder.start_frame(
            limit.frame_type,
            capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
            handler=self._on_connection_limit_delivery,
            handler_args=(limit,),
        )
        buf.push_uint_var(limit.value)
        limit.sent = limit.value

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        """MAX_STREAM_DATA, likewise; none for a stream that is received completely."""
        if stream.receiver.is_finished:
            return
        stream_id, protocol = stream.stream_id or 0, self._protocol
        window = protocol.stream_window_bytes
        if stream_is_unidirectional(stream_id):
            window = protocol.unidirectional_window_bytes
        granted = stream.receiver.starting_offset() - self._unread.get(stream_id, 0) + window
        if 2 * (granted - stream.max_stream_data_local) >= window:
            stream.max_stream_data_local = granted
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        buf = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        buf.push_uint_var(stream_id)
        buf.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local


def _write_new(
    builder: QuicPacketBuilder, stream_id: int, sender: BoundedSender, max_offset: int
) -> int:
    """Write a STREAM frame (RFC 9000, section 19.8) of data that was never sent, up to this offset
    and as much as the packet takes. Returns the number of bytes. Does what `_write_stream_frame`
    does, at half the cost."""
    start = sender.highest_offset
    overhead = 3 + size_uint_var(stream_id) + (size_uint_var(start) if start else 0)
    stop = min(
        start + sender.num_new, start + builder.remaining_flight_space - overhead, max_offset
    )
    if stop <= start:
        return 0
    buf = builder.start_frame(
        _STREAM_WITH_OFFSET if start else _STREAM,
        capacity=overhead,
        handler=sender.on_data_delivery,
        handler_args=(start, stop, False),
    )
    buf.push_uint_var(stream_id)
    if start:
        buf.push_uint_var(start)
    buf.push_uint16(stop - start | 0x4000)
    buf.push_bytes(sender.take_new(stop))
    return stop - start


def _ignore(*args: object) -> None:
    """An ended connection has no IDs, and ends once."""


class ConnectionProtocol(QuicConnectionProtocol):
    """aioquic's asyncio protocol, with names for what it keeps private."""

    def __init__(
        self,
        quic: BoundedConnection,
        *,
        on_id_issued: Callable[[bytes], None],
        on_id_retired: Callable[[bytes], None],
        on_terminated: Callable[[], None],
    ) -> None:
        super().__init__(quic)
        self.quic = quic
        self._armed_at = 0.0
        """Loop time at which `_timer` runs out, if it is set."""
        self._connection_id_issued_handler = on_id_issued
        self._connection_id_retired_handler = on_id_retired
        self._connection_terminated_handler = on_terminated

    def transmit_soon(self) -> None:
        """Send what is queued once this turn of the loop is over: frames share datagrams."""
        self._transmit_soon()

    def transmit(self) -> None:
        """See `QuicConnectionProtocol.transmit`. The timer is moved only to an earlier time: the
        due time moves back with nearly every packet, and an early call costs less than another
        timer."""
        self._transmit_task = None
        now = self._loop.time()
        assert self._transport is not None
        for data, address in self.quic.datagrams_to_send(now):
            self._transport.sendto(data, address)
        self.watch_timer()

    def watch_timer(self) -> None:
        """Something happened behind which nothing is sent."""
        at = self._timer_at = self.quic.get_timer()
        if self._timer is not None and (at is None or at < self._armed_at):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at is not None:
            self._armed_at = at
            self._timer = self._loop.call_at(at, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        # Anew: an acknowledgement may have come since, and with what was due then a probe would be
        # sent.
        at, now = self.quic.get_timer(), self._loop.time()
        if at is not None and at <= now + _TIMER_GRANULARITY_S:
            self.quic.handle_timer(max(at, now))
            self._process_events()
            self.transmit()
        else:
            self.watch_timer()

    def process_events(self) -> None:
        """Pass the events of the connection to `quic_event_received`."""
        self._process_events()

    def break_cycles(self) -> None:
        """It has ended: remove the references to itself."""
        self.quic.break_cycles()
        self._connection_id_issued_handler = _ignore
        self._connection_id_retired_handler = _ignore
        self._connection_terminated_handler = _ignore
