"""The QUIC side: listener, server, connections, streams, and limits on what clients may use."""
