"""What HTTP/3 clients may use of an edge, besides what its QUIC listener allows (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError

_POSITIVE: Final = (
    "max_requests",
    "max_requests_per_connection",
    "max_header_bytes",
    "max_headers",
    "max_unsent_bytes",
    "header_timeout_s",
    "body_timeout_s",
    "write_timeout_s",
    "cancel_grace_s",
)


@dataclass(frozen=True, slots=True)
class Http3Limits:
    """Table `[edge.http3]`."""

    enabled: bool = True
    """Whether HTTP is served on the QUIC port too, where it is served at all (`http.port`)."""
    max_requests: int = 1024
    """Requests under way, of all connections together. Further ones are answered with 503."""
    max_requests_per_connection: int = 64
    """The same of one connection. A request counts until the application is done with it, whether
    its client waits or not."""
    max_header_bytes: int = 16 << 10
    """Size of a request's header section: names, values and 32 bytes for each field (RFC 9114,
    section 4.2.2). Clients are told; a larger one is answered with 431."""
    max_headers: int = 100
    """Fields of a header section."""
    max_unsent_bytes: int = 256 << 10
    """Of a response. The application waits when its client has left so much unread."""
    header_timeout_s: float = 10.0
    """From the first byte of a request to the end of its header section."""
    body_timeout_s: float = 30.0
    """How long an application waits for the body of a request in all; then the client gets 408."""
    write_timeout_s: float = 30.0
    """A client that leaves more than `max_unsent_bytes` unread for so long loses the response, and
    so does one that has not acknowledged all of it so long after its end."""
    cancel_grace_s: float = 5.0
    """An application that was told that its client is gone, and goes on for so long, is
    cancelled."""
    alt_svc_max_age_s: int = 86_400
    """How long clients that come over TCP may remember that HTTP/3 is served (RFC 7838)."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"http3.{name} is {getattr(self, name)}: set it above 0")
        if self.alt_svc_max_age_s < 0:
            raise ConfigError(
                f"http3.alt_svc_max_age_s is {self.alt_svc_max_age_s}: it is negative"
            )


def alt_svc(port: int, max_age_s: int) -> bytes:
    """Value of the Alt-Svc field (RFC 7838) in responses over TCP: the same origin is served over
    HTTP/3 on this UDP port. An age of 0 makes clients forget it."""
    return b'h3=":%d"; ma=%d' % (port, max_age_s) if max_age_s else b"clear"
