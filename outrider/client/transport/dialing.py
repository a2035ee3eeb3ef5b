"""Connecting to an edge."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from outrider.client.connection import ClientConnection, Peer
from outrider.client.protocol import ALPN
from outrider.client.transport.tickets import SessionTickets
from outrider.errors import ConfigError, OutriderError, UnavailableError

_IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Where the edge is and how it is to be trusted."""

    host: str
    port: int
    ca: Path | None = None
    """PEM file of the certificates to trust; None: the usual authorities."""
    insecure: bool = False
    """Trust whoever answers."""
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
) -> ClientConnection:
    """Connect to the first of the host's addresses that answers. Raises UnavailableError,
    OverloadedError, ConfigError.

    With `early`, and a ticket of an earlier connection, it returns before anybody has answered:
    what is sent at once goes in 0-RTT, and the connection is lost if the handshake fails.
    """
    configuration = _configuration(address)
    failure: OutriderError = UnavailableError(f"{address.host} has no address")
    tickets = tickets or SessionTickets()
    for peer in await _resolve(address):
        try:
            connection = await _connect(address, configuration, peer, tickets)
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
    return [peer for *_, peer in found]


async def _connect(
    address: EdgeAddress, configuration: QuicConfiguration, peer: Peer, tickets: SessionTickets
) -> ClientConnection:
    name = str(address)
    configuration.session_ticket = tickets.take(name)
    quic = QuicConnection(
        configuration=configuration,
        session_ticket_handler=lambda ticket: tickets.put(name, ticket),
    )
    connection = ClientConnection(quic, name, peer)
    try:
        await connection.bind()
    except OSError as error:
        raise UnavailableError(f"{address} cannot be reached ({error})") from error
    return connection


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
    """aioquic would find out in the handshake, and never say so."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except OSError as error:
        raise ConfigError(f"{ca} holds no certificate in PEM to trust: {error}") from error
