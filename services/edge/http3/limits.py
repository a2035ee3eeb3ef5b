"""Limits of HTTP/3 clients, in addition to those of the QUIC listener (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class Http3Limits:
    """Table `[edge.http3]`."""

    enabled: bool = True
    """Whether HTTP is served on the QUIC port too, where it is served at all (`http.port`)."""
    webtransport: bool = True
    """Whether browsers may open WebTransport sessions, one for each connection, in which the native
    protocol is spoken."""
    max_requests: PositiveInt = 1024
    """Requests under way, of all connections together. Further ones are answered with 503."""
    max_requests_per_connection: PositiveInt = 64
    """The same of one connection. A request counts until the application is done with it, whether
    its client waits or not."""
    max_header_bytes: PositiveInt = 16 << 10
    """Size of a request's header section: names, values and 32 bytes for each field (RFC 9114,
    section 4.2.2). It is announced to clients; a larger one is answered with 431."""
    max_headers: PositiveInt = 100
    """Fields of a header section."""
    max_unsent_bytes: PositiveInt = 256 << 10
    """Most unread bytes of a response; the application then waits for its client."""
    header_timeout_s: PositiveFloat = 10.0
    """From the first byte of a request to the end of its header section."""
    body_timeout_s: PositiveFloat = 30.0
    """How long an application waits for the body of a request in all; then the client gets 408."""
    write_timeout_s: PositiveFloat = 30.0
    """A client that leaves more than `max_unsent_bytes` unread for so long loses the response, and
    so does one that has not acknowledged all of it so long after its end."""
    cancel_grace_s: PositiveFloat = 5.0
    """Time after which an application is cancelled whose client is gone."""
    close_timeout_s: PositiveFloat = 5.0
    """How long the client of a WebTransport session may take to end it once the edge has."""
    alt_svc_max_age_s: NonNegativeInt = 86_400
    """How long clients that come over TCP may remember that HTTP/3 is served (RFC 7838)."""


def alt_svc(port: int, max_age_s: int) -> bytes:
    """Value of the Alt-Svc field (RFC 7838) in responses over TCP: the same origin is served over
    HTTP/3 on this UDP port. An age of 0 makes clients forget it."""
    return b'h3=":%d"; ma=%d' % (port, max_age_s) if max_age_s else b"clear"
