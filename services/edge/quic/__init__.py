"""The QUIC side: certificate, listener, connections, streams."""
