"""The UDP socket: admits connections, drains them when the edge stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import SessionTicket

from outrider.client.protocol import ALPN, CloseCode
from outrider.errors import ConfigError, DrainingError
from services.edge.addresses import Prefixes
from services.edge.parts import EdgeParts
from services.edge.quic import memory
from services.edge.quic.bounded import BoundedConnection, QuicLimits, check_version
from services.edge.quic.budget import Budget
from services.edge.quic.connection import EdgeConnection
from services.edge.quic.dispatch import Dispatcher, Receiver, Routes
from services.edge.quic.door import Door, DoorLimits, Verdict
from services.edge.quic.server import FairServer
from services.edge.quic.tickets import TicketStore
from services.edge.quic.turns import MAX_ADDRESSES, Share
from services.edge.quotas import QuotaLimits, Quotas


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one client, and all of them together, may use."""

    max_connections: int
    max_chats_per_connection: int
    max_frame_bytes: int
    max_unsent_bytes: int
    """Of one stream; a client that leaves more unread loses the chat."""
    idle_timeout_s: float
    """Without anything from the client, or without a chat and anything on a stream."""
    handshake_timeout_s: float
    early_data: bool
    """Give out session tickets, with which clients may send in 0-RTT."""
    door: DoorLimits = field(default_factory=DoorLimits)
    quotas: QuotaLimits = field(default_factory=QuotaLimits)
    """Of one address prefix."""
    client_quotas: QuotaLimits = field(default_factory=QuotaLimits)
    """Of one client or user, from whatever address."""
    prefixes: Prefixes = field(default_factory=Prefixes)
    share: Share = field(default_factory=Share)
    """Of the event loop's time, for the datagrams of one address prefix."""
    max_received_bytes: int = 256 << 20
    """Held for all clients: what came out of order, requests that are not whole yet..."""
    max_received_bytes_per_address: int = 16 << 20
    """...for those of one address prefix..."""
    max_received_bytes_per_connection: int = 8 << 20
    """...and for one connection. At least a frame."""


MAX_EARLY_BYTES = 16 << 20
"""Of 0-RTT, of all connections whose handshake is not complete; at least one frame fits."""
_RECEIVE_BYTES = 4 << 20
"""Of the socket, as far as the system allows (net.core.rmem_max): what comes while the edge's loop
waits for a core. What overflows is lost, and its sender notices after tens of milliseconds."""
_MAX_TICKETS = 10_000
_TICKET_AGE_S = 3600.0
_STREAMS_BESIDE_CHATS = 32
"""That may be open: they are refused, or ask what this edge is."""
_RESIDENT_AGE_S = 0.05
"""How old the figure of the process's memory may be; to read it takes 10 us."""


class Address:
    """What is shared by the connections of one address prefix."""

    def __init__(self, key: str, budget: Budget) -> None:
        self.key = key
        self.budget = budget
        self.num_connections = 0


class Listener:
    """All connections of one edge."""

    def __init__(self, parts: EdgeParts, limits: ListenerLimits) -> None:
        self.parts = parts
        self.limits = limits
        self.draining = False
        self.quotas: Quotas[str] = Quotas(limits.quotas)
        """By address prefix."""
        self.client_quotas: Quotas[bytes] = Quotas(limits.client_quotas)
        """By Identity.client."""
        self.door = Door(limits.door, self.quotas)
        self.early_room = Budget(max(MAX_EARLY_BYTES, limits.max_frame_bytes))
        self._received = Budget(limits.max_received_bytes)
        self._addresses: dict[str, Address] = {}
        self._connections: set[EdgeConnection] = set()
        self._quic: set[EdgeConnection] = set()
        """All of them, whether their handshake is complete or not."""
        self._settings: QuicConfiguration | None = None
        self._server: FairServer | None = None
        self._tickets = TicketStore[SessionTicket](_MAX_TICKETS, _TICKET_AGE_S, time.monotonic)
        self._resident_bytes, self._resident_at = 0, -_RESIDENT_AGE_S

    async def start(self, host: str, port: int, certificate: Path, key: Path) -> int:
        """Listen and return the bound port. Raises ConfigError."""
        check_version()
        loop = asyncio.get_running_loop()
        self._settings = self._configuration(certificate, key)
        dispatcher = Dispatcher(
            self._settings,
            self.door,
            open_connection=self._open,
            key_of=self.limits.prefixes.of,
            resident_bytes=self._resident,
            report=self._report,
        )
        address_of = lru_cache(MAX_ADDRESSES)(self.limits.prefixes.of)
        try:
            transport, self._server = await loop.create_datagram_endpoint(
                lambda: FairServer(dispatcher.receive, address_of, self.limits.share),
                local_addr=(host, port),
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on UDP {host}:{port} ({error}); set another port, or 0 for any"
            ) from error
        dispatcher.transport = transport
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES
        )
        return int(transport.get_extra_info("sockname")[1])

    def _open(
        self, key: str, original_cid: bytes, retry_cid: bytes | None, routes: Routes
    ) -> tuple[Receiver, bytes]:
        """The connection of a first packet that the door let in."""
        assert self._settings is not None and self._server is not None
        assert self._server.transport is not None
        limits, tickets = self.limits, self._tickets if self.limits.early_data else None
        address = self._addresses.get(key)
        if address is None:
            budget = Budget(limits.max_received_bytes_per_address, self._received)
            address = self._addresses[key] = Address(key, budget)
        address.num_connections += 1
        budget = Budget(limits.max_received_bytes_per_connection, address.budget)
        quic = BoundedConnection(
            limits=QuicLimits(max_streams=limits.max_chats_per_connection + _STREAMS_BESIDE_CHATS),
            budget=budget,
            now=asyncio.get_running_loop().time(),
            configuration=self._settings,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
            session_ticket_fetcher=None if tickets is None else tickets.take,
            session_ticket_handler=None if tickets is None else tickets.add,
        )
        connection = EdgeConnection(quic, self, address, budget, routes)
        connection.connection_made(self._server.transport)
        self._quic.add(connection)
        return connection, quic.host_cid

    def _resident(self) -> int:
        if not self.limits.door.max_resident_bytes:
            return 0
        now = time.monotonic()
        if now - self._resident_at >= _RESIDENT_AGE_S:
            self._resident_bytes, self._resident_at = memory.resident_bytes(), now
        return self._resident_bytes

    def _report(self, verdict: Verdict) -> None:
        telemetry = self.parts.telemetry
        if verdict is Verdict.RETRY:
            telemetry.retried()
        elif verdict is not Verdict.ADMIT:
            telemetry.refused(verdict.value)
        telemetry.half_open(self.door.num_half_open)

    def shook_hands(self) -> None:
        """A handshake is complete, or will never be."""
        self.door.shook_hands()
        self.parts.telemetry.half_open(self.door.num_half_open)

    def left(self, connection: EdgeConnection, address: Address) -> None:
        """A connection has ended, of whatever kind."""
        self._quic.discard(connection)
        self.door.left(address.key)
        address.num_connections -= 1
        if not address.num_connections:
            del self._addresses[address.key]

    async def renew(self, certificate: Path, key: Path) -> None:
        """Handshakes that begin from now on show this certificate. Raises ConfigError."""
        new = await asyncio.to_thread(self._configuration, certificate, key)
        if self._settings is not None:
            self._settings.private_key = new.private_key
            self._settings.certificate_chain = new.certificate_chain
            self._settings.certificate = new.certificate

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
        for connection in list(self._quic):
            connection.drop("this edge is shutting down")
        if self._server is not None:
            self._server.close()
