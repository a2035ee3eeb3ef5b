"""What WebTransport adds to HTTP/3 on the wire: settings, capsules and error codes (pure).

Browsers speak several drafts of draft-ietf-webtrans-http3 at once, which differ in the settings by
which a server offers sessions. All of them are sent, for they do not clash. One session per
connection and none of the settings for session flow control: then the limits of QUIC are those of
the session (draft 16, section 5.1), and capsules of flow control are ignored. Safari refuses a
server that offers more sessions without that flow control.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.errors import MalformedFrameError

PROTOCOLS: Final = frozenset(("webtransport", "webtransport-h3"))
"""Values of `:protocol` that ask for a session: of drafts 2 to 14, and of later ones."""
SETTINGS: Final[Mapping[int, int]] = {
    0x08: 1,  # ENABLE_CONNECT_PROTOCOL (RFC 9220)
    0x33: 1,  # H3_DATAGRAM (RFC 9297); none is used
    0x2B603742: 1,  # ENABLE_WEBTRANSPORT: drafts 2 to 6
    0xC671706A: 1,  # WEBTRANSPORT_MAX_SESSIONS: drafts 7 to 12
    0x14E9CD29: 1,  # WT_MAX_SESSIONS: drafts 13 and 14
    0x2C7CF000: 1,  # WT_ENABLED: from draft 15 on
}
MAX_REASON_BYTES: Final = 1024
"""Of a session's end (draft 16, section 6)."""
_CLOSE_SESSION: Final = 0x2843
_DRAIN_SESSION: Final = 0x78AE
_FORBIDDEN: Final = frozenset((0x190B4D3E, 0x190B4D42))
"""WT_MAX_STREAM_DATA and WT_STREAM_DATA_BLOCKED, which are of WebTransport over HTTP/2."""
_CODE: Final = struct.Struct(">I")
_FIRST_CODE: Final = 0x52E4A40FA8DB
_MAX_CODE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Close:
    """The end of a session, as one side says it."""

    code: int = 0
    """32 bits, of the application."""
    reason: str = ""

    def capsule(self) -> bytes:
        """The capsule WT_CLOSE_SESSION, with a reason as long as it may be."""
        reason = self.reason.encode()[:MAX_REASON_BYTES]
        text = reason.decode(errors="ignore").encode()  # not in the middle of a character
        return _capsule(_CLOSE_SESSION, _CODE.pack(self.code) + text)


def _encoded(value: int) -> bytes:
    """A variable-length integer (RFC 9000, section 16)."""
    for power, limit in enumerate((1 << 6, 1 << 14, 1 << 30, 1 << 62)):
        if value < limit:
            num_bytes = 1 << power
            return (value | power << (8 * num_bytes - 2)).to_bytes(num_bytes, "big")
    raise ValueError(f"{value} has more than 62 bits")


DRAIN: Final = _encoded(_DRAIN_SESSION) + b"\0"
"""The capsule WT_DRAIN_SESSION: finish what is under way, and begin nothing more."""


def http_code(code: int) -> int:
    """The HTTP/3 error code that stands for an application's, of 32 bits, on a session's streams
    (draft 16, section 4.4)."""
    if not 0 <= code <= _MAX_CODE:
        raise ValueError(f"{code} is no application error code: it has 32 bits")
    return _FIRST_CODE + code + code // 0x1E


class CapsuleReader:
    """Reads the capsules that a client sends on the stream of its session (RFC 9297, section 3).

    Memory: at most the longest WT_CLOSE_SESSION. Capsules that are not known, of whatever length,
    are skipped as they come.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._num_skipped = 0
        """Bytes still to come of a capsule that is ignored."""
        self._is_closed = False

    @property
    def num_held(self) -> int:
        """Bytes kept of a capsule that is not whole."""
        return len(self._buffer)

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here."""
        return not self._buffer and not self._num_skipped

    def feed(self, data: bytes) -> Close | None:
        """More of the stream; returns how the client closes its session. Raises MalformedFrameError
        for a malformed capsule, one that is forbidden, and anything after WT_CLOSE_SESSION."""
        closed: Close | None = None
        view = memoryview(data)
        while view:
            if self._is_closed:
                raise MalformedFrameError("nothing follows the end of a session")
            if self._num_skipped:
                num = min(self._num_skipped, len(view))
                self._num_skipped -= num
                view = view[num:]
                continue
            taken = view[: self._wanted()]
            self._buffer += taken
            view = view[len(taken) :]
            closed = self._take() or closed
        return closed

    def _wanted(self) -> int:
        """Bytes to be read next, at most: one while the header is not whole, as its length is not
        known."""
        header = _header(self._buffer)
        if header is None:
            return 1
        _, length, size = header
        return size + length - len(self._buffer)

    def _take(self) -> Close | None:
        header = _header(self._buffer)
        if header is None:
            return None
        kind, length, size = header
        if kind in _FORBIDDEN:
            raise MalformedFrameError("streams have no data limits by capsule over HTTP/3")
        if kind != _CLOSE_SESSION:
            self._num_skipped = length
            self._buffer.clear()
            return None
        if not _CODE.size <= length <= _CODE.size + MAX_REASON_BYTES:
            raise MalformedFrameError(
                f"the end of a session has a code of 4 bytes and a reason of at most "
                f"{MAX_REASON_BYTES}"
            )
        if len(self._buffer) < size + length:
            return None
        (code,) = _CODE.unpack_from(self._buffer, size)
        try:
            reason = self._buffer[size + _CODE.size :].decode()
        except UnicodeDecodeError as error:
            raise MalformedFrameError("the reason of a session's end is not UTF-8") from error
        self._buffer.clear()
        self._is_closed = True
        return Close(code, reason)


def _header(buffer: bytearray) -> tuple[int, int, int] | None:
    """Type and length of a capsule, and the bytes that say so; None: they are not whole."""
    kind = _integer(buffer, 0)
    if kind is None:
        return None
    length = _integer(buffer, kind[1])
    return None if length is None else (kind[0], *length)


def _integer(buffer: bytearray, at: int) -> tuple[int, int] | None:
    """A variable-length integer (RFC 9000, section 16), and where it ends."""
    if at >= len(buffer):
        return None
    end = at + (1 << (buffer[at] >> 6))
    if end > len(buffer):
        return None
    return int.from_bytes(buffer[at:end], "big") & ((1 << (8 * (end - at) - 2)) - 1), end


def _capsule(kind: int, payload: bytes) -> bytes:
    return _encoded(kind) + _encoded(len(payload)) + payload
