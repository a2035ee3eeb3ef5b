"""aioquic's connection within bounds: no peer makes it hold or look at more than it is worth.

aioquic 1.7.2 as it is doubles its receive windows whenever half of one was used, by the highest
offset that came, and allocates every gap before it; it looks for a fragment's place from the first
one on; it keeps every packet of acknowledgements until the peer acknowledges it, which no peer has
to. RFC 9000, section 21 has the attacks (21.6 on commitment of streams, 21.7 on fragments and
reassembly). What it bounds itself and is not repeated here: ranges to acknowledge, answers to
PATH_CHALLENGE, paths, connection ids in use and to be retired.

Overrides private methods, so it is pinned to one version (`check_version`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aioquic
from aioquic._buffer import Buffer
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    NetworkAddress,
    QuicConnection,
    QuicConnectionError,
    QuicReceiveContext,
)
from aioquic.quic.events import StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import FinalSizeError, QuicStream, QuicStreamReceiver, QuicStreamSender

from outrider.errors import ConfigError
from services.edge.quic.budget import Budget
from services.edge.quotas import RateLimit, TokenBucket

AIOQUIC_VERSION: Final = "1.7.2"
_FRAGMENT_BYTES: Final = 128
"""Of a fragment that waits, besides its data: two objects and their places in two lists."""
_CRYPTO_WINDOW_BYTES: Final = 16_384
"""Ahead of what TLS has read. At least 4096 (RFC 9000, section 7.5)."""
_MAX_CRYPTO_BYTES: Final = 65_536
"""Of the handshake's messages at each level; TLS copies an unfinished one with each piece."""
_MAX_CRYPTO_FRAGMENTS: Final = 128
_MAX_SENT_PACKETS: Final = 1024
"""Beyond, packets that hold nothing but acknowledgements are forgotten."""
_LOOK_EVERY_PACKETS: Final = 64
_FRAMES_AT_ONCE: Final = 64
"""Taken from the rate in one go, which costs as much as for one."""
_MAX_SEND_RANGES: Final = 1024
"""Of one stream, acknowledged or to be sent again, not in one piece. A sender of honest windows has
as many as packets were lost at a time."""
_MAX_PEER_CONNECTION_IDS: Final = 1024
"""That a peer gave without taking earlier ones back."""
_STREAMS: Final = RateLimit(per_s=200.0, burst=1000.0)
_FRAMES: Final = RateLimit(per_s=10_000.0, burst=30_000.0)


@dataclass(frozen=True, slots=True)
class QuicLimits:
    """Of one connection."""

    stream_window_bytes: int = 1 << 20
    """A stream may be so far ahead of what the edge has read of it; 0-RTT is sent by the same
    figures, so they may not shrink between an edge and its successor (RFC 9000, section
    7.4.1)..."""
    connection_window_bytes: int = 1 << 20
    """...and all of a connection's streams together."""
    max_fragments: int = 2048
    """Pieces of one stream that wait for one before them. A lost datagram at the front of a whole
    window leaves some 950."""
    max_streams: int = 96
    """Open at a time; those of one direction are refused, nothing uses them."""
    streams: RateLimit = _STREAMS
    """Opened; those that are reset at once as well."""
    frames: RateLimit = _FRAMES
    """Looked at, at some 10 us each. An upload has one per 1200 bytes, a reader of 64 chats some
    1500 per second."""


def check_version() -> None:
    """Raises ConfigError for another aioquic than this file was written for."""
    if aioquic.__version__ != AIOQUIC_VERSION:
        raise ConfigError(
            f"the edge needs aioquic {AIOQUIC_VERSION}, not {aioquic.__version__}: its bounds "
            "against hostile clients hold on to that version's inside; install that one"
        )


def _excessive(frame_type: int, what: str) -> QuicConnectionError:
    # RFC 9000 has no code for excessive load; section 20.1 leaves INTERNAL_ERROR for who cannot
    # go on with a connection.
    return QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, frame_type, what)


class Receiving:
    """What all receivers of a connection share."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.unread = 0
        """By the highest offsets that came: what of flow control is not read yet."""


class BoundedReceiver(QuicStreamReceiver):
    """Keeps what came out of order as it came, sorted: no gap costs anything, and a fragment's
    place is found by halves."""

    def __init__(
        self,
        stream_id: int,
        shared: Receiving,
        max_fragments: int,
        frame_type: int = QuicFrameType.STREAM_BASE,
    ) -> None:
        super().__init__(stream_id, readable=True)
        self.stream_id = stream_id
        self._shared = shared
        self._max_fragments = max_fragments
        self._frame_type = frame_type
        self._offsets: list[int] = []
        self._pieces: list[bytes] = []

    @property
    def num_fragments(self) -> int:
        """Pieces that wait for one before them."""
        return len(self._offsets)

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """As QuicStreamReceiver. Raises FinalSizeError, QuicConnectionError."""
        end = frame.offset + len(frame.data)
        is_next = frame.offset == self._buffer_start == self.highest_offset < end
        if is_next and not frame.fin and self._final_size is None:  # as nearly all are
            self._buffer_start = self.highest_offset = end
            return StreamDataReceived(data=frame.data, end_stream=False, stream_id=self.stream_id)
        self._check_final_size(end, frame.fin)
        if self.is_finished:
            return None
        if end > self.highest_offset:
            self._shared.unread += end - self.highest_offset
            self.highest_offset = end
        data = self._next(frame.offset, frame.data)
        self._buffer_start += len(data)
        self._shared.unread -= len(data)
        self.is_finished = self._buffer_start == self._final_size
        if not data and not self.is_finished:
            return None
        return StreamDataReceived(data=data, end_stream=self.is_finished, stream_id=self.stream_id)

    def handle_reset(
        self, *, final_size: int, error_code: int = QuicErrorCode.NO_ERROR
    ) -> StreamReset | None:
        """As QuicStreamReceiver; what waited is let go."""
        unread = 0 if self.is_finished else self.highest_offset - self._buffer_start
        event = super().handle_reset(final_size=final_size, error_code=error_code)
        if event is not None:
            self._shared.unread -= unread
            self._forget(len(self._offsets))
        return event

    def _check_final_size(self, end: int, fin: bool) -> None:
        # RFC 9000, section 4.5
        if self._final_size is not None and (
            end > self._final_size or (fin and end != self._final_size)
        ):
            raise FinalSizeError("the final size of a stream cannot change")
        if fin:
            if end < self.highest_offset:
                raise FinalSizeError("data came beyond the final size")
            self._final_size = end

    def _next(self, offset: int, data: bytes) -> bytes:
        """What can be read now that these bytes came."""
        if offset < self._buffer_start:
            data = data[self._buffer_start - offset :]
            offset = self._buffer_start
        if not data:
            return b""
        if offset > self._buffer_start:
            self._keep(offset, data)
            return b""
        if not self._offsets:
            return data
        return self._join(data)

    def _join(self, data: bytes) -> bytes:
        """`data` is next; what waits right behind it is, too."""
        parts, end, taken = [data], self._buffer_start + len(data), 0
        for offset, piece in zip(self._offsets, self._pieces, strict=True):
            if offset > end:
                break
            taken += 1
            fresh = piece[end - offset :]
            parts.append(fresh)
            end += len(fresh)
        self._forget(taken)
        return b"".join(parts)

    def _forget(self, num: int) -> None:
        held = sum(map(len, self._pieces[:num])) + num * _FRAGMENT_BYTES
        self._shared.budget.give_back(held)
        del self._offsets[:num], self._pieces[:num]

    def _keep(self, offset: int, data: bytes) -> None:
        """Put `data` among those that wait: in place of those that it covers, and without what is
        there already. Raises QuicConnectionError when there is no room."""
        start, end = offset, offset + len(data)
        at = bisect_left(self._offsets, offset)
        if at:
            start = max(start, self._offsets[at - 1] + len(self._pieces[at - 1]))
        until, num = at, len(self._offsets)
        while until < num and self._offsets[until] + len(self._pieces[until]) <= end:
            until += 1
        if until < num:
            end = min(end, self._offsets[until])
        if start >= end:
            return
        if num + 1 - (until - at) > self._max_fragments:
            raise _excessive(self._frame_type, "too many fragments of a stream")
        covered = sum(map(len, self._pieces[at:until])) + (until - at) * _FRAGMENT_BYTES
        if not self._shared.budget.take(end - start + _FRAGMENT_BYTES):
            raise _excessive(self._frame_type, "no room for more that is out of order")
        self._shared.budget.give_back(covered)
        self._offsets[at:until] = [start]
        self._pieces[at:until] = [data[start - offset : end - offset]]


class CryptoReceiver(BoundedReceiver):
    """The same for CRYPTO, which no flow control bounds."""

    def __init__(self, shared: Receiving) -> None:
        super().__init__(0, shared, _MAX_CRYPTO_FRAGMENTS, QuicFrameType.CRYPTO)

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """As QuicStreamReceiver. Raises QuicConnectionError (RFC 9000, section 7.5)."""
        end = frame.offset + len(frame.data)
        if end > min(self._buffer_start + _CRYPTO_WINDOW_BYTES, _MAX_CRYPTO_BYTES):
            raise QuicConnectionError(
                QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, QuicFrameType.CRYPTO, "too much of CRYPTO"
            )
        return super().handle_frame(frame)


class BoundedSender(QuicStreamSender):
    """Ends who opens its window by single bytes and acknowledges every second of them: the ranges
    are looked through from the first one on."""

    def on_data_delivery(
        self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool
    ) -> None:
        """As QuicStreamSender. Raises QuicConnectionError, for an acknowledgement alone: loss is
        also found by timers, where nobody would catch it."""
        super().on_data_delivery(delivery, start, stop, fin)
        if delivery == QuicDeliveryState.ACKED and (
            len(self._acked) > _MAX_SEND_RANGES or len(self._pending) > _MAX_SEND_RANGES
        ):
            raise _excessive(QuicFrameType.ACK, "too many ranges of a stream")


def _nobody() -> None:
    """Whom an ended connection's timers ask for a probe."""


class BoundedConnection(QuicConnection):
    """A server's connection. What it holds for its peer is taken from `budget`; whoever owns it
    clears that when the connection has ended."""

    def __init__(self, *, limits: QuicLimits, budget: Budget, now: float, **settings: Any) -> None:
        """`settings` as QuicConnection has them."""
        super().__init__(**settings)
        self._limits = limits
        self._now = now
        self._receiving = Receiving(budget)
        self._frames = TokenBucket(limits.frames, now)
        self._opened = TokenBucket(limits.streams, now)
        self._next_sweep = _MAX_SENT_PACKETS
        self._look_at = 0
        self._frames_left = 0
        for limit, value in (
            (self._local_max_data, limits.connection_window_bytes),
            (self._local_max_streams_bidi, limits.max_streams),
            (self._local_max_streams_uni, 0),
        ):
            limit.value = limit.sent = value
        self._local_max_stream_data_bidi_remote = limits.stream_window_bytes
        self._frame_handlers: dict[int, tuple[Callable[..., None], Any]]
        self._frame_handlers = getattr(self, "_QuicConnection__frame_handlers")  # noqa: B009 (mangled)
        for kind, (handler, epochs) in self._frame_handlers.items():
            self._frame_handlers[kind] = self._counted(handler), epochs

    @property
    def num_unread_bytes(self) -> int:
        """Of flow control: bytes up to the highest offsets that are not read yet."""
        return self._receiving.unread

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """As QuicConnection."""
        self._now = now
        super().receive_datagram(data, addr, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """As QuicConnection."""
        datagrams = super().datagrams_to_send(now)
        if self._packet_number >= self._look_at:
            self._look_at = self._packet_number + _LOOK_EVERY_PACKETS
            for space in self._spaces.values():
                if len(space.sent_packets) > self._next_sweep:
                    self._sweep(space)
        return datagrams

    def let_go(self) -> None:
        """It has ended: what in it refers to itself is undone, so that it is freed at once. Left to
        a collection, the connections of an attack hold the loop for 100 ms per thousand."""
        self._frame_handlers.clear()
        self._cryptos.clear()
        self._cryptos_initial.clear()
        for space in self._spaces.values():
            space.sent_packets.clear()  # they know whom to tell of their delivery
        self._streams.clear()
        self._loss._send_probe = _nobody
        if hasattr(self, "tls"):  # not before the first packet was read
            for name, value in list(vars(self.tls).items()):
                if getattr(value, "__self__", None) is self:
                    setattr(self.tls, name, None)

    def _sweep(self, space: QuicPacketSpace) -> None:
        # A peer that never acknowledges gets acknowledgements all the same, and they do not count
        # as in flight. When one of them has arrived is of no use to anybody.
        for number in [n for n, packet in space.sent_packets.items() if not packet.in_flight]:
            del space.sent_packets[number]
        # What is in flight is bounded by the congestion window; it is not looked through each time.
        self._next_sweep = max(_MAX_SENT_PACKETS, 2 * len(space.sent_packets))

    def _counted(self, handler: Callable[..., None]) -> Callable[..., None]:
        def handle(context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
            if not self._frames_left:
                if not self._frames.take(_FRAMES_AT_ONCE, self._now):
                    raise _excessive(frame_type, "too many frames")
                self._frames_left = _FRAMES_AT_ONCE
            self._frames_left -= 1
            handler(context, frame_type, buf)

        return handle

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        for stream in self._crypto_streams.values():
            # Not of flow control: a figure of its own.
            stream.receiver = CryptoReceiver(Receiving(self._receiving.budget))

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        num_opened = self._local_max_streams_bidi.used
        stream = super()._get_or_create_stream(frame_type, stream_id)
        if not isinstance(stream.receiver, BoundedReceiver):
            # One that a higher one opened (RFC 9000, section 2.1) comes by here later.
            limit = self._limits.max_fragments
            stream.receiver = BoundedReceiver(stream_id, self._receiving, limit)
            stream.sender = BoundedSender(stream_id, writable=True)
        num_opened = self._local_max_streams_bidi.used - num_opened
        if num_opened and not self._opened.take(num_opened, self._now):
            raise _excessive(frame_type, "too many streams")
        return stream

    def _handle_new_connection_id_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        super()._handle_new_connection_id_frame(context, frame_type, buf)
        if len(self._peer_cid_sequence_numbers) > _MAX_PEER_CONNECTION_IDS:
            raise _excessive(frame_type, "too many connection IDs")

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        """MAX_DATA is what was read and a window; told when half of one more can be given."""
        data, window = self._local_max_data, self._limits.connection_window_bytes
        granted = data.used - self._receiving.unread + window
        if 2 * (granted - data.value) >= window:
            data.value = granted
        self._write_limit(builder, data)
        streams = self._local_max_streams_bidi
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
        """MAX_STREAM_DATA, likewise; nothing for a stream that has all it will get."""
        if stream.receiver.is_finished:
            return
        window = self._limits.stream_window_bytes
        granted = stream.receiver.starting_offset() + window
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
        buf.push_uint_var(stream.stream_id or 0)
        buf.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local
