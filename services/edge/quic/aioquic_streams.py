"""Streams of aioquic with bounds on what a peer can make them hold or search: the half of
`aioquic_shim` that knows no connection."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.events import StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import FinalSizeError, QuicStreamReceiver, QuicStreamSender

from services.edge.limits.listener import MemoryBudget

_FRAGMENT_BYTES: Final = 128
"""Memory of a fragment besides its data: two objects and their places in two lists."""
_CRYPTO_WINDOW_BYTES: Final = 16_384
"""Most bytes of the handshake ahead of those that TLS has read; at least 4096 (RFC 9000, section
7.5)."""
_MAX_CRYPTO_BYTES: Final = 65_536
"""Handshake messages at each encryption level; TLS copies an unfinished one with each piece."""
_MAX_CRYPTO_FRAGMENTS: Final = 128
_MAX_SEND_RANGES: Final = 1024
"""Separate ranges of one stream that are acknowledged, or to be sent again. An honest peer causes
as many as packets were lost at a time."""


def excessive(frame_type: int, what: str) -> QuicConnectionError:
    """The error that ends the connection of a peer that asks for too much; `what` is its reason."""
    # RFC 9000 has no code for excessive load; section 20.1 has INTERNAL_ERROR for an endpoint that
    # cannot continue with a connection.
    return QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, frame_type, what)


class ReceiveState:
    """State shared by all receivers of a connection."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.num_unread_bytes = 0
        """Bytes up to the highest offsets received that are not read yet; flow control counts
        them."""
        self.has_read = True
        """Whether data came, or was read, since limits were written last."""


class BoundedReceiver(QuicStreamReceiver):
    """Keeps fragments that came out of order in a sorted list: gaps take no memory, and a
    fragment's place is found by binary search."""

    def __init__(
        self,
        stream_id: int,
        shared: ReceiveState,
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
        """Pieces received out of order."""
        return len(self._offsets)

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """See `QuicStreamReceiver.handle_frame`. Raises FinalSizeError for a contradictory final
        size, QuicConnectionError for too many fragments."""
        self._shared.has_read = True
        end = frame.offset + len(frame.data)
        is_next = frame.offset == self._buffer_start == self.highest_offset < end
        if is_next and not frame.fin and self._final_size is None:  # as nearly all are
            self._buffer_start = self.highest_offset = end
            return StreamDataReceived(data=frame.data, end_stream=False, stream_id=self.stream_id)
        self._check_final_size(end, frame.fin)
        if self.is_finished:
            return None
        if end > self.highest_offset:
            self._shared.num_unread_bytes += end - self.highest_offset
            self.highest_offset = end
        data = self._next(frame.offset, frame.data)
        self._buffer_start += len(data)
        self._shared.num_unread_bytes -= len(data)
        self.is_finished = self._buffer_start == self._final_size
        if not data and not self.is_finished:
            return None
        return StreamDataReceived(data=data, end_stream=self.is_finished, stream_id=self.stream_id)

    def handle_reset(
        self, *, final_size: int, error_code: int = QuicErrorCode.NO_ERROR
    ) -> StreamReset | None:
        """See `QuicStreamReceiver.handle_reset`. Fragments are dropped."""
        self._shared.has_read = True
        unread = 0 if self.is_finished else self.highest_offset - self._buffer_start
        event = super().handle_reset(final_size=final_size, error_code=error_code)
        if event is not None:
            self._shared.num_unread_bytes -= unread
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
        """The bytes that can be read, now that these came."""
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
        """`data`, which is next, and the fragments that follow it without a gap."""
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
        """Insert a fragment: in place of those that it covers, and without bytes that are there
        already. Raises QuicConnectionError when there is no room."""
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
            raise excessive(self._frame_type, "too many fragments of a stream")
        covered = sum(map(len, self._pieces[at:until])) + (until - at) * _FRAGMENT_BYTES
        if not self._shared.budget.take(end - start + _FRAGMENT_BYTES):
            raise excessive(self._frame_type, "no room for more that is out of order")
        self._shared.budget.give_back(covered)
        self._offsets[at:until] = [start]
        self._pieces[at:until] = [data[start - offset : end - offset]]


class CryptoReceiver(BoundedReceiver):
    """The same for CRYPTO frames, which flow control does not bound."""

    def __init__(self, shared: ReceiveState) -> None:
        super().__init__(0, shared, _MAX_CRYPTO_FRAGMENTS, QuicFrameType.CRYPTO)

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """See `QuicStreamReceiver.handle_frame`. Raises QuicConnectionError for data beyond the
        window (RFC 9000, section 7.5)."""
        end = frame.offset + len(frame.data)
        if end > min(self._buffer_start + _CRYPTO_WINDOW_BYTES, _MAX_CRYPTO_BYTES):
            raise QuicConnectionError(
                QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, QuicFrameType.CRYPTO, "too much of CRYPTO"
            )
        return super().handle_frame(frame)


class BoundedSender(QuicStreamSender):
    """Closes the connection of a peer that acknowledges a stream in many separate ranges: aioquic
    searches them from the first one on.

    While nothing of a stream was lost, what is to be sent is what was written and never sent, and
    what is acknowledged is the beginning of what was not. aioquic keeps ranges of both at four
    times the cost; they are made here when something asks for them."""

    def __init__(self, stream_id: int | None, writable: bool) -> None:
        super().__init__(stream_id, writable)
        self._has_ranges = False
        """Whether `_pending` holds the ranges to send."""
        self._has_acked_ranges = False

    @property
    def num_new(self) -> int:
        """Number of bytes never sent, if nothing else is to be sent; 0: `get_frame` gives the next
        frame."""
        return 0 if self._has_ranges else self._buffer_stop - self.highest_offset

    def take_new(self, stop: int) -> bytes:
        """Take the data up to offset `stop` that was never sent, and count it as sent. At most
        `num_new` bytes."""
        begin = self._buffer_start
        data = bytes(self._buffer[self.highest_offset - begin : stop - begin])
        self.highest_offset = stop
        self.buffer_is_empty = stop == self._buffer_stop
        return data

    @property
    def next_offset(self) -> int:
        """See `QuicStreamSender.next_offset`."""
        self._make_ranges()
        return super().next_offset

    def get_frame(self, max_size: int, max_offset: int | None = None) -> QuicStreamFrame | None:
        """See `QuicStreamSender.get_frame`."""
        self._make_ranges()
        frame = super().get_frame(max_size, max_offset)
        self._has_ranges = bool(len(self._pending)) or self._pending_eof
        return frame

    def write(self, data: bytes, end_stream: bool = False) -> None:
        """See `QuicStreamSender.write`."""
        if (
            self._has_ranges
            or end_stream
            or self._buffer_fin is not None
            or self._reset_error_code is not None
        ):
            self._make_ranges()
            super().write(data, end_stream)
        elif data:
            self.buffer_is_empty = False
            self._buffer += data
            self._buffer_stop += len(data)

    def on_data_delivery(
        self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool
    ) -> None:
        """See `QuicStreamSender.on_data_delivery`. Raises QuicConnectionError for acknowledgements
        with too many ranges; never for a loss, which timers detect too, where nothing would catch
        it."""
        is_acked = delivery is QuicDeliveryState.ACKED
        if (
            is_acked
            and start == self._buffer_start
            and self._buffer_fin is None
            and self._reset_error_code is None
            and not self._has_acked_ranges
        ):
            self._buffer_start = stop
            del self._buffer[: stop - start]
            return
        if not is_acked:
            self._make_ranges()
        super().on_data_delivery(delivery, start, stop, fin)
        self._has_acked_ranges = len(self._acked) > 0
        if is_acked and (
            len(self._acked) > _MAX_SEND_RANGES or len(self._pending) > _MAX_SEND_RANGES
        ):
            raise excessive(QuicFrameType.ACK, "too many ranges of a stream")

    def reset(self, error_code: int) -> None:
        """See `QuicStreamSender.reset`. Unacknowledged data is dropped: it is not sent again."""
        super().reset(error_code)
        if self._reset_error_code is not None:
            self._buffer.clear()
            self._pending = RangeSet()
            self._pending_eof = False
            self._has_ranges = True

    def _make_ranges(self) -> None:
        if not self._has_ranges:
            self._has_ranges = True
            if self._buffer_stop > self.highest_offset:
                self._pending.add(self.highest_offset, self._buffer_stop)
