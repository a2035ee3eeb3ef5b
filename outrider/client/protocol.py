"""Names and numbers of the native protocol between client and edge, over QUIC, WebTransport and
HTTP (protos/outrider/v1/edge.proto)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

ALPN: Final = "outrider/1"
NO_COMMON_PROTOCOL: Final = 0x178
"""QUIC's error where client and edge have no ALPN name in common: 0x100 and TLS's alert
no_application_protocol (RFC 9001, section 4.8)."""
DEFAULT_PORT: Final = 4433
HTTP_PATH: Final = "/outrider/v1/stream"
"""Over HTTP/2 a stream is a POST of this path: frames of the client in the request's body, frames
of the edge in the answer's, both at the same time."""
WEBTRANSPORT_PATH: Final = "/outrider/v1/webtransport"
"""Where browsers open a WebTransport session. Each of its bidirectional streams is one of the
native protocol, with the same frames."""
HTTP_FRAMES: Final = "application/vnd.outrider.frames"
"""Media type of both bodies. A web page may not send it to another origin without being allowed."""
ACK_DELAY_S: Final = 0.02
"""How long an acknowledgement may be delayed, to be sent with others. Below the max_ack_delay of
25 ms that aioquic announces (RFC 9000, section 13.2.1). Its own value of 1 ms answers nearly every
token with a datagram, which costs the client a sixth of its time."""


_NAMING_TOKEN_CHARS: Final = 40
_NAME_CHARS: Final = 8
"""Length of the process name that begins a resume token of 40 characters: four bytes in hexadecimal
digits. The other 16 bytes are the secret."""


def process_name(resume_token: str) -> bytes:
    """How a connection ID begins that leads to the edge's process that gave this token; empty where
    the edge has one process alone, whose tokens have no such part."""
    if len(resume_token) != _NAMING_TOKEN_CHARS:
        return b""
    try:
        return bytes.fromhex(resume_token[:_NAME_CHARS])
    except ValueError:
        return b""


class CloseCode(IntEnum):
    """Application error codes of QUIC streams and connections."""

    DONE = 0x0
    OVERLOADED = 0x100
    """The edge has as many connections as it takes."""
    SHUTTING_DOWN = 0x101
    SLOW_READER = 0x102
    """The client did not read; the edge dropped the chat."""
    CLIENT_CANCELLED = 0x103
    BAD_FRAME = 0x104
    """The peer broke the protocol on this stream."""
    COMING_BACK = 0x105
    """The client closes the connection and keeps its chats: it reconnects."""
