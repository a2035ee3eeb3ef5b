"""HTTP/3 (RFC 9114) on the edge's QUIC port, for any ASGI 3 application."""
