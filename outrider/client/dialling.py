"""Connecting to one edge: over QUIC, and over TCP beside it where QUIC is not answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from outrider.client.address import EdgeAddress
from outrider.client.connection import ClientConnection, Peer
from outrider.client.http2 import connect_http2
from outrider.client.protocol import ALPN, CloseCode
from outrider.client.streams import Connection
from outrider.client.tickets import SessionTickets
from outrider.client.ways import KnownWays, Race, RaceAction, RaceInput, Way, WayLimits
from outrider.errors import ConfigError, OutriderError, UnavailableError

_IDLE_TIMEOUT_S: Final = 60.0
LIMITS: Final = WayLimits()
KNOWN_WAYS: Final = KnownWays(LIMITS)
"""What this process knows of its networks."""
_KNOWN_WAYS_LOCK: Final = threading.Lock()
"""Clients in several threads use them."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection, and what may still replace it."""

    connection: Connection
    better: asyncio.Task[Connection] | None = None
    """Of a connection that nobody has answered yet: ends with the one to use, the same one or
    another, or with the error that no way works. The owner of the connection ends this task."""


async def dial(
    address: EdgeAddress,
    timeout_s: float,
    tickets: SessionTickets | None = None,
    *,
    early: bool = False,
    process_name: bytes = b"",
) -> Dialled:
    """Connect to an edge. `process_name`: the edge's process to reach over QUIC, if the edge has
    several and this one runs. Raises UnavailableError, OverloadedError, ConfigError.

    With `early`, and a ticket of an earlier connection, it returns before an answer has come: data
    sent at once goes in 0-RTT, and the connection is lost if no way to the edge is found.
    """
    attempt = _QuicAttempt(address, timeout_s, tickets or SessionTickets(), process_name)
    await attempt.resolve()
    search = _Search(attempt)
    if early and search.first is Way.QUIC:
        with contextlib.suppress(UnavailableError):  # the search comes to the same end
            made = await attempt.bind()
            if made.has_ticket:
                searching = asyncio.create_task(search.run())
                attempt.begin()  # last: what is sent in this turn of the loop goes with it
                return Dialled(made, searching)
    return Dialled(await search.run())


async def dial_quic(
    address: EdgeAddress, timeout_s: float, tickets: SessionTickets, process_name: bytes = b""
) -> ClientConnection:
    """Connect over QUIC alone; see `dial`."""
    attempt = _QuicAttempt(address, timeout_s, tickets, process_name)
    await attempt.resolve()
    return await attempt.run()


class _QuicAttempt:
    """A try to connect to an edge over QUIC."""

    def __init__(
        self,
        address: EdgeAddress,
        timeout_s: float,
        tickets: SessionTickets,
        process_name: bytes = b"",
    ) -> None:
        """Raises ConfigError."""
        self.address = address
        self.timeout_s = timeout_s
        """For one handshake."""
        self._tickets = tickets
        self._process_name = process_name
        self._configuration = _configuration(address)
        self._peers: list[Peer] = []
        """The host's addresses that are still to be tried."""
        self.network = ""
        """The network on which this machine reaches the edge, named by its own address there."""
        self._failure: OutriderError = UnavailableError(f"{address.host} has no address")
        self._has_begun = False
        self.connection: ClientConnection | None = None
        """The newest one, whose handshake may not be complete."""

    @property
    def heard_at(self) -> float | None:
        """Loop time of the last packet from the edge; None: none has come."""
        return None if self.connection is None else self.connection.heard_at

    @property
    def was_refused(self) -> bool:
        """Whether it failed because one side did not want the other."""
        return self.connection is not None and self.connection.was_refused

    async def resolve(self) -> None:
        """Look the host's addresses up; nothing is sent to them. Raises UnavailableError,
        ConfigError."""
        found = await _resolve(self.address)
        self._peers = [peer for _, peer in found]
        self.network = next((it for each in found if (it := _own_address(*each))), "")

    async def bind(self) -> ClientConnection:
        """A connection to the next of the host's addresses, whose handshake is not begun. Raises
        UnavailableError after the last address."""
        while self._peers:
            peer = self._peers.pop(0)
            quic = _with_tickets(self.address, self._configuration, self._tickets)
            made = ClientConnection(quic, str(self.address), peer, self._process_name)
            try:
                await made.bind()
            except OSError as error:
                self._failure = UnavailableError(f"{self.address} cannot be reached ({error})")
                continue
            self.connection, self._has_begun = made, False
            return made
        raise self._failure

    def begin(self) -> None:
        """Begin the handshake of the newest connection, unless it was begun."""
        assert self.connection is not None
        if not self._has_begun:
            self._has_begun = True
            self.connection.begin(self.timeout_s)

    async def run(self) -> ClientConnection:
        """Connect to the first of the host's addresses that answers. Raises UnavailableError,
        OverloadedError."""
        made = self.connection or await self.bind()
        while True:
            try:
                self.begin()
                await made.established()
                return made
            except OutriderError as error:
                self._failure = error
                made.shut(CloseCode.COMING_BACK)
            except BaseException:
                why = f"{self.address} did not answer over QUIC; another way did"
                made.shut(CloseCode.COMING_BACK, UnavailableError(why))
                raise
            made = await self.bind()


class _Search:
    """A search for a connection to one edge, over both ways."""

    def __init__(self, attempt: _QuicAttempt) -> None:
        """The host of `attempt` is resolved."""
        self._attempt = attempt
        self._network = f"{attempt.network} {attempt.address}"
        with _KNOWN_WAYS_LOCK:
            self.first = KNOWN_WAYS.first(self._network, time.monotonic())
        self._address = attempt.address
        self._loop = asyncio.get_running_loop()
        self._tried: dict[Way, asyncio.Task[Connection]] = {}
        self._failures: dict[Way, OutriderError] = {}

    async def run(self) -> Connection:
        """The connection that is complete first. Raises UnavailableError, OverloadedError,
        ConfigError."""
        race = Race(self._loop.time(), LIMITS)
        self._begin(self.first)
        try:
            while True:
                for way, happened in await self._next(race):
                    match race.take(happened):
                        case RaceAction.BEGIN_OTHER:
                            self._begin(self.first.other)
                        case RaceAction.TAKE:
                            self._remember(way)
                            return self._tried.pop(way).result()
                        case RaceAction.GIVE_UP:
                            raise self._failure()
                        case RaceAction.NOTHING:
                            pass
        finally:
            await self._give_up()

    def _begin(self, way: Way) -> None:
        self._tried[way] = self._loop.create_task(self._connect(way))

    async def _connect(self, way: Way) -> Connection:
        if way is Way.QUIC:
            return await self._attempt.run()
        return await connect_http2(self._address, self._attempt.timeout_s)

    async def _next(self, race: Race) -> list[tuple[Way, RaceInput]]:
        """What happens next."""
        running = [task for way, task in self._tried.items() if way not in self._failures]
        while True:
            if self.first is Way.QUIC and (heard_at := self._attempt.heard_at) is not None:
                race.heard(heard_at)
            left_s = None
            if race.silent_at is not None:
                left_s = race.silent_at - self._loop.time()
                if left_s <= 0:
                    return [(self.first, RaceInput.SILENT)]
            done, _ = await asyncio.wait(
                running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                ended = [it for it in (self.first, self.first.other) if self._tried.get(it) in done]
                return [(way, self._ended(way)) for way in ended]

    def _ended(self, way: Way) -> RaceInput:
        error = self._tried[way].exception()
        if error is None:
            return RaceInput.COMPLETE
        if not isinstance(error, OutriderError):
            raise error
        self._failures[way] = error
        is_refused = way is Way.QUIC and self._attempt.was_refused
        return RaceInput.REFUSED if is_refused else RaceInput.FAILED

    def _remember(self, way: Way) -> None:
        answered = self._attempt.heard_at is not None
        with _KNOWN_WAYS_LOCK:
            KNOWN_WAYS.won(self._network, way, time.monotonic(), quic_answered=answered)

    def _failure(self) -> OutriderError:
        """That of QUIC, and what TCP said besides."""
        error, over_tcp = self._failures[Way.QUIC], self._failures.get(Way.TCP)
        if over_tcp is None:
            return error
        return type(error)(
            f"{error.message}; {over_tcp.message}",
            retry_delay_ms=error.retry_delay_ms,
            metadata=error.metadata,
        )

    async def _give_up(self) -> None:
        """Close what was tried and is not used."""
        for task in self._tried.values():
            task.cancel()
        for made in await asyncio.gather(*self._tried.values(), return_exceptions=True):
            if not isinstance(made, BaseException):
                made.shut(CloseCode.COMING_BACK)


def _own_address(family: int, peer: Peer) -> str:
    """This machine's own address towards another one; "" if it has no way there."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect(peer)  # sends nothing
        return str(asking.getsockname()[0])
    return ""


async def _resolve(address: EdgeAddress) -> list[tuple[int, Peer]]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise UnavailableError(f"{address.host} cannot be resolved ({error}); check it") from error
    except UnicodeError as error:  # of IDNA, before anybody is asked
        raise ConfigError(f"{address.host!r} is no host's name ({error}); check it") from error
    return [(family, peer) for family, *_, peer in found]


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
        address.check_ca()  # aioquic fails in the handshake, without a message
        configuration.load_verify_locations(cafile=str(address.ca))
    return configuration
