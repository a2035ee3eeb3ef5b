"""Errors for streams and connections that ended, which say why and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode

from outrider.client.protocol import ALPN, NO_COMMON_PROTOCOL, CloseCode
from outrider.errors import OutriderError, OverloadedError, UnavailableError

_CERTIFICATE_ALERTS: Final = range(0x12A, 0x131)  # bad_certificate .. unknown_ca


def stream_error(error_code: int) -> OutriderError:
    """The edge reset a stream."""
    if error_code == CloseCode.SLOW_READER:
        return OverloadedError("the edge dropped the chat: its events were not read in time")
    return UnavailableError(f"the edge cut the chat off (stream error {error_code:#x})")


def connection_error(event: ConnectionTerminated, edge: str) -> OutriderError:
    """The connection to `edge` ended."""
    reason = event.reason_phrase or f"error {event.error_code:#x}"
    if event.frame_type is None and event.error_code == CloseCode.OVERLOADED:
        return OverloadedError(f"{edge} refused: {reason}", retry_delay_ms=1000)
    if event.frame_type is not None and event.error_code == QuicErrorCode.CONNECTION_REFUSED:
        return OverloadedError(f"{edge} refused: {reason}", retry_delay_ms=1000)
    if event.frame_type is not None and event.error_code == NO_COMMON_PROTOCOL:
        return UnavailableError(
            f"{edge} does not speak {ALPN}; check that it is an edge, and of a "
            "version that works with this client"
        )
    if event.frame_type is not None and event.error_code in _CERTIFICATE_ALERTS:
        return UnavailableError(
            f"the certificate of {edge} is not trusted ({reason}); give its file as `ca` "
            "(--ca FILE), or the name it is for as `server_name`"
        )
    return UnavailableError(f"the connection to {edge} ended: {reason}; connect again")


def http_error(fields: Mapping[str, str], edge: str) -> OutriderError:
    """What answered over TCP with these header fields does not serve the stream."""
    status, delay = fields[":status"], fields.get("retry-after-ms", "")
    if status in ("429", "503"):
        return OverloadedError(
            f"{edge} has no room over TCP (HTTP {status})",
            retry_delay_ms=int(delay) if delay.isdecimal() else 1000,
        )
    return UnavailableError(
        f"{edge} serves no chats over TCP (HTTP {status}); check the port, and that UDP gets "
        "through"
    )
