"""The UDP socket: admits connections, drains them when the edge stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import SessionTicket

from outrider.client.protocol import ALPN, CloseCode
from outrider.errors import ConfigError, DrainingError
from services.edge.parts import EdgeParts
from services.edge.quic.connection import EdgeConnection
from services.edge.quic.early import EarlyRoom
from services.edge.quic.server import FairServer
from services.edge.quic.tickets import TicketStore


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one client, and all of them together, may use."""

    max_connections: int
    max_chats_per_connection: int
    max_frame_bytes: int
    max_unsent_bytes: int
    """Of one stream; a client that leaves more unread loses the chat."""
    idle_timeout_s: float
    validate_addresses: bool
    """Answer first packets with a Retry (RFC 9000, section 8.1.2): one round trip more, and no
    state for spoofed addresses."""
    early_data: bool
    """Give out session tickets, with which clients may send in 0-RTT."""


MAX_EARLY_BYTES = 16 << 20
"""Of 0-RTT, of all connections whose handshake is not complete; at least one frame fits."""
_RECEIVE_BYTES = 4 << 20
"""Of the socket, as far as the system allows (net.core.rmem_max): what comes while the edge's loop
waits for a core. What overflows is lost, and its sender notices after tens of milliseconds."""
_MAX_TICKETS = 10_000
_TICKET_AGE_S = 3600.0


class Listener:
    """All connections of one edge."""

    def __init__(self, parts: EdgeParts, limits: ListenerLimits) -> None:
        self.parts = parts
        self.limits = limits
        self.draining = False
        self.early_room = EarlyRoom(max(MAX_EARLY_BYTES, limits.max_frame_bytes))
        self._connections: set[EdgeConnection] = set()
        self._server: FairServer | None = None
        self._tickets = TicketStore[SessionTicket](_MAX_TICKETS, _TICKET_AGE_S, time.monotonic)

    async def start(self, host: str, port: int, certificate: Path, key: Path) -> int:
        """Listen and return the bound port. Raises ConfigError."""
        configuration = self._configuration(certificate, key)
        tickets = self._tickets if self.limits.early_data else None
        try:
            transport, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: FairServer(
                    configuration=configuration,
                    create_protocol=partial(EdgeConnection, listener=self),
                    retry=self.limits.validate_addresses,
                    session_ticket_fetcher=None if tickets is None else tickets.take,
                    session_ticket_handler=None if tickets is None else tickets.add,
                ),
                local_addr=(host, port),
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on UDP {host}:{port} ({error}); set another port, or 0 for any"
            ) from error
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES
        )
        return int(transport.get_extra_info("sockname")[1])

    def _configuration(self, certificate: Path, key: Path) -> QuicConfiguration:
        configuration = QuicConfiguration(
            is_client=False, alpn_protocols=[ALPN], idle_timeout=self.limits.idle_timeout_s
        )
        try:
            configuration.load_cert_chain(certificate, key)
            if configuration.private_key.public_key() != configuration.certificate.public_key():
                raise ValueError("they are no pair")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read certificate {certificate} with private_key {key}: {error}"
            ) from error
        return configuration

    def admit(self, connection: EdgeConnection) -> bool:
        """Whether the edge takes one connection more; counts it if so."""
        if self.draining or len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        self.parts.telemetry.connections(+1)
        return True

    def dismiss(self, connection: EdgeConnection) -> None:
        """An admitted connection has ended."""
        self._connections.discard(connection)
        self.parts.telemetry.connections(-1)

    async def stop(self, drain_s: float) -> None:
        """Refuse new chats, give those under way `drain_s`, then end them and close."""
        self.draining = True
        self.parts.reception.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.parts.telemetry.idle.wait(), drain_s)
        error = DrainingError("this edge is shutting down; send the chat to another")
        for connection in list(self._connections):
            connection.fail_chats(error)
            connection.transmit()
            connection.close(CloseCode.SHUTTING_DOWN, "this edge is shutting down")
        if self._server is not None:
            self._server.close()
