"""The QUIC listener: makes connections, and drains them when the edge stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import SessionTicket

from outrider.client.protocol import ALPN, CloseCode
from outrider.errors import ConfigError, DrainingError
from services.edge.chat.context import EdgeContext
from services.edge.limits import memory
from services.edge.limits.fair_queue import MAX_ADDRESSES
from services.edge.limits.listener import ListenerQuotas, Verdict
from services.edge.quic.aioquic_shim import BoundedConnection, QuicLimits, check_version
from services.edge.quic.alpn import ApplicationService
from services.edge.quic.connection import EdgeConnection
from services.edge.quic.connection_ids import ConnectionIds
from services.edge.quic.early_data import TicketStore
from services.edge.quic.server import DatagramServer, Dispatcher, Receiver, Routes

_RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Size of the socket's receive buffer, as far as the system allows (net.core.rmem_max). It holds
datagrams that arrive while the edge's loop waits for a core. Those that do not fit are lost, and
their senders notice after tens of milliseconds."""
_MAX_TICKETS: Final = 10_000
_TICKET_AGE_S: Final = 3600.0
_STREAMS_BESIDE_CHATS: Final = 32
"""Streams that may be open without a chat: they are refused, or ask what this edge is."""
_RESIDENT_AGE_S: Final = 0.05
"""How old the figure of the process's memory may be; to read it takes 10 us."""
_DELIVERY_S: Final = 10.0
"""How long, and no longer than it drains, an edge that stops waits for clients to acknowledge the
ends of their replies: beyond, they are gone, and did not say so."""
_DRAIN_POLL_S: Final = 0.01
_DATAGRAM_BYTES: Final = 65_535
"""Longest datagram of a client, as the draft of WebTransport recommends it."""


def _ticket_store() -> TicketStore[SessionTicket]:
    return TicketStore(_MAX_TICKETS, _TICKET_AGE_S, time.monotonic)


class Listener:
    """All connections of one edge."""

    def __init__(
        self, context: EdgeContext, shared: ListenerQuotas, ids: ConnectionIds | None = None
    ) -> None:
        """`shared`: quotas and limits of clients; `ids` makes connection IDs, None: random ones."""
        self.context = context
        self._ids = ids
        self.services: dict[str, ApplicationService] = {}
        """Services on the same port besides the native protocol, by ALPN name."""
        self.shared = shared
        self.connections: set[EdgeConnection] = set()
        """Whether their handshake is complete or not."""
        self._configuration: QuicConfiguration | None = None
        self._server: DatagramServer | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._tickets = {ALPN: _ticket_store()}
        self._resident_bytes = 0
        self._resident_at = -_RESIDENT_AGE_S

    @property
    def is_draining(self) -> bool:
        """Whether the edge stops."""
        return self.shared.is_draining

    def offer(self, service: ApplicationService) -> None:
        """Serve this protocol too. Before `start`."""
        self.services[service.alpn] = service
        self._tickets[service.alpn] = _ticket_store()

    async def start(
        self,
        host: str,
        port: int,
        certificate: Path,
        key: Path,
        *,
        opened: socket.socket | None = None,
    ) -> int:
        """Listen and return the bound port. `opened`: a socket that is bound already; it is this
        listener's from now on. Raises ConfigError."""
        check_version()
        limits = self.shared.limits
        self._configuration = self._load(certificate, key)
        dispatcher = Dispatcher(
            self._configuration,
            self.shared.handshakes,
            open_connection=self._open,
            prefix_of=lru_cache(MAX_ADDRESSES)(limits.prefixes.of),
            resident_bytes=self._resident,
            report=self._report,
            ids=self._ids,
        )

        def made(transport: asyncio.DatagramTransport) -> None:
            # The first datagram may be processed before the endpoint is returned.
            self._transport = dispatcher.transport = transport

        try:
            transport, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: DatagramServer(
                    dispatcher.receive, dispatcher.prefix_of, self.shared.loop_uses, made
                ),
                **({"local_addr": (host, port)} if opened is None else {"sock": opened}),
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on UDP {host}:{port} ({error}); set another port (`outrider up "
                "--port`), or 0 for any"
            ) from error
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES
        )
        return int(transport.get_extra_info("sockname")[1])

    def _open(
        self, prefix: str, original_cid: bytes, retry_cid: bytes | None, routes: Routes
    ) -> tuple[Receiver, bytes]:
        """The connection of a first packet that was admitted."""
        assert self._configuration is not None and self._transport is not None
        limits = self.shared.limits
        tickets = self._tickets if limits.early_data else None
        address, budget = self.shared.connection_opened(prefix)
        quic = BoundedConnection(
            limits=QuicLimits(
                max_streams=limits.max_chats_per_connection + _STREAMS_BESIDE_CHATS,
                protocols={alpn: service.limits for alpn, service in self.services.items()},
            ),
            budget=budget,
            now=asyncio.get_running_loop().time(),
            configuration=self._configuration,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
            tickets=tickets,
            ids=self._ids,
        )
        connection = EdgeConnection(
            quic,
            context=self.context,
            shared=self.shared,
            address=address,
            budget=budget,
            routes=routes,
            services=self.services,
            on_ended=self.connections.discard,
        )
        connection.connection_made(self._transport)
        self.connections.add(connection)
        return connection, quic.host_cid

    def _resident(self) -> int:
        """Memory of the process, or 0 where it does not matter."""
        if not self.shared.limits.max_resident_bytes:
            return 0
        now = time.monotonic()
        if now - self._resident_at >= _RESIDENT_AGE_S:
            self._resident_bytes = memory.resident_bytes()
            self._resident_at = now
        return self._resident_bytes

    def _report(self, verdict: Verdict) -> None:
        telemetry = self.context.telemetry
        if verdict is Verdict.RETRY:
            telemetry.retried()
        elif verdict is not Verdict.ADMIT:
            telemetry.refused(verdict.value)
        telemetry.half_open(self.shared.handshakes.num_half_open)

    async def renew(self, certificate: Path, key: Path) -> None:
        """Use this certificate in handshakes that begin from now on. Raises ConfigError."""
        new = await asyncio.to_thread(self._load, certificate, key)
        if self._configuration is not None:
            self._configuration.private_key = new.private_key
            self._configuration.certificate_chain = new.certificate_chain
            self._configuration.certificate = new.certificate

    def _load(self, certificate: Path, key: Path) -> QuicConfiguration:
        configuration = QuicConfiguration(
            is_client=False,
            alpn_protocols=[ALPN, *self.services],
            idle_timeout=self.shared.limits.idle_timeout_s,
            # WebTransport asks for it; datagrams are dropped as they come.
            max_datagram_frame_size=_DATAGRAM_BYTES if self.services else None,
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

    async def stop(self, drain_s: float) -> None:
        """Refuse new chats, give those under way `drain_s` to end and to reach their clients, then
        end them and close."""
        self.shared.is_draining = True
        self.context.resumable.close()
        for connection in list(self.connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._idle()
                await self._delivered()
        for service in self.services.values():
            await service.stop()
        error = DrainingError("this edge is shutting down; send the chat to another")
        for connection in [it for it in self.connections if it.is_admitted]:
            connection.native.fail_chats(error)
            connection.transmit()
            connection.close_for(CloseCode.SHUTTING_DOWN, "this edge is shutting down")
        for connection in list(self.connections):
            connection.drop("this edge is shutting down")
        if self._server is not None:
            self._server.close()

    async def _idle(self) -> None:
        """Return when nothing is under way."""
        await self.context.telemetry.idle.wait()
        while any(it.native.has_questions for it in self.connections):  # noqa: ASYNC110 (as below)
            await asyncio.sleep(_DRAIN_POLL_S)
        for service in self.services.values():
            await service.idle()

    async def _delivered(self) -> None:
        """Return when clients have received everything sent to them. Data that is lost on the way,
        or waits for the congestion window, would not be sent any more once this process has
        ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_S):
                # Not by an event: every datagram of an edge's life would have to set it.
                while not all(  # noqa: ASYNC110
                    it.quic.is_delivered for it in self.connections if it.is_admitted
                ):
                    await asyncio.sleep(_DRAIN_POLL_S)
