"""Datagrams to their connections: by connection id, or by way of the door."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, Protocol

from aioquic._buffer import Buffer
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

from services.edge.quic.door import REASONS, Door, Verdict
from services.edge.quic.server import Payer
from services.edge.quotas import RateLimit, TokenBucket

MAX_DATAGRAM_BYTES: Final = 2048
"""Larger ones are dropped: a packet of 64 KiB may hold as many frames. Ethernet carries 1500."""
_CLOSES: Final = RateLimit(per_s=100.0, burst=100.0)
"""Refusals that are told to who is refused; each costs a hash and a key."""


class Receiver(Payer, Protocol):
    """One connection."""

    def datagram_received(self, data: bytes, addr: NetworkAddress) -> None:
        """A datagram for it came."""
        ...


class Routes:
    """The connection ids of one connection, in the table of all."""

    def __init__(self, table: dict[bytes, Receiver], receiver: Receiver | None = None) -> None:
        self._table = table
        self._cids: set[bytes] = set()
        self.receiver = receiver

    def add(self, cid: bytes) -> None:
        """Datagrams to `cid` are the connection's from now on."""
        assert self.receiver is not None
        self._table[cid] = self.receiver
        self._cids.add(cid)

    def remove(self, cid: bytes) -> None:
        """No longer; it may never have been issued."""
        if cid in self._cids:
            self._cids.remove(cid)
            del self._table[cid]

    def clear(self) -> None:
        """The connection has ended."""
        for cid in self._cids:
            del self._table[cid]
        self._cids.clear()


Opener = Callable[[str, bytes, "bytes | None", Routes], tuple[Receiver, bytes]]
"""Makes a connection for a key, with the ids that the client's first packet and the Retry went to
(RFC 9000, section 7.3); returns it with its own id. It keeps its routes up to date."""


class Dispatcher:
    """What a QUIC server does before a connection is there (RFC 9000, sections 5.2.2 and 8.1)."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        door: Door,
        *,
        open_connection: Opener,
        key_of: Callable[[str], str],
        resident_bytes: Callable[[], int],
        report: Callable[[Verdict], None],
    ) -> None:
        """`key_of` says whose an address is, `report` is told what became of each first packet."""
        self._configuration = configuration
        self._door = door
        self._open = open_connection
        self._key_of = key_of
        self._resident_bytes = resident_bytes
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._table: dict[bytes, Receiver] = {}
        self._tokens = QuicRetryTokenHandler()
        self._closes = TokenBucket(_CLOSES, self._loop.time())
        self.transport: asyncio.DatagramTransport | None = None

    def receive(self, data: bytes, addr: NetworkAddress) -> Receiver | None:
        """A datagram came; the connection that it was for."""
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
            if len(data) < SMALLEST_MAX_DATAGRAM_SIZE:
                return None
            receiver = self._stranger(header, addr)
        if receiver is not None:
            receiver.datagram_received(data, addr)
        return receiver

    def _stranger(self, header: QuicHeader, addr: NetworkAddress) -> Receiver | None:
        if header.version is None or header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
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
        return self._newcomer(header, addr)

    def _newcomer(self, header: QuicHeader, addr: NetworkAddress) -> Receiver | None:
        now, original_cid = self._loop.time(), header.destination_cid
        if header.token:
            try:
                original_cid = self._tokens.validate_token(
                    address=addr,
                    destination_cid=header.destination_cid,
                    token=header.token,
                    now=now,
                )
            except ValueError:
                self._refuse(header, addr, QuicErrorCode.INVALID_TOKEN, "", now)
                return None
        key = self._key_of(addr[0])
        verdict = self._door.knock(
            key, is_proven=bool(header.token), resident_bytes=self._resident_bytes(), now=now
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
        routes.receiver, own_cid = self._open(key, original_cid, retry_cid, routes)
        routes.add(header.destination_cid)
        routes.add(own_cid)
        return routes.receiver

    def _retry(self, header: QuicHeader, addr: NetworkAddress, now: float) -> bytes:
        source_cid = os.urandom(self._configuration.connection_id_length)
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
        if self._closes.take(1, now):
            self._send(_close(header, code, reason), addr)

    def _send(self, data: bytes, addr: NetworkAddress) -> None:
        if self.transport is not None:
            self.transport.sendto(data, addr)


def _close(header: QuicHeader, code: int, reason: str) -> bytes:
    """An Initial that ends a connection which there never was (RFC 9000, section 10.2.3). Its keys
    are those of the id that the client chose (RFC 9001, section 5.2)."""
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
