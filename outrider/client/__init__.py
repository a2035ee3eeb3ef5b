"""The QUIC client."""
