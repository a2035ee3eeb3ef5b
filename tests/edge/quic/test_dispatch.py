"""What becomes of datagrams that belong to no connection yet."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, pull_quic_header

from bench.hostile.quic_attacks import initial
from bench.hostile.quic_client import crypto_frame
from services.edge.quic.dispatch import MAX_DATAGRAM_BYTES, Dispatcher, Receiver, Routes
from services.edge.quic.door import Door, DoorLimits, Verdict
from services.edge.quotas import QuotaLimits, Quotas

CLIENT = ("192.0.2.7", 4000)
FIRST = initial([crypto_frame(0, b"hello")])


@dataclass
class Server:
    """A dispatcher whose connections only keep what they get."""

    limits: DoorLimits = field(default_factory=DoorLimits)
    resident: int = 0
    sent: list[bytes] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(
            QuicConfiguration(is_client=False),
            Door(self.limits, Quotas(QuotaLimits())),
            open_connection=self._open,
            key_of=lambda host: host,
            resident_bytes=lambda: self.resident,
            report=self.verdicts.append,
        )
        self.dispatcher.transport = self  # type: ignore[assignment]

    def _open(
        self, key: str, original: bytes, retry: bytes | None, routes: Routes
    ) -> tuple[Receiver, bytes]:
        connection = Connection(key, original, retry, routes)
        self.opened.append(connection)
        return connection, connection.cid

    def sendto(self, data: bytes, addr: Any) -> None:
        """As a transport."""
        assert addr == CLIENT
        self.sent.append(data)

    def receive(self, data: bytes) -> None:
        self.dispatcher.receive(data, CLIENT)


@dataclass
class Connection:
    key: str
    original: bytes
    retry: bytes | None
    routes: Routes
    cid: bytes = field(default_factory=lambda: os.urandom(8))
    received: list[bytes] = field(default_factory=list)
    is_proven: bool = False
    unpaid_s: float = 0.0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """As a connection."""
        self.received.append(data)


def client() -> QuicConnection:
    quic = QuicConnection(configuration=QuicConfiguration(is_client=True, server_name="edge"))
    quic.connect(("192.0.2.1", 4433), now=0.0)
    return quic


def flight(quic: QuicConnection) -> bytes:
    (data, _), *_ = quic.datagrams_to_send(now=0.0)
    return data


def events(quic: QuicConnection) -> list[Any]:
    quic.handle_timer(now=1e9)  # past the draining period
    found = []
    while (event := quic.next_event()) is not None:
        found.append(event)
    return found


async def test_a_first_packet_makes_a_connection_and_the_next_ones_find_it() -> None:
    server = Server()
    server.receive(FIRST)
    server.receive(FIRST)
    (connection,) = server.opened
    assert connection.received == [FIRST, FIRST] and connection.retry is None
    connection.routes.remove(b"never issued")
    connection.routes.add(b"another")
    assert len(server.dispatcher._table) == 3
    connection.routes.clear()
    assert not server.dispatcher._table
    assert server.verdicts == [Verdict.ADMIT]


async def test_what_is_no_first_packet_is_dropped_without_a_word() -> None:
    server = Server()
    for data in (b"", b"\x00", os.urandom(1200), FIRST[:1199], FIRST + bytes(MAX_DATAGRAM_BYTES)):
        server.receive(data)
    short = bytes([0x40]) + os.urandom(1300)
    server.receive(short)
    unknown_version = bytes([FIRST[0]]) + b"\x1a\x2a\x3a\x4a" + FIRST[5:1100]
    server.receive(unknown_version)
    assert not server.sent and not server.opened and not server.verdicts


async def test_another_version_is_told_which_there_are() -> None:
    server = Server()
    server.receive(FIRST[:1] + b"\x1a\x2a\x3a\x4a" + FIRST[5:])
    (answer,) = server.sent
    header = pull_quic_header(Buffer(data=answer), host_cid_length=8)
    assert header.packet_type == QuicPacketType.VERSION_NEGOTIATION
    assert not server.opened


async def test_who_comes_back_with_the_token_of_a_retry_is_let_in() -> None:
    server = Server(DoorLimits(retry_from_half_open=0))
    quic = client()
    first = flight(quic)
    server.receive(first)
    (retry,) = server.sent
    assert not server.opened and len(retry) < len(first)
    quic.receive_datagram(retry, ("192.0.2.1", 4433), now=0.0)
    server.receive(flight(quic))
    (connection,) = server.opened
    assert connection.original == quic.original_destination_connection_id
    assert connection.retry == quic._retry_source_connection_id
    assert server.verdicts == [Verdict.RETRY, Verdict.ADMIT]


async def test_a_forged_token_is_refused() -> None:
    server = Server()
    server.receive(initial([crypto_frame(0, b"hello")], token=os.urandom(60)))
    assert len(server.sent) == 1 and not server.opened and not server.verdicts


async def test_who_is_refused_learns_why_and_a_flood_of_them_does_not() -> None:
    server = Server(DoorLimits(max_resident_bytes=1), resident=2)
    quic = client()
    server.receive(flight(quic))
    (answer,) = server.sent
    quic.receive_datagram(answer, ("192.0.2.1", 4433), now=0.0)
    (ended,) = [event for event in events(quic) if isinstance(event, ConnectionTerminated)]
    assert ended.error_code == QuicErrorCode.CONNECTION_REFUSED and "memory" in ended.reason_phrase
    for _ in range(500):
        server.receive(initial([crypto_frame(0, b"hello")]))
    assert len(server.sent) < 200 and server.verdicts == [Verdict.REFUSE_MEMORY] * 501
