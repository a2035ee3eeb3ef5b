"""The UDP socket: reads datagrams, processes them fairly, and passes each to its connection."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler

from services.edge.limits.fair_queue import FairQueue, LoopUses
from services.edge.limits.listener import REASONS, HandshakeAdmission, Verdict
from services.edge.limits.quotas import RateLimit, TokenBucket
from services.edge.quic.aioquic_shim import Buffer, RetryTokens
from services.edge.quic.connection_ids import MAX_RESET_BYTES, ConnectionIds

MAX_DATAGRAM_BYTES: Final = 2048
"""Larger ones are dropped: a packet of 64 KiB may hold as many frames. Ethernet carries 1500."""
TURN_S: Final = 0.0003
"""Time for datagrams in one turn of the event loop: one takes some 0.15 ms, and a chat needs
several turns until its first token is out."""
_MAX_READ: Final = 1024
"""Datagrams read from the socket in one turn: 2 to 3 ms at most."""
_READ_BYTES: Final = 65_535
_STALE: Final = "the address token is of another address, or too old; connect again"
_MAX_QUEUED_BYTES_PER_SOURCE: Final = 2 << 20
"""QUIC lets a client send 1 MiB ahead (RFC 9000, section 4.1, with aioquic's default)."""
_MAX_QUEUED_BYTES: Final = 64 << 20
_REFUSALS: Final = RateLimit(per_s=100.0, burst=100.0)
"""Rate of refusals that are answered; each costs a hash and a key."""
_RESETS: Final = RateLimit(per_s=1000.0, burst=1000.0)
"""Rate of stateless resets: the clients of a process that died send at once."""


class Receiver(Protocol):
    """A connection, as the server sees it."""

    unbilled_s: float
    """Loop time that its datagrams took and that no address prefix was charged for yet."""

    @property
    def prefix(self) -> str:
        """The address prefix that it was opened from."""
        ...

    @property
    def is_validated(self) -> bool:
        """Whether its handshake is complete: then its prefix is not forged, for the client received
        what was sent there, and nobody off the path between knows its connection IDs."""
        ...

    def datagram_received(self, data: bytes, addr: NetworkAddress) -> None:
        """A datagram for it came."""
        ...


Receive: TypeAlias = Callable[[bytes, NetworkAddress], "Receiver | None"]
"""Processes a datagram, and returns the connection that it was for."""


class DatagramServer(asyncio.DatagramProtocol):
    """Processes datagrams in the order of a FairQueue, for TURN_S in a turn of the event loop. In
    the order of their arrival the hundreds of datagrams of a long prompt would hold the loop for
    tens of milliseconds, and overflow the socket meanwhile.

    An event loop reads 32 datagrams in a turn (libuv) or one (asyncio), so a request that came
    behind a thousand others would wait in the socket for tens of turns, where nobody knows its
    sender. So the rest of the socket is read here."""

    def __init__(
        self,
        receive: Receive,
        prefix_of: Callable[[bytes, NetworkAddress], str],
        uses: LoopUses,
        made: Callable[[asyncio.DatagramTransport], None] | None = None,
    ) -> None:
        """`receive` processes a datagram; `prefix_of` gives the address prefix that is charged for
        it; `uses` is the loop time that each prefix used; `made` gets the transport before the
        first datagram is received."""
        self._receive = receive
        self._prefix_of = prefix_of
        self._made = made
        self.transport: asyncio.DatagramTransport | None = None
        self._queue = FairQueue[NetworkAddress](
            _MAX_QUEUED_BYTES_PER_SOURCE, _MAX_QUEUED_BYTES, uses
        )
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._is_closed = False
        self._socket: socket.socket | None = None
        self.num_dropped = 0
        """Datagrams that found no room in the queue."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is bound."""
        self.transport = cast(asyncio.DatagramTransport, transport)
        # Transports do not give away their socket, but a copy of its descriptor can be read.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        if self._made is not None:
            self._made(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._socket is not None:
            self._socket.close()

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """The first datagram of a turn is processed at once, the others are queued."""
        assert isinstance(data, bytes)
        if self._is_scheduled:
            self._put(addr, data)
            return
        self._schedule()
        if self._queue.may_pass(self._prefix_of(data, addr), time.perf_counter()):
            self._process(addr, data)
        else:
            self._put(addr, data)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            self.transport.close()

    def _put(self, addr: NetworkAddress, data: bytes) -> None:
        self.num_dropped += not self._queue.put(self._prefix_of(data, addr), addr, data)

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _process(self, addr: NetworkAddress, data: bytes) -> None:
        began = time.thread_time()  # what other processes take of the core is not billed
        receiver = self._receive(data, addr)
        if receiver is None:
            return
        receiver.unbilled_s += time.thread_time() - began
        if receiver.is_validated:
            self._queue.uses.spend(receiver.prefix, receiver.unbilled_s, time.perf_counter())
            receiver.unbilled_s = 0.0

    def _read(self) -> None:
        assert self._socket is not None
        for _ in range(_MAX_READ):
            try:
                data, addr = self._socket.recvfrom(_READ_BYTES)
            except OSError:  # nothing left; or an error, which the loop's own read reports
                return
            self._put(addr, data)

    def _turn(self) -> None:
        if not self._is_closed:
            self._read()
        now = time.perf_counter()
        until = now + TURN_S
        try:
            while not self._is_closed and (taken := self._queue.take(now)) is not None:
                self._process(*taken[1:])
                now = time.perf_counter()
                if now >= until:
                    asyncio.get_running_loop().call_soon(self._turn)
                    return
        except BaseException:  # the loop reports it; the others' datagrams are processed
            asyncio.get_running_loop().call_soon(self._turn)
            raise
        self._is_scheduled = False
        self._await_release(now)

    def _await_release(self, now: float) -> None:
        """Sleep until an address prefix that is held back is released."""
        if self._timer is not None:
            self._timer.cancel()
        at = self._queue.next_release()
        if at is None or self._is_closed:
            self._timer = None
        else:
            wait_s = max(0.0, at - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._released)

    def _released(self) -> None:
        self._timer = None
        if not self._is_scheduled and not self._is_closed:
            self._schedule()


class Routes:
    """The connection IDs of one connection, kept in the table of all."""

    def __init__(self, table: dict[bytes, Receiver]) -> None:
        self._table = table
        self._cids: set[bytes] = set()
        self.receiver: Receiver | None = None

    def add(self, cid: bytes) -> None:
        """Datagrams to `cid` go to the connection from now on."""
        assert self.receiver is not None
        self._table[cid] = self.receiver
        self._cids.add(cid)

    def remove(self, cid: bytes) -> None:
        """They do no longer; `cid` may never have been issued."""
        if cid in self._cids:
            self._cids.remove(cid)
            del self._table[cid]

    def clear(self) -> None:
        """The connection has ended."""
        for cid in self._cids:
            del self._table[cid]
        self._cids.clear()


Opener: TypeAlias = Callable[[str, bytes, "bytes | None", Routes], tuple[Receiver, bytes]]
"""Makes a connection for an address prefix, with the IDs to which the client's first packet and its
answer to a Retry were sent (RFC 9000, section 7.3); returns it with its own ID. The connection
keeps its routes up to date."""


class Dispatcher:
    """Passes datagrams to their connections, and does what a QUIC server does before there is one
    (RFC 9000, sections 5.2.2 and 8.1)."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        handshakes: HandshakeAdmission,
        *,
        open_connection: Opener,
        prefix_of: Callable[[str], str],
        resident_bytes: Callable[[], int],
        report: Callable[[Verdict], None],
        ids: ConnectionIds | None = None,
    ) -> None:
        """`prefix_of` gives the address prefix of a host; `report` is called with the verdict on
        each first packet; `ids` makes connection IDs, None: they are random."""
        self._configuration = configuration
        self._handshakes = handshakes
        self._open = open_connection
        self._prefix_of = prefix_of
        self._resident_bytes = resident_bytes
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._table: dict[bytes, Receiver] = {}
        self._ids = ids
        self._tokens = QuicRetryTokenHandler() if ids is None else RetryTokens(ids.retry_key)
        self._refusals = TokenBucket(_REFUSALS, self._loop.time())
        self._resets = TokenBucket(_RESETS, self._loop.time())
        self.transport: asyncio.DatagramTransport | None = None

    def prefix_of(self, data: bytes, addr: NetworkAddress) -> str:
        """The address prefix that is charged for a datagram: for a validated connection its own,
        whatever address the datagram claims to come from; otherwise the prefix of that address."""
        if data and data[0] & 0x80:  # a long header (RFC 9000, section 17.2)
            cid = data[6 : 6 + data[5]] if len(data) > 6 else b""
        else:
            cid = data[1 : 1 + self._configuration.connection_id_length]
        receiver = self._table.get(cid)
        if receiver is not None and receiver.is_validated:
            return receiver.prefix
        return self._prefix_of(addr[0])

    def receive(self, data: bytes, addr: NetworkAddress) -> Receiver | None:
        """Process a datagram; returns the connection that it was for."""
        if len(data) > MAX_DATAGRAM_BYTES:
            return None
        try:
            header = pull_quic_header(
                Buffer(data=data), host_cid_length=self._configuration.connection_id_length
            )
        except ValueError:
            return None
        receiver = self._table.get(header.destination_cid)
        if receiver is None:
            if header.version is None:
                self._reset(header, data, addr)
                return None
            if len(data) < SMALLEST_MAX_DATAGRAM_SIZE:
                return None
            receiver = self._without_connection(header, addr)
        if receiver is not None:
            receiver.datagram_received(data, addr)
        return receiver

    def _reset(self, header: QuicHeader, data: bytes, addr: NetworkAddress) -> None:
        """Tell a client whose connection is not known that it is lost: another process of this edge
        may have had it, and died."""
        if self._ids is None or not self._resets.take(1, self._loop.time()):
            return
        random = os.urandom(MAX_RESET_BYTES)
        if reset := self._ids.reset(header.destination_cid, len(data), random):
            self._send(reset, addr)

    def _without_connection(self, header: QuicHeader, addr: NetworkAddress) -> Receiver | None:
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in self._configuration.supported_versions:
            self._send(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=self._configuration.supported_versions,
                ),
                addr,
            )
            return None
        if header.packet_type != QuicPacketType.INITIAL:
            return None
        return self._first_packet(header, addr)

    def _first_packet(self, header: QuicHeader, addr: NetworkAddress) -> Receiver | None:
        now = self._loop.time()
        original_cid = header.destination_cid
        if header.token:
            try:
                original_cid = self._tokens.validate_token(
                    address=addr,
                    destination_cid=header.destination_cid,
                    token=header.token,
                    now=now,
                )
            except ValueError:
                self._refuse(header, addr, QuicErrorCode.INVALID_TOKEN, _STALE, now)
                return None
        prefix = self._prefix_of(addr[0])
        verdict = self._handshakes.decide(
            prefix,
            is_validated=bool(header.token),
            resident_bytes=self._resident_bytes(),
            now=now,
        )
        self._report(verdict)
        if verdict is Verdict.RETRY:
            self._send(self._retry(header, addr, now), addr)
            return None
        if verdict is not Verdict.ADMIT:
            reason = REASONS[verdict]
            self._refuse(header, addr, QuicErrorCode.CONNECTION_REFUSED, reason, now)
            return None
        routes = Routes(self._table)
        retry_cid = header.destination_cid if header.token else None
        routes.receiver, own_cid = self._open(prefix, original_cid, retry_cid, routes)
        routes.add(header.destination_cid)
        routes.add(own_cid)
        return routes.receiver

    def _retry(self, header: QuicHeader, addr: NetworkAddress, now: float) -> bytes:
        num_bytes = self._configuration.connection_id_length
        source_cid = os.urandom(num_bytes) if self._ids is None else self._ids.new(num_bytes)
        token = self._tokens.create_token(
            address=addr,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=now,
        )
        return encode_quic_retry(
            version=header.version or 0,
            source_cid=source_cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def _refuse(
        self, header: QuicHeader, addr: NetworkAddress, code: int, reason: str, now: float
    ) -> None:
        if self._refusals.take(1, now):
            self._send(_close(header, code, reason), addr)

    def _send(self, data: bytes, addr: NetworkAddress) -> None:
        if self.transport is not None:
            self.transport.sendto(data, addr)


def _close(header: QuicHeader, code: int, reason: str) -> bytes:
    """An Initial packet that refuses a connection (RFC 9000, section 10.2.3). Its keys are derived
    from the ID that the client chose (RFC 9001, section 5.2)."""
    version = header.version or 0
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_cid,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    text = reason.encode()
    buf = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=32 + len(text))
    buf.push_uint_var(code)
    buf.push_uint_var(QuicFrameType.CRYPTO)
    buf.push_uint_var(len(text))
    buf.push_bytes(text)
    (datagram,), _ = builder.flush()
    return datagram
