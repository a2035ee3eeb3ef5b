"""The edge's socket, real: what waits in it is read before any of it is processed for long. Then
what becomes of datagrams that belong to no connection yet."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvloop
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.events import ConnectionIdIssued, ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, pull_quic_header

from bench.hostile.quic_attacks import initial
from bench.hostile.quic_client import crypto_frame
from outrider.workers.steering import process_of
from outrider.workers.worker import Worker
from services.edge.limits.fair_queue import LoopShare, LoopUses
from services.edge.limits.listener import HandshakeAdmission, HandshakeLimits, MemoryBudget, Verdict
from services.edge.limits.quotas import QuotaLimits, Quotas
from services.edge.quic.aioquic_shim import BoundedConnection, QuicLimits
from services.edge.quic.connection_ids import ConnectionIds
from services.edge.quic.server import (
    MAX_DATAGRAM_BYTES,
    DatagramServer,
    Dispatcher,
    Receiver,
    Routes,
)

NUM_BULK = 150
"""More than event loops read in a turn, less than a socket holds by default."""


async def _looked_at(reported: list[BaseException], poison: bytes = b"") -> list[bytes]:
    """Data in the order in which they were looked at; all of it was sent before the loop ran.
    `poison` cannot be looked at; what the loop is told of it goes to `reported`."""
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    seen: list[bytes] = []

    def receive(data: bytes, addr: NetworkAddress) -> Receiver | None:
        seen.append(data)
        if len(seen) > NUM_BULK:
            everything.set()
        if data == poison:
            raise ValueError("poison")
        return None

    transport, server = await loop.create_datagram_endpoint(
        lambda: DatagramServer(receive, _source, LoopUses(LoopShare())),
        local_addr=("127.0.0.1", 0),
    )
    address = transport.get_extra_info("sockname")
    with (
        socket.socket(type=socket.SOCK_DGRAM) as bulk,
        socket.socket(type=socket.SOCK_DGRAM) as chat,
    ):
        for number in range(NUM_BULK):
            bulk.sendto(b"%d" % number, address)
        chat.sendto(b"hello", address)
        await everything.wait()
    server.close()
    await asyncio.sleep(0)  # the loop tells the server that its socket is closed
    assert server.num_dropped == 0
    return seen


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_question_behind_a_long_prompt_does_not_wait_for_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        seen = runner.run(_looked_at([]))
    assert seen.index(b"hello") <= 2
    seen.remove(b"hello")
    assert seen == [b"%d" % number for number in range(NUM_BULK)]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_malformed_datagram_holds_up_nobody(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    reported: list[BaseException] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        seen = runner.run(_looked_at(reported, poison=b"7"))
    assert len(seen) == NUM_BULK + 1
    assert [str(error) for error in reported] == ["poison"]


@dataclass
class Costly:
    """A connection whose datagrams take long."""

    is_validated: bool
    prefix: str = "127.0.0.1"
    unbilled_s: float = 0.0

    def datagram_received(self, data: bytes, addr: NetworkAddress) -> None:
        """As a connection."""


def _source(data: bytes, addr: NetworkAddress) -> str:
    """The address that pays for a datagram: its sender's."""
    return str(addr[0])


async def _resting(
    *, is_validated: bool, prefix: str = "127.0.0.1", uses: LoopUses
) -> tuple[list[bytes], float]:
    """What was looked at before a datagram from elsewhere, and when the last one was, seconds
    after the first; each of ten takes 10 ms of 20 that may be used at once, and half of a second
    afterwards."""
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    seen: list[bytes] = []
    costly = Costly(is_validated, prefix)

    def receive(data: bytes, addr: NetworkAddress) -> Receiver:
        seen.append(data)
        until = time.thread_time() + (0.0 if data == b"hello" else 0.01)
        while time.thread_time() < until:
            pass
        if len(seen) > 10:
            everything.set()
        return costly

    transport, server = await loop.create_datagram_endpoint(
        lambda: DatagramServer(receive, _source, uses),
        local_addr=("127.0.0.1", 0),
    )
    began = loop.time()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as bulk,
        socket.socket(type=socket.SOCK_DGRAM) as chat,
    ):
        chat.bind(("127.0.0.2", 0))
        server._queue.uses.spend("127.0.0.2", 0.0, time.perf_counter())
        for number in range(10):
            bulk.sendto(b"%d" % number, transport.get_extra_info("sockname"))
        chat.sendto(b"hello", transport.get_extra_info("sockname"))
        await everything.wait()
    server.close()
    await asyncio.sleep(0)
    return seen, loop.time() - began


async def test_an_address_that_has_used_its_share_up_waits_and_loses_nothing() -> None:
    seen, took_s = await _resting(is_validated=True, uses=LoopUses(LoopShare(0.5, 0.02)))
    assert sorted(seen) == sorted([b"hello", *(b"%d" % number for number in range(10))])
    assert took_s >= 0.12, "10 datagrams of 10 ms, of which 20 ms at once"


async def test_nobody_uses_up_the_share_of_an_address_that_may_be_forged() -> None:
    seen, _ = await _resting(is_validated=False, uses=LoopUses(LoopShare(0.5, 0.02)))
    assert len(seen) == 11


async def test_whoever_has_a_connection_pays_for_it_himself_whatever_source_he_claims() -> None:
    uses = LoopUses(LoopShare(0.5, 0.02))
    await _resting(is_validated=True, prefix="127.0.0.9", uses=uses)
    assert uses.free_at("127.0.0.1") < 0.0 < uses.free_at("127.0.0.9")


async def test_one_sender_whose_datagrams_count_for_two_prefixes_holds_up_nobody() -> None:
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    seen: list[bytes] = []

    def receive(data: bytes, addr: NetworkAddress) -> None:
        seen.append(data)
        if len(seen) == 6:
            everything.set()

    transport, server = await loop.create_datagram_endpoint(
        lambda: DatagramServer(receive, lambda data, _: data[:1].hex(), LoopUses(LoopShare())),
        local_addr=("127.0.0.1", 0),
    )
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for data in (b"a1", b"b1", b"a2", b"b2", b"a3", b"b3"):
            sender.sendto(data, transport.get_extra_info("sockname"))
        await everything.wait()
    server.close()
    await asyncio.sleep(0)
    assert sorted(seen) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]
    assert server._queue.num_bytes == 0


async def test_a_connections_prefix_pays_for_it_once_it_is_validated() -> None:
    server, elsewhere = Server(), ("198.51.100.1", 1)
    server.receive(FIRST)
    (connection,) = server.opened
    short, unknown = bytes([0x40]) + connection.cid + bytes(30), bytes([0x40]) + bytes(40)
    for is_validated, payer in ((False, elsewhere[0]), (True, CLIENT[0])):
        connection.is_validated = is_validated
        assert server.dispatcher.prefix_of(FIRST, elsewhere) == payer
        assert server.dispatcher.prefix_of(short, elsewhere) == payer
    for data in (unknown, b"", b"\x40", FIRST[:6], FIRST[:1]):
        assert server.dispatcher.prefix_of(data, elsewhere) == elsewhere[0]


CLIENT = ("192.0.2.7", 4000)
FIRST = initial([crypto_frame(0, b"hello")])


@dataclass
class Server:
    """A dispatcher whose connections only keep what they get."""

    limits: HandshakeLimits = field(default_factory=HandshakeLimits)
    resident: int = 0
    sent: list[bytes] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    ids: ConnectionIds | None = None

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(
            QuicConfiguration(is_client=False),
            HandshakeAdmission(self.limits, Quotas(QuotaLimits())),
            open_connection=self._open,
            prefix_of=lambda host: host,
            resident_bytes=lambda: self.resident,
            report=self.verdicts.append,
            ids=self.ids,
        )
        self.dispatcher.transport = self  # type: ignore[assignment]

    def _open(
        self, prefix: str, original: bytes, retry: bytes | None, routes: Routes
    ) -> tuple[Receiver, bytes]:
        connection = Connection(prefix, original, retry, routes)
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
    prefix: str
    original: bytes
    retry: bytes | None
    routes: Routes
    cid: bytes = field(default_factory=lambda: os.urandom(8))
    received: list[bytes] = field(default_factory=list)
    is_validated: bool = False
    unbilled_s: float = 0.0

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
    server = Server(HandshakeLimits(retry_from_half_open=0))
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
    server = Server(HandshakeLimits(max_resident_bytes=1), resident=2)
    quic = client()
    server.receive(flight(quic))
    (answer,) = server.sent
    quic.receive_datagram(answer, ("192.0.2.1", 4433), now=0.0)
    (ended,) = [event for event in events(quic) if isinstance(event, ConnectionTerminated)]
    assert ended.error_code == QuicErrorCode.CONNECTION_REFUSED and "memory" in ended.reason_phrase
    for _ in range(500):
        server.receive(initial([crypto_frame(0, b"hello")]))
    assert len(server.sent) < 200 and server.verdicts == [Verdict.REFUSE_MEMORY] * 501


def ids(index: int, secret: bytes = bytes(32)) -> ConnectionIds:
    """Of one of three processes."""
    return ConnectionIds(Worker(index, 3, secret.hex()))


async def test_any_process_takes_the_token_of_a_retry_that_another_one_sent() -> None:
    """The first one died before its client came back."""
    first, second = (Server(HandshakeLimits(retry_from_half_open=0), ids=ids(it)) for it in (0, 1))
    quic = client()
    first.receive(flight(quic))
    quic.receive_datagram(first.sent[0], ("192.0.2.1", 4433), now=0.0)
    again = flight(quic)
    header = pull_quic_header(Buffer(data=again), host_cid_length=8)
    assert process_of(header.destination_cid, 3) == 0
    second.receive(again)
    assert len(second.opened) == 1
    stranger = Server(HandshakeLimits(retry_from_half_open=0), ids=ids(0, bytes(31) + b"x"))
    stranger.receive(again)
    assert not stranger.opened


async def test_a_packet_of_a_connection_that_is_not_known_is_answered_by_its_reset() -> None:
    server, cid = Server(ids=ids(1)), ids(0).new(8)
    for size in (21, 30, 100, 1200):
        server.receive(b"\x40" + cid + bytes(size - 9))
    *resets, _ = server.sent
    assert [len(reset) for reset in server.sent] == [29, 43, 43], "always shorter than what came"
    for reset in resets:
        assert reset[0] & 0xC0 == 0x40
        assert reset[-16:] == ids(2).reset_token(cid), "as any process would say it"
    for _ in range(3000):
        server.receive(b"\x40" + cid + bytes(40))
    assert len(server.sent) < 2000, "a flood is not answered"
    alone = Server()
    alone.receive(b"\x40" + cid + bytes(40))
    assert not alone.sent


async def test_the_ids_of_a_connection_name_its_process_and_have_their_reset_tokens() -> None:
    quic = BoundedConnection(
        limits=QuicLimits(),
        budget=MemoryBudget(1 << 20),
        now=0.0,
        ids=ids(2),
        configuration=QuicConfiguration(
            is_client=False, certificate=cast(Any, object()), private_key=cast(Any, object())
        ),
        original_destination_connection_id=os.urandom(8),
    )
    quic._remote_active_connection_id_limit = 8
    quic._replenish_connection_ids()
    issued = quic._host_cids
    assert [it.sequence_number for it in issued] == list(range(8))
    assert {process_of(it.cid, 3) for it in issued} == {2}
    assert len({it.cid for it in issued}) == 8
    assert all(it.stateless_reset_token == ids(0).reset_token(it.cid) for it in issued)
    assert quic.host_cid == issued[0].cid == quic._local_initial_source_connection_id
    told = [cast(ConnectionIdIssued, quic.next_event()).connection_id for _ in issued[1:]]
    assert told == [it.cid for it in issued[1:]], "before they are sent"
