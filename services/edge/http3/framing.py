"""HTTP/3 frames of one connection, with bounds that aioquic does not have. The only module that
uses private parts of aioquic.h3.

aioquic 1.7.2 by itself closes the connection for a malformed request, advertises and enforces no
limit of a header section, keeps any SETTINGS frame until it is whole, and lets the peer choose how
much memory QPACK's tables take. Here neither side uses a dynamic table (RFC 9204, section 3.2.3): a
table of 4 KiB would let each byte of a header section stand for 4 KiB, and it would only save a few
hundred bytes of headers per request.

Streams of WebTransport sessions are told by their first bytes (draft-ietf-webtrans-http3, section
4.3); what follows is no frame, and does not come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import (
    ErrorCode,
    FrameType,
    H3Connection,
    H3Stream,
    MessageError,
    ProtocolError,
    Setting,
    encode_frame,
)
from aioquic.h3.events import DataReceived, HeadersReceived, WebTransportStreamDataReceived
from aioquic.quic.events import StreamDataReceived

from services.edge.http3.exchange import (
    Action,
    H3Code,
    Reset,
    SendData,
    SendHeaders,
    SendTrailers,
    StopReading,
)
from services.edge.http3.messages import Headers, section_bytes
from services.edge.quic.aioquic_shim import BoundedConnection

_MAX_CONTROL_BYTES: Final = 4096
"""Longest incomplete control frame: SETTINGS are some 40 bytes."""
_FREE_FRAMES: Final = 1024
_MIN_FRAME_BYTES: Final = 64
"""Least body per frame of a request beyond _FREE_FRAMES. A frame takes some 3 us even if it is
nearly empty, and a stream may have 256 KiB to be read at once."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A header section, or the trailers of a request."""

    headers: Headers
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Body:
    """A piece of a request's body."""

    data: bytes
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Malformed:
    """The stream's bytes are no request: a stream error of type H3_MESSAGE_ERROR."""


@dataclass(frozen=True, slots=True)
class TooManyFields:
    """The header section is above the limit; it was not read."""


@dataclass(frozen=True, slots=True)
class SessionData:
    """The stream is no request, but of this WebTransport session."""

    session_id: int
    data: bytes
    has_ended: bool


FrameEvent: TypeAlias = Fields | Body | Malformed | TooManyFields | SessionData


class ConnectionFault(Exception):
    """The peer violated the protocol; the connection must be closed with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _TooManyFieldsError(ProtocolError):
    """Never leaves this module."""


class _StaticEncoder:
    """Compresses only with the static table, even if the peer offers a dynamic one."""

    def __init__(self) -> None:
        self._encoder = pylsqpack.Encoder()

    def apply_settings(self, max_table_capacity: int, blocked_streams: int) -> bytes:
        """Needs no instruction."""
        return b""

    def encode(self, stream_id: int, headers: Headers) -> tuple[bytes, bytes]:
        """Encode headers; see pylsqpack.Encoder."""
        return self._encoder.encode(stream_id, headers)

    def feed_decoder(self, data: bytes) -> None:
        """Feed the peer's decoder stream; see pylsqpack.Encoder."""
        self._encoder.feed_decoder(data)


class _BoundedH3(H3Connection):
    def __init__(
        self,
        quic: BoundedConnection,
        max_header_bytes: int,
        max_headers: int,
        more_settings: Mapping[int, int],
    ) -> None:
        self._more_settings = more_settings
        self._max_header_bytes = max_header_bytes
        self._max_headers = max_headers
        self.num_frames: dict[int, int] = {}
        """By request stream."""
        super().__init__(quic)

    def _init_connection(self) -> None:
        self._max_table_capacity = self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        self._encoder = _StaticEncoder()  # type: ignore[assignment]
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        return {
            Setting.MAX_FIELD_SECTION_SIZE: self._max_header_bytes,
            Setting.QPACK_MAX_TABLE_CAPACITY: 0,
            Setting.QPACK_BLOCKED_STREAMS: 0,
            Setting.DUMMY: 1,
            **self._more_settings,
        }

    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        super()._check_request_or_push_frame_type(frame_type, stream)
        if frame_type == FrameType.WEBTRANSPORT_STREAM:
            if not self._more_settings:
                raise ConnectionFault(
                    ErrorCode.H3_FRAME_UNEXPECTED, "there is no WebTransport here"
                )
            if self.num_frames.get(stream.stream_id):
                raise ConnectionFault(ErrorCode.H3_FRAME_ERROR, "a request becomes no stream")
            if stream.frame_size is None or stream.frame_size % 4:
                raise ConnectionFault(ErrorCode.H3_ID_ERROR, "a session has the id of a request")
        num_frames = self.num_frames[stream.stream_id] = (
            self.num_frames.get(stream.stream_id, 0) + 1
        )
        if num_frames > _FREE_FRAMES + stream.content_length // _MIN_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.H3_EXCESSIVE_LOAD, "frames of next to nothing")
        is_long = (stream.frame_size or 0) > self._max_header_bytes
        if frame_type == FrameType.HEADERS and is_long:
            raise _TooManyFieldsError

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> Headers:
        headers = super()._decode_headers(stream_id, frame_data)
        # Before they are validated, which takes a microsecond for each few bytes.
        if len(headers) > self._max_headers or section_bytes(headers) > self._max_header_bytes:
            raise _TooManyFieldsError
        return headers

    def _abort_incomplete_request(self, stream_id: int) -> None:
        """Left to the session, which knows whether the stream is there still."""


class Framing:
    """The frames of one connection. Output is written to `quic`."""

    def __init__(
        self,
        quic: BoundedConnection,
        max_header_bytes: int,
        max_headers: int,
        more_settings: Mapping[int, int],
    ) -> None:
        """Sends SETTINGS, `more_settings` too: WebTransport's, or none."""
        self._quic = quic
        self._h3 = _BoundedH3(quic, max_header_bytes, max_headers, more_settings)

    def num_held_bytes(self, stream_id: int) -> int:
        """Bytes of a frame on this stream that is not whole yet."""
        stream = self._h3._stream.get(stream_id)
        return 0 if stream is None else len(stream.buffer)

    def request_bytes(self, stream_id: int, data: bytes, has_ended: bool) -> list[FrameEvent]:
        """Bytes of a request stream came. Raises ConnectionFault."""
        try:
            events = self._receive(stream_id, data, has_ended)
        except MessageError:
            self.forget(stream_id)
            return [Malformed()]
        except _TooManyFieldsError:
            self.forget(stream_id)
            return [TooManyFields()]
        except ProtocolError as error:
            raise ConnectionFault(error.error_code, error.reason_phrase) from error
        return events

    def control_bytes(self, stream_id: int, data: bytes, has_ended: bool) -> None:
        """Bytes of a unidirectional stream came. Raises ConnectionFault."""
        known = self._h3._stream.get(stream_id)
        is_known = known is not None and known.session_id is not None
        try:
            events = self._receive(stream_id, data, has_ended)
        except ProtocolError as error:
            raise ConnectionFault(error.error_code, error.reason_phrase) from error
        if events and not is_known:  # of a WebTransport session, where none is used
            self._quic.stop_reading(stream_id, H3Code.WEBTRANSPORT_STREAM_REJECTED.value)
        if self.num_held_bytes(stream_id) > _MAX_CONTROL_BYTES:
            raise ConnectionFault(ErrorCode.H3_EXCESSIVE_LOAD, "a control frame is too long")

    def control_reset(self, stream_id: int) -> None:
        """The peer reset a unidirectional stream. Raises ConnectionFault."""
        try:
            self._h3._receive_stream_reset(stream_id)
        except ProtocolError as error:
            raise ConnectionFault(error.error_code, error.reason_phrase) from error

    def control_stopped(self, stream_id: int) -> None:
        """The peer reads one of our unidirectional streams no more. Raises ConnectionFault."""
        try:
            self._h3._receive_stop_sending(stream_id)
        except ProtocolError as error:
            raise ConnectionFault(error.error_code, error.reason_phrase) from error

    def perform(self, stream_id: int, action: Action) -> bool:
        """Do to the stream what an exchange asks for; False: nothing reaches the peer any more."""
        quic = self._quic
        match action:
            case SendHeaders(headers, end):
                return self._send(lambda: self._h3.send_headers(stream_id, headers, end))
            case SendData(data, end):
                return self._send(lambda: self._h3.send_data(stream_id, data, end))
            case SendTrailers(headers):
                return self._send(lambda: self._h3.send_headers(stream_id, headers, True))
            case Reset(code):
                quic.reset_stream(stream_id, code.value)
            case StopReading(code):
                quic.stop_reading(stream_id, code.value)
        return True

    def reject(self, stream_id: int, code: H3Code) -> None:
        """End both directions of a request stream."""
        self.forget(stream_id)
        self._quic.reset_stream(stream_id, code.value)
        self._quic.stop_reading(stream_id, code.value)

    def stop_reading(self, stream_id: int) -> None:
        """Drop the beginning of a frame that is no longer wanted."""
        if (stream := self._h3._stream.get(stream_id)) is not None:
            stream.buffer = b""

    def forget(self, stream_id: int) -> None:
        """No frame of this stream is read any more."""
        self._h3._stream.pop(stream_id, None)
        self._h3.num_frames.pop(stream_id, None)

    def go_away(self, stream_id: int) -> None:
        """Requests on this stream and higher ones are not served (RFC 9114, section 5.2)."""
        control = self._h3._local_control_stream_id
        assert control is not None
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        self._quic.send_stream_data(control, frame)

    def _receive(self, stream_id: int, data: bytes, has_ended: bool) -> list[FrameEvent]:
        event = StreamDataReceived(data=data, end_stream=has_ended, stream_id=stream_id)
        events: list[FrameEvent] = []
        for it in self._h3._receive_stream_data(event):
            if isinstance(it, HeadersReceived):
                events.append(Fields(it.headers, it.stream_ended))
            elif isinstance(it, DataReceived):
                events.append(Body(it.data, it.stream_ended))
            elif isinstance(it, WebTransportStreamDataReceived):
                events.append(SessionData(it.session_id, it.data, it.stream_ended))
        stream = self._h3._stream.get(stream_id)
        if not events and stream is not None and stream.session_id is not None:
            events.append(SessionData(stream.session_id, b"", False))
        return events

    def _send(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except (RuntimeError, ValueError):  # the peer stopped the stream, which may be gone
            return False
        return True
