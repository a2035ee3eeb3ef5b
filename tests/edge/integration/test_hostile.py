"""Attacks on a real edge: what it holds stays within bounds, nothing is left, and the chat beside
them ends well. Bytes and objects are counted, not seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.packet import QuicFrameType

from bench.hostile import quic_attacks as attacks
from bench.hostile.quic_client import Address, QuicAttackResult
from outrider.client import Client, Message
from outrider.errors import InvalidRequestError, MalformedFrameError, OverloadedError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.limits.listener import HandshakeLimits
from services.edge.limits.quotas import Count
from services.edge.quic.aioquic_shim import BoundedConnection
from services.edge.quic.aioquic_streams import BoundedReceiver
from services.edge.quic.connection import EdgeConnection
from tests.edge.integration import quic_attacks as more
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, RawStream, bystander, quic, raw, said, uncollected

HERE = "127.0.0.1/32"
PATIENCE_S = 60.0
"""For the edge to close on who does too much, which ends the attack."""


@dataclass
class Most:
    """The most of each that the edge held at a time."""

    received_bytes: int = 0
    early_bytes: int = 0
    sent_packets: int = 0
    fragments: int = 0
    half_open: int = 0
    connections: int = 0
    streams: int = 0
    queued: int = 0
    buffer_bytes: int = 0

    def look(self, mesh: Running) -> None:
        listener = mesh.edge.listener
        self._most("received_bytes", listener.shared._received.num_bytes)
        self._most("early_bytes", listener.shared.early_data.num_bytes)
        self._most("half_open", listener.shared.handshakes.num_half_open)
        self._most("connections", len(listener.connections))
        for connection in listener.connections:
            quic = connection._quic
            assert isinstance(quic, BoundedConnection)
            self._most("streams", len(quic._streams))
            spaces = quic._spaces.values()
            self._most("sent_packets", max((len(s.sent_packets) for s in spaces), default=0))
            paths = sum(len(path.remote_challenges) for path in quic._network_paths)
            self._most("queued", paths + len(quic._retire_connection_ids) + len(quic._host_cids))
            for stream in (*quic._streams.values(), *quic._crypto_streams.values()):
                self._most("buffer_bytes", len(stream.receiver._buffer))
                if isinstance(stream.receiver, BoundedReceiver):
                    self._most("fragments", stream.receiver.num_fragments)

    def _most(self, name: str, value: int) -> None:
        setattr(self, name, max(getattr(self, name), value))


@asynccontextmanager
async def watched(mesh: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Most]:
    """Look after each datagram; what is limited per second does not fill again, so that an attack
    is too fast on a slow machine too."""
    most, look = Most(), EdgeConnection.datagram_received

    def received(self: EdgeConnection, data: bytes, addr: Any) -> None:
        assert isinstance(self._quic, BoundedConnection)
        for bucket in (self._quic._opened, self._quic._frames):
            bucket.limit = replace(bucket.limit, per_s=0.0)
        look(self, data, addr)
        most.look(mesh)

    monkeypatch.setattr(EdgeConnection, "datagram_received", received)
    yield most


def none_is_left(mesh: Running) -> bool:
    """Whether all connections have ended; those from which nothing comes may end at once."""
    for connection in mesh.edge.listener.connections:
        connection._quic._close_at = asyncio.get_running_loop().time()
        connection.transmit()
    return not mesh.edge.listener.connections


Attack = Callable[[Address, Path], Awaitable[QuicAttackResult]]
ATTACKS: dict[str, tuple[Attack, str | None]] = {
    "doubling offsets": (lambda a, c: more.doubling_offsets(a, c), None),
    "one-byte fragments": (
        lambda a, c: attacks.one_byte_fragments(a, c, hold_s=PATIENCE_S),
        "too many fragments of a stream",
    ),
    "one-byte frames": (lambda a, c: more.one_byte_frames(a, c, num_frames=10_000), None),
    "far CRYPTO": (lambda a, c: attacks.spoofed_initials(a, c, num_initials=500), None),
    "much CRYPTO": (lambda a, c: more.crypto_fragments(a, c, num_frames=2000), None),
    "PINGs without acknowledgement": (lambda a, c: more.ping_flood(a, c), None),
    "many PINGs": (
        lambda a, c: attacks.many_pings(a, c, num_frames=60_000, hold_s=PATIENCE_S),
        "too many frames",
    ),
    "PATH_CHALLENGEs": (lambda a, c: more.path_challenges(a, c, num_frames=5000), None),
    "NEW_CONNECTION_IDs": (lambda a, c: more.connection_ids(a, c, num_frames=2000), None),
    "RETIRE_CONNECTION_IDs": (
        lambda a, c: more.retired_connection_ids(a, c, num_frames=2000),
        None,
    ),
    "ACKs": (lambda a, c: more.acknowledgements(a, c, num_frames=500), None),
    "packet numbers left out": (lambda a, c: more.ping_flood(a, c, num_skipped=1), None),
    "empty STREAM frames": (lambda a, c: more.empty_stream_frames(a, c, num_frames=5000), None),
    "rapid resets": (
        lambda a, c: attacks.rapid_resets(a, c, limit_s=PATIENCE_S, hold_s=PATIENCE_S),
        "too many streams",
    ),
    "STOP_SENDINGs": (lambda a, c: more.stopped_streams(a, c, num_frames=5000), None),
    "malformed frames": (lambda a, c: more.malformed_frames(a, c, num_connections=10), None),
    "mutated packets": (lambda a, c: attacks.mutated_packets(a, c, num_packets=500), None),
    "vanishing clients": (lambda a, c: attacks.vanishing_clients(a, c, num_clients=10), None),
    "0-RTT bytes": (lambda a, c: attacks.early_data_flood(a, c, num_frames=20_000), None),
    "0-RTT again": (lambda a, c: more.replayed_early_data(a, c, num_copies=20), None),
}


@pytest.mark.parametrize("case", ATTACKS)
@pytest.mark.edge(resumption=ResumeLimits(window_s=0.0), handshake_timeout_s=1.0)
async def test_an_attack_holds_little_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, case: str, mesh: Running
) -> None:
    attack, reason = ATTACKS[case]
    async with mesh.client() as client:
        async with bystander(mesh, client), watched(mesh, monkeypatch) as most:
            outcome = await attack(("127.0.0.1", mesh.ports.main), mesh.ca)
        assert outcome.num_sent > 0
        assert reason is None or reason in outcome.closed
        assert most.received_bytes <= 1 << 20
        assert most.early_bytes <= (1 << 20) + 512
        assert most.sent_packets <= 1100
        assert most.fragments <= 2048
        assert most.buffer_bytes == 0, "no gap is allocated"
        assert most.half_open <= 65
        assert most.streams <= 96
        assert most.queued <= 32 + 33 + 8
    await mesh.settled()
    await eventually(lambda: none_is_left(mesh))
    listener = mesh.edge.listener
    assert listener.shared._received.num_bytes == listener.shared.early_data.num_bytes == 0
    assert listener.shared.handshakes.num_half_open == 0 and not listener.shared._addresses
    for count in Count:
        assert listener.shared.quotas.held(HERE, count) == 0


@pytest.mark.edge(resumption=ResumeLimits(window_s=0.0), max_received_bytes_per_address=1 << 20)
async def test_requests_that_never_end_have_bounded_room(mesh: Running) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, mesh.edge.listener.shared._received.num_bytes)
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    address = ("127.0.0.1", mesh.ports.main)
    attack = asyncio.create_task(
        more.partial_frames(address, mesh.ca, num_connections=2, num_streams=16, hold_s=PATIENCE_S)
    )
    await eventually(lambda: most > 1 << 19)
    await asyncio.sleep(0.5)  # which leaves room for more, were there any
    attack.cancel()
    await asyncio.gather(attack, return_exceptions=True)
    watching.cancel()
    assert most <= 1 << 20
    await mesh.settled()
    await eventually(lambda: none_is_left(mesh))
    assert mesh.edge.listener.shared._received.num_bytes == 0


@pytest.mark.edge(retry_from_half_open=8, handshake_timeout_s=5.0)
async def test_half_open_handshakes_are_few_and_end(mesh: Running) -> None:
    address = ("127.0.0.1", mesh.ports.main)
    flood = asyncio.create_task(
        more.half_open_handshakes(address, mesh.ca, num_handshakes=50, hold_s=0.3)
    )
    await eventually(lambda: mesh.edge.listener.shared.handshakes.num_half_open == 8)
    async with mesh.client() as client, client.chat(ASK) as chat:
        assert (await chat.result()).text == REPLY, "who proves his address is served"
    await flood
    assert mesh.sample("outrider_edge_retries_total") > 40
    assert len(mesh.edge.listener.connections) <= 9
    await eventually(lambda: not mesh.edge.listener.connections)
    assert mesh.edge.listener.shared.handshakes.num_half_open == 0


@pytest.mark.edge(max_connections=20, max_connections_per_address=5)
async def test_idle_connections_of_one_address_leave_room_for_others(mesh: Running) -> None:
    address = ("127.0.0.1", mesh.ports.main)
    attack = asyncio.create_task(
        attacks.idle_connections(
            address, mesh.ca, num_connections=12, source="127.0.0.9", hold_s=1.0
        )
    )
    await eventually(lambda: mesh.sample("outrider_edge_refused_total", reason="quota") >= 1)
    assert mesh.edge.telemetry.num_connections == 5
    async with mesh.client() as client, client.chat(ASK) as chat:
        assert (await chat.result()).text == REPLY
    outcome = await attack
    assert outcome.num_connected == 5
    for connection in list(mesh.edge.listener.connections):
        connection.drop("the test is over")


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("max_connections_per_address", "too many connections from this address"),
        ("max_connections", "all the connections it takes"),
    ],
)
async def test_who_is_refused_is_told_at_once(
    words: Vocabulary, tmp_path: Path, limit: str, says: str
) -> None:
    async with running(words, tmp_path, REPLY, **{limit: 1}) as mesh, mesh.client() as client:
        with pytest.raises(OverloadedError, match=says):
            async with mesh.client() as other, other.chat(ASK) as refused:
                await refused.result()
        assert await said(client.chat(ASK)) == REPLY


@pytest.mark.edge(drain_s=60.0)
async def test_who_comes_while_the_edge_stops_is_told_so(mesh: Running, client: Client) -> None:
    mesh.region.hold(2)
    async with client.chat(ASK) as chat:
        await eventually(lambda: mesh.edge.telemetry.num_chats == 1)
        stopping = asyncio.create_task(mesh.edge.stop())
        await eventually(lambda: mesh.edge.listener.is_draining)
        outcome = await attacks.idle_connections(
            ("127.0.0.1", mesh.ports.main), mesh.ca, num_connections=1, hold_s=60.0
        )
        assert outcome.closed == {"this edge is shutting down": 1}
        mesh.region.gate.set()
        await chat.result()
    await stopping


async def test_above_the_watermark_nobody_new_is_let_in(mesh: Running, client: Client) -> None:
    listener = mesh.edge.listener
    listener.shared.handshakes._limits = HandshakeLimits(max_resident_bytes=1)
    listener.shared.limits = replace(listener.shared.limits, max_resident_bytes=1)
    with pytest.raises(OverloadedError, match="no memory"):
        async with mesh.client():
            pass
    assert len(listener.connections) == 1
    assert await said(client.chat(ASK)) == REPLY


@pytest.mark.edge(idle_timeout_s=1.0)
async def test_pings_do_not_keep_a_place(mesh: Running) -> None:
    address = ("127.0.0.1", mesh.ports.main)
    outcome = await attacks.idle_connections(
        address, mesh.ca, num_connections=1, ping_interval_s=0.1, hold_s=30.0
    )
    assert outcome.closed == {"nothing was asked for a while": 1}
    mesh.region.hold(2)
    async with mesh.client() as client, client.chat(ASK) as chat:
        await anext(chat)
        connection = quic(client)
        for _ in range(15):
            connection._ping()
            await asyncio.sleep(0.1)
        assert connection.lost is None, "a chat is under way"
        mesh.region.gate.set()
        assert (await chat.result()).text == REPLY


@pytest.mark.edge(idle_timeout_s=1.0)
async def test_a_stream_that_is_over_keeps_no_place(mesh: Running) -> None:
    """Its client does not end its side of it, though it is asked to."""

    def ignore(context: object, frame_type: int, buf: Any) -> None:
        buf.pull_uint_var()
        buf.pull_uint_var()

    async with raw(mesh) as connection:
        quic: Any = connection._quic
        handlers = quic._QuicConnection__frame_handlers
        handlers[QuicFrameType.STOP_SENDING] = (ignore, handlers[QuicFrameType.STOP_SENDING][1])
        quic.reset_stream = lambda stream_id, code: None
        stream = RawStream(connection, b"\x00")
        assert isinstance(await stream.error(), MalformedFrameError)
        (at_edge,) = mesh.edge.listener.connections
        assert len(at_edge.native._streams) == 1

        def is_closed() -> bool:
            connection._ping()
            return connection.lost is not None

        await eventually(is_closed)


@pytest.mark.edge(idle_timeout_s=1.0)
async def test_a_client_that_was_closed_for_it_comes_back_when_it_asks(client: Client) -> None:
    first = quic(client)
    await eventually(lambda: first.lost is not None)
    assert await said(client.chat(ASK)) == REPLY
    assert quic(client) is not first


@pytest.mark.parametrize("what", ["connection", "client", "address"])
async def test_chats_are_counted_to_their_end(words: Vocabulary, tmp_path: Path, what: str) -> None:
    """Those of one connection, of a client over its connections, and of an address."""
    secret = bytes(range(16))
    same: dict[str, Any] = {"client_secret": secret} if what == "client" else {}
    async with (
        running(words, tmp_path, REPLY, **{f"max_chats_per_{what}": 2}) as mesh,
        mesh.client(client_secret=secret) as client,
        mesh.client(**same) as another,
    ):
        mesh.region.hold(2)
        async with client.chat(ASK) as first, client.chat(ASK) as second:
            await anext(first)
            await anext(second)
            with pytest.raises(OverloadedError, match=r"chats (under way|at a time)"):
                await said((client if what == "connection" else another).chat(ASK))
            if what != "address":
                async with mesh.client() as stranger, stranger.chat(ASK) as others:
                    await anext(others)
            mesh.region.gate.set()
            assert (await first.result()).text == (await second.result()).text == REPLY
        await mesh.settled()
        assert await said(client.chat(ASK)) == REPLY
        shared = mesh.edge.listener.shared
        await eventually(lambda: not shared.client_quotas._busy)
        assert shared.quotas.held(HERE, Count.CHATS) == 0


async def test_an_ended_connection_is_freed_at_once(mesh: Running) -> None:
    with uncollected(BoundedConnection) as alive:
        async with mesh.client():
            await eventually(lambda: len(alive) == 1)
        await more.half_open_handshakes(
            ("127.0.0.1", mesh.ports.main), mesh.ca, num_handshakes=1, hold_s=0.1
        )
        (half_open,) = (it for it in mesh.edge.listener.connections if not it.is_admitted)
        half_open.drop("the test says so")
        del half_open
        await eventually(lambda: not alive)


@pytest.mark.edge(handshake_timeout_s=1.0)
async def test_a_handshake_that_never_ends_is_dropped_with_its_0_rtt(mesh: Running) -> None:
    address = ("127.0.0.1", mesh.ports.main)
    await attacks.early_data_flood(address, mesh.ca, num_frames=500, hold_s=0.0)
    room = mesh.edge.listener.shared.early_data
    await eventually(lambda: room.num_bytes >= 500)
    await eventually(lambda: not mesh.edge.listener.connections)
    assert room.num_bytes == 0
    assert mesh.sample("outrider_edge_refused_total", reason="handshake timeout") == 1


@pytest.mark.edge(max_frame_bytes=3 << 20)
async def test_windows_go_on_for_who_uses_them_up(mesh: Running, client: Client) -> None:
    """More than one window on a stream, several on the connection, more streams than may be open
    at a time."""
    with pytest.raises(InvalidRequestError):
        await said(client.chat([Message("user", "word " * 500_000)]))
    for _ in range(15):
        async with AsyncExitStack() as stack:
            chats = [await stack.enter_async_context(client.chat(ASK)) for _ in range(10)]
            for chat in chats:
                assert (await chat.result()).text == REPLY
    await mesh.settled()
    assert mesh.edge.listener.shared._received.num_bytes == 0
