"""Connecting to an edge, and again when the connection is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from outrider.client.connection import ClientConnection, Peer
from outrider.client.protocol import ALPN, CloseCode
from outrider.client.recovery import Attempts, ReconnectPolicy
from outrider.client.tickets import SessionTickets
from outrider.errors import ConfigError, DrainingError, OutriderError, UnavailableError

_IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Address of an edge, and how to verify its certificate."""

    host: str
    port: int
    ca: Path | None = None
    """PEM file of the certificates to trust; None: the usual authorities."""
    insecure: bool = False
    """Accept any certificate."""
    server_name: str | None = None
    """The name in the certificate, if it is not `host`."""

    def __str__(self) -> str:
        return f"quic://{self.host}:{self.port}"


async def dial(
    address: EdgeAddress,
    timeout_s: float,
    tickets: SessionTickets | None = None,
    *,
    early: bool = False,
    process_name: bytes = b"",
) -> ClientConnection:
    """Connect to the first of the host's addresses that answers. `process_name`: the edge's process
    to reach, if the edge has several and this one runs. Raises UnavailableError, OverloadedError,
    ConfigError.

    With `early`, and a ticket of an earlier connection, it returns before an answer has come: data
    sent at once goes in 0-RTT, and the connection is lost if the handshake fails.
    """
    configuration = _configuration(address)
    failure: OutriderError = UnavailableError(f"{address.host} has no address")
    tickets = tickets or SessionTickets()
    for peer in await _resolve(address):
        try:
            connection = await _connect(address, configuration, peer, tickets, process_name)
            await _shake_hands(connection, timeout_s, early=early)
            return connection
        except OutriderError as error:
            failure = error
    raise failure


async def _resolve(address: EdgeAddress) -> list[Peer]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise UnavailableError(f"{address.host} cannot be resolved ({error}); check it") from error
    except UnicodeError as error:  # of IDNA, before anybody is asked
        raise ConfigError(f"{address.host!r} is no host's name ({error}); check it") from error
    return [peer for *_, peer in found]


async def _connect(
    address: EdgeAddress,
    configuration: QuicConfiguration,
    peer: Peer,
    tickets: SessionTickets,
    process_name: bytes,
) -> ClientConnection:
    quic = _with_tickets(address, configuration, tickets)
    connection = ClientConnection(quic, str(address), peer, process_name)
    try:
        await connection.bind()
    except OSError as error:
        raise UnavailableError(f"{address} cannot be reached ({error})") from error
    return connection


def _with_tickets(
    address: EdgeAddress, configuration: QuicConfiguration, tickets: SessionTickets
) -> QuicConnection:
    """A QUIC connection that uses the tickets. With a ticket an edge need not show its certificate
    again (RFC 8446, section 2.2), so a ticket is used only with the same trust settings as on the
    connection that issued it. Insecure connections neither take nor show tickets."""
    if address.insecure:
        return QuicConnection(configuration=configuration)
    trusts = configuration.cafile
    digest = "" if trusts is None else sha256(Path(trusts).read_bytes()).hexdigest()
    name = f"{address}/{configuration.server_name}/{digest}"
    configuration.session_ticket = tickets.take(name)
    return QuicConnection(
        configuration=configuration,
        session_ticket_handler=lambda ticket: tickets.put(name, ticket),
    )


async def _shake_hands(connection: ClientConnection, timeout_s: float, *, early: bool) -> None:
    try:
        connection.begin(timeout_s)
        if not (early and connection.has_ticket):
            await connection.established()
    except BaseException:
        connection.shut()
        raise


def _configuration(address: EdgeAddress) -> QuicConfiguration:
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        idle_timeout=_IDLE_TIMEOUT_S,
        server_name=address.server_name or address.host,
    )
    if address.insecure:
        configuration.verify_mode = ssl.CERT_NONE
    elif address.ca is not None:
        if not address.ca.is_file():
            raise ConfigError(f"there is no certificate file {address.ca}; start the edge first?")
        _check_readable(address.ca)
        configuration.load_verify_locations(cafile=str(address.ca))
    return configuration


def _check_readable(ca: Path) -> None:
    """Fail early: aioquic fails in the handshake, without a message."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except OSError as error:
        raise ConfigError(f"{ca} holds no certificate in PEM to trust: {error}") from error


_LEAST_SPREAD = 0.5


def spread() -> float:
    """Random factor of a delay: clients that lost one edge do not reconnect at the same time."""
    return random.uniform(_LEAST_SPREAD, 1.0)


class Link:
    """Connects, and connects again when somebody needs it after a loss, or when the edge is being
    stopped: to the same edge first, which still has the chats, unless it is being stopped or did
    not answer, then to the others. `open_link` makes one."""

    def __init__(
        self,
        addresses: Sequence[EdgeAddress],
        at: int,
        connection: ClientConnection,
        tickets: SessionTickets,
        policy: ReconnectPolicy | None,
    ) -> None:
        self._addresses = addresses
        self._at = at
        """Which of them the present connection is to."""
        self._connection = connection
        self._tickets = tickets
        self._left: list[ClientConnection] = []
        """Earlier connections, on which chats may still run."""
        self._redialling: asyncio.Task[ClientConnection] | None = None
        self.policy = policy
        """How lost connections are replaced; None: they are not."""
        self.is_closed = False

    @property
    def connection(self) -> ClientConnection:
        """The present connection; it may be lost."""
        return self._connection

    async def usable(self) -> ClientConnection:
        """The present connection, or another one if it is lost or leaving. Raises OutriderError if
        none can be made."""
        if self.is_closed:
            raise UnavailableError("the client is closed")
        if self._connection.lost is None and not self._connection.is_leaving:
            return self._connection
        if self.policy is None:
            raise self._connection.lost or DrainingError("the edge is being stopped; connect again")
        if self._redialling is None or self._redialling.done():
            self._redialling = asyncio.create_task(self._redial(self.policy))
            self._redialling.add_done_callback(lambda task: task.cancelled() or task.exception())
        redialling = self._redialling
        try:
            return await asyncio.shield(redialling)
        except asyncio.CancelledError:
            if redialling.cancelled():  # by `close`: nobody cancelled who waits here
                raise UnavailableError("the client is closed") from None
            raise

    async def migrate(self) -> None:
        """Continue from another socket. Raises UnavailableError if the edge cannot be reached
        now."""
        await self._connection.migrate()

    def close(self) -> None:
        """Close all connections; their chats end."""
        self.is_closed = True
        if self._redialling is not None:
            self._redialling.cancel()
        for connection in (self._connection, *self._left):
            connection.shut()

    async def _redial(self, policy: ReconnectPolicy) -> ClientConnection:
        attempts = Attempts(policy)
        loop = asyncio.get_running_loop()
        if self._connection.is_leaving or not self._connection.was_established:
            self._at += 1
        self._leave(self._connection)
        before, process_name = self._at, self._connection.process_name
        for number in itertools.count(1):
            address = self._addresses[self._at % len(self._addresses)]
            try:
                self._connection = await dial(
                    address,
                    policy.attempt_timeout_s,
                    self._tickets,
                    early=True,
                    process_name=process_name if self._at == before else b"",
                )
                break
            except OutriderError as error:
                self._at += 1
                if number % len(self._addresses):
                    continue  # the others first
                delay_s = attempts.next_delay(loop.time(), spread(), error.retry_delay_ms / 1000)
                if delay_s is None:
                    raise error
                await asyncio.sleep(delay_s)
        return self._connection

    def _leave(self, connection: ClientConnection) -> None:
        if connection not in self._left:
            self._left.append(connection)
        for left in self._left:
            if left.lost is not None or left.is_idle:
                # The edge keeps the chats: it may not have noticed yet, and this is no farewell.
                left.shut(CloseCode.COMING_BACK)
        self._left = [left for left in self._left if left.lost is None]


async def open_link(
    addresses: Sequence[EdgeAddress],
    timeout_s: float,
    tickets: SessionTickets,
    policy: ReconnectPolicy | None,
    *,
    early: bool,
) -> Link:
    """Connect for the first time, to the first of the edges that answers. Raises as `dial` does."""
    for at, address in enumerate(addresses):
        try:
            connection = await dial(address, timeout_s, tickets, early=early)
            return Link(addresses, at, connection, tickets, policy)
        except OutriderError:
            if at + 1 == len(addresses):
                raise
    raise UnavailableError("there is no edge to connect to; name one")
