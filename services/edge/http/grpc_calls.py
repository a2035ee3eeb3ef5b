"""gRPC over the edge's own HTTP/2: messages in, messages out, a status in trailers.

As in the gRPC project's "gRPC over HTTP2": each message has five bytes before it, a flag for
compression and the length. Compressed ones are refused: the edge offers no `grpc-encoding`.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from typing import Final
from urllib.parse import quote

from outrider.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    MalformedFrameError,
    OutriderError,
)
from outrider.wire import error_to_proto
from services.edge.http.origins import Fields

MEDIA_TYPES: Final = ("application/grpc", "application/grpc+proto")
HEAD: Final = ((b"content-type", b"application/grpc"),)
_PREFIX: Final = struct.Struct(">BI")
_CODES: Final = {
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
"""Numbers of google.rpc.Code, of the statuses that errors have."""
OK: Final = ((b"grpc-status", b"0"),)
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_MS: Final = {"H": 3_600_000.0, "M": 60_000.0, "S": 1000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}
_MAX_TIMEOUT_MS: Final = (1 << 31) - 1


def is_call(media_type: str) -> bool:
    """Whether a request's body is gRPC's."""
    return media_type in MEDIA_TYPES


def encode(message: bytes) -> bytes:
    """A message with its length before it."""
    return _PREFIX.pack(0, len(message)) + message


def status_of(error: OutriderError) -> Fields:
    """The trailers that report an error: its status, and its ErrorDetail."""
    detail = error_to_proto(error)
    return [
        (b"grpc-status", b"%d" % _CODES[error.grpc_code]),
        (b"grpc-message", quote(detail.message, safe=" !#$&'()*+,/:;<=>?@[]^`{|}~").encode()),
        # gRPC: binary metadata is base64, whose padding may be left out.
        (b"outrider-error-bin", b64encode(detail.SerializeToString())),
    ]


def timeout_ms(stated: str) -> int:
    """Milliseconds of a `grpc-timeout`, at least 1; 0 where there is none. Raises
    InvalidRequestError."""
    if not stated:
        return 0
    found = _TIMEOUT.fullmatch(stated)
    if found is None:
        raise InvalidRequestError("grpc-timeout is up to eight digits and one of H, M, S, m, u, n")
    return min(_MAX_TIMEOUT_MS, max(1, int(int(found[1]) * _UNIT_MS[found[2]])))


class MessageDecoder:
    """Cuts a body into messages, however it arrives. It holds no more than has come of one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()

    @property
    def num_held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises MalformedFrameError for a compressed one,
        FrameTooLargeError as soon as the length says so."""
        self._held += data
        messages, at = list[bytes](), 0
        while len(self._held) - at >= _PREFIX.size:
            flag, length = _PREFIX.unpack_from(self._held, at)
            if flag:
                raise MalformedFrameError("messages are taken uncompressed; send them as they are")
            if length > self._max_bytes:
                raise FrameTooLargeError(
                    f"a message of {length} bytes is above the limit, {self._max_bytes}; send less"
                )
            end = at + _PREFIX.size + length
            if end > len(self._held):
                break
            messages.append(bytes(self._held[at + _PREFIX.size : end]))
            at = end
        del self._held[:at]
        return messages
