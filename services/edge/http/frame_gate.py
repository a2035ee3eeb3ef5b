"""Which bytes of a connection are parsed next, and when an HTTP/2 client has sent too many frames
without data (pure).

Parsing a frame takes some 5 to 30 us in Python, reading its header of 9 bytes 1 us. So frames are
counted before they are parsed, and a client that exceeds its budget is refused before its further
frames cost anything. Attacks of this kind: floods of PING, SETTINGS, resets and empty frames
(CVE-2019-9512, -9514, -9515, -9518), rapid reset (CVE-2023-44487), streams that the client makes
the server reset (CVE-2025-8671), CONTINUATION (VU#421644).

Other servers: nginx closes a connection whose bytes exceed eight times its payloads plus 8 MiB, or
that opens more than twice its concurrent streams in one pass of the loop
(src/http/v2/ngx_http_v2.c); Go's net/http2 when 10,000 answers to control frames are queued
(maxQueuedControlFrames) and when four times as many streams as allowed were reset before they
began; Rust's h2, of hyper, after 20 resets of streams that were not looked at
(DEFAULT_REMOTE_RESET_STREAM_MAX) and 1,024 of its own (DEFAULT_LOCAL_RESET_COUNT_MAX); Envoy lets
10 WINDOW_UPDATE frames follow a DATA frame (max_inbound_window_update_frames_per_data_frame_sent).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from outrider.errors import (
    FrameTooLargeError,
    HeadTooLargeError,
    OutriderError,
    OverloadedError,
)
from services.edge.limits.quotas import RateLimit, TokenBucket

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's first bytes in HTTP/2 (RFC 9113, section 3.4)."""
BURST_S: Final = 10.0
"""Seconds' worth of frames that may come at once."""
MAX_FRAME_BYTES: Final = 1 << 14
"""Longest payload, HTTP/2's default (RFC 9113, section 4.2). The parser, h2, would hold a larger
frame whole before it refuses it: up to 16 MiB."""
PIECE_WEIGHT: Final = 32
"""Frames that are parsed in one turn: 0.2 to 0.3 ms."""
HTTP1_PIECE_BYTES: Final = 1 << 13
"""Most bytes of HTTP/1.1 parsed in one turn: 6 ms at most, with chunks of one byte."""

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 8, 9
_END_STREAM, _END_HEADERS, _PADDED = 0x1, 0x4, 0x8
_HEADER: Final = struct.Struct(">HBBBI")
"""Length (two fields), type, flags, stream (RFC 9113, section 4.1)."""
_SMALL_BYTES: Final = 64
"""A DATA frame with less is counted; of control frames each further so many bytes count as one."""
_PRIORITY_COST: Final = 10
"""Each may add to a tree that is walked for every frame sent. RFC 9113, section 5.3.2, has dropped
them; a browser that still sends some sends six."""
_UPDATES_PER_DATA: Final = 4
"""WINDOW_UPDATE frames that are free for a DATA frame sent; simple clients send two."""
_MAX_CREDIT: Final = 4096
"""Most credit of free frames."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one HTTP/2 connection."""

    control_frames_per_s: float = 100.0
    """PING, SETTINGS, PRIORITY, CONTINUATION, unknown frames, WINDOW_UPDATE beyond four for a DATA
    frame sent, and DATA of less than 64 bytes or padded (but the last of each request, and one for
    each DATA frame sent)."""
    resets_per_s: float = 20.0
    """Streams that the client resets, or makes the server reset."""
    burst_s: float = BURST_S
    max_header_bytes: int = 16 << 10
    """Longest block of headers, compressed."""


class FrameGate:
    """One connection's bytes, in pieces that take about the same time. HTTP/1 passes unseen, a few
    KiB at a time. Times in seconds."""

    def __init__(self, limits: FrameLimits, now: float) -> None:
        self._limits = limits
        self._control = _bucket(limits.control_frames_per_s, limits.burst_s, now)
        self._resets = _bucket(limits.resets_per_s, limits.burst_s, now)
        self._is_http2: bool | None = None
        """None: not known yet from the first bytes."""
        self._data = b""
        self._at = 0
        """Before it, `_data` has been given out."""
        self._header = b""
        """The part of a frame's header that has come."""
        self._payload_bytes = 0
        """Bytes still to come of the present frame's payload."""
        self._block_bytes = 0
        """Bytes of the present block of headers."""
        self._free_updates = 0
        self._free_answers = 0
        """Small DATA frames that answer one sent: clients that draft send a few ids for each."""
        self._free_ends = 0
        """Small DATA frames that may end a request."""
        self._has_reset_too_many = False
        self._refusal: OutriderError | None = None

    def forget(self) -> None:
        """Let go of what came and was not taken: nothing more is."""
        self._data = self._header = b""
        self._at = 0

    @property
    def is_http2(self) -> bool:
        """Whether the connection began with the preface of HTTP/2, byte for byte."""
        return bool(self._is_http2)

    @property
    def is_empty(self) -> bool:
        """Whether more has to be received."""
        return self._at == len(self._data) or (
            self._is_http2 is None and not self._tell(self._data[: len(PREFACE)])
        )

    def receive(self, data: bytes) -> None:
        """Add received bytes. Call it only when the gate is empty."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def next_piece(self, now: float) -> bytes:
        """The bytes to parse in this turn. Call it only when the gate is not empty. Once everything
        before the violation has passed, raises OverloadedError, FrameTooLargeError or
        HeadTooLargeError, and the connection must be closed."""
        if self._refusal is not None:
            raise self._refusal
        begin = self._at
        if not self._is_http2:
            self._at = min(len(self._data), begin + HTTP1_PIECE_BYTES)
        else:
            self._scan(now)
        return self._data[begin : self._at]

    def sent(self, data: bytes, now: float) -> None:
        """Whole frames were sent."""
        if not self._is_http2:
            return
        at = 0
        while at + _HEADER.size <= len(data):
            high, low, kind, _, _ = _HEADER.unpack_from(data, at)
            at += _HEADER.size + (high << 8 | low)
            if kind == _DATA:
                self._free_updates = min(self._free_updates + _UPDATES_PER_DATA, _MAX_CREDIT)
                self._free_answers = min(self._free_answers + 1, _MAX_CREDIT)
            elif kind == _RST_STREAM and not self._resets.take(1, now):
                self._has_reset_too_many = True

    def _tell(self, beginning: bytes) -> bool:
        """Whether the first bytes identify the protocol, which is then recorded."""
        if beginning == PREFACE:
            self._is_http2 = True
            self._payload_bytes = len(PREFACE)  # no frame, but passes like a payload
        elif not PREFACE.startswith(beginning):
            self._is_http2 = False
        return self._is_http2 is not None

    def _scan(self, now: float) -> None:
        data, at = self._data, self._at
        weight = 0
        while at < len(data) and (self._payload_bytes or weight < PIECE_WEIGHT):
            if self._payload_bytes:
                passed = min(self._payload_bytes, len(data) - at)
                self._payload_bytes -= passed
                at += passed
                continue
            header = self._header + data[at : at + _HEADER.size - len(self._header)]
            end = at + len(header) - len(self._header)
            if len(header) < _HEADER.size:
                self._header, at = header, end
                break
            high, low, kind, flags, _ = _HEADER.unpack(header)
            try:
                self._count(kind, flags, high << 8 | low, now)
            except OutriderError as error:
                if at == self._at:
                    raise
                self._refusal = error
                break
            self._header, at = b"", end
            self._payload_bytes = high << 8 | low
            weight += PIECE_WEIGHT if kind == _HEADERS else 1
        self._at = at

    def _count(self, kind: int, flags: int, num_bytes: int, now: float) -> None:
        if num_bytes > MAX_FRAME_BYTES:
            raise FrameTooLargeError(f"frames have at most {MAX_FRAME_BYTES} bytes of payload")
        if kind == _DATA:
            if num_bytes < _SMALL_BYTES or flags & _PADDED:
                if flags & _END_STREAM and self._free_ends:
                    self._free_ends -= 1
                elif self._free_answers:
                    self._free_answers -= 1
                else:
                    self._spend_control(1, now)
        elif kind == _HEADERS:
            self._free_ends = min(self._free_ends + 1, _MAX_CREDIT)
            self._block_bytes = 0
            self._count_block(num_bytes)
        elif kind == _CONTINUATION:
            self._spend_control(1, now)
            self._count_block(num_bytes)
        elif kind == _RST_STREAM:
            if not self._resets.take(1, now):
                self._has_reset_too_many = True
        elif kind == _PRIORITY:
            self._spend_control(_PRIORITY_COST, now)
        elif kind == _WINDOW_UPDATE and self._free_updates:
            self._free_updates -= 1
        else:
            self._spend_control(1 + num_bytes // _SMALL_BYTES, now)
        if self._has_reset_too_many:
            raise OverloadedError(
                f"more than {self._limits.resets_per_s:g} streams a second of this connection were "
                "reset; keep a connection to each server, and cancel less often"
            )

    def _count_block(self, num_bytes: int) -> None:
        self._block_bytes += num_bytes
        if self._block_bytes > self._limits.max_header_bytes:
            raise HeadTooLargeError(
                f"the headers of a request have at most {self._limits.max_header_bytes} bytes; "
                "shorten them"
            )

    def _spend_control(self, num: int, now: float) -> None:
        if not self._control.take(num, now):
            raise OverloadedError(
                f"more than {self._limits.control_frames_per_s:g} frames a second of this "
                "connection carried no data; send fewer, and larger ones"
            )


def _bucket(per_s: float, burst_s: float, now: float) -> TokenBucket:
    return TokenBucket(RateLimit(per_s, per_s * burst_s), now)
