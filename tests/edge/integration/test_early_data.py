"""QUIC 0-RTT: who was here before sends at once, and nothing runs before the handshake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.client import Client, Message, ModelInfo, SessionTickets, connect
from outrider.client.connection import ClientConnection
from outrider.client.wire import DESCRIBE
from outrider.errors import FrameTooLargeError, UnavailableError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.quic import certificate
from services.edge.quic.early_data import TicketStore
from tests.edge.integration.nat import Nat, nat
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, RawStream, quic, said

EARLY = "outrider_edge_early_bytes_total"


async def visit(mesh: Running, port: int) -> SessionTickets:
    """A first connection, for the ticket it leaves behind."""
    tickets = SessionTickets()
    async with mesh.client(port, tickets=tickets) as client:
        await client.describe()
        await eventually(lambda: bool(tickets._tickets))
    await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
    return tickets


async def test_a_chat_in_0_rtt_waits_for_the_handshake_and_a_question_does_not(
    words: Vocabulary, mesh: Running, relay: Nat
) -> None:
    tickets = await visit(mesh, relay.port)
    relay._has_answered = False
    relay.holds_answers_of_client = True
    async with mesh.client(relay.port, tickets=tickets, early_data=True) as client:
        async with client.chat(ASK) as chat:
            info = await asyncio.wait_for(client.describe(), 30)
            assert info.name == "edge"
            assert info.models == (ModelInfo("small", words.digest, 8192),)
            assert mesh.sample(EARLY) > 0, "the chat is there"
            assert mesh.edge.telemetry.num_connections == 0, "the handshake is not complete"
            assert mesh.edge.telemetry.num_chats == 0
            assert mesh.region.opened == []
            relay.release()
            assert (await chat.result()).text == REPLY
        assert quic(client)._quic.tls.early_data_accepted
    assert len(mesh.region.opened) == 1


@pytest.mark.parametrize("keeps_tickets", [False, True])
async def test_a_recorded_flight_sent_again_runs_nothing(
    keeps_tickets: bool, monkeypatch: pytest.MonkeyPatch, mesh: Running, relay: Nat
) -> None:
    if keeps_tickets:  # as for a copy sent to another edge that shares its tickets
        take = TicketStore.take
        monkeypatch.setattr(
            TicketStore, "take", lambda self, label: [t := take(self, label), t and self.add(t)][0]
        )
    tickets = await visit(mesh, relay.port)
    relay.sent.clear()
    async with (
        mesh.client(relay.port, tickets=tickets, early_data=True) as client,
        client.chat(ASK) as chat,
    ):
        assert (await chat.result()).text == REPLY
    await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
    before = mesh.sample(EARLY)
    await replay(mesh.ports.main, relay.sent[:2])
    await eventually(lambda: (mesh.sample(EARLY) > before) == keeps_tickets)
    assert len(mesh.region.opened) == 1
    assert mesh.edge.telemetry.num_chats == 0


async def replay(port: int, flight: list[bytes]) -> None:
    """Send datagrams from a socket of our own, and wait until the edge has answered."""
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()

    class Copycat(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            answered.set()

    transport, _ = await loop.create_datagram_endpoint(Copycat, remote_addr=("127.0.0.1", port))
    try:
        for data in flight:
            transport.sendto(data)
        await asyncio.wait_for(answered.wait(), 30)
    finally:
        transport.close()


async def test_an_edge_that_knows_no_ticket_serves_all_the_same(mesh: Running) -> None:
    tickets = await visit(mesh, mesh.ports.main)
    await mesh.restart()
    async with mesh.client(tickets=tickets, early_data=True) as client:
        assert await said(client.chat(ASK)) == REPLY
        assert not quic(client)._quic.tls.early_data_accepted
    assert mesh.sample(EARLY) == 0


async def test_a_ticket_holds_for_whoever_trusts_as_the_one_that_got_it(
    tmp_path: Path, mesh: Running
) -> None:
    """With a ticket an edge need not show its certificate again."""
    other_ca, _ = certificate.ensure(tmp_path / "other", ["localhost"], certificate.utc_now())
    tickets = SessionTickets()
    port = mesh.ports.main
    async with connect("127.0.0.1", port, insecure=True, tickets=tickets, key="") as client:
        assert await said(client.chat(ASK)) == REPLY
    assert not tickets._tickets, "of whoever answers"
    tickets = await visit(mesh, port)
    with pytest.raises(UnavailableError, match="certificate"):
        async with connect("127.0.0.1", port, ca=other_ca, tickets=tickets, key=""):
            pass
    async with mesh.client(tickets=tickets, early_data=True) as client:
        await client.describe()
        assert quic(client)._quic.tls.early_data_accepted


async def test_a_reconnected_client_sends_its_chat_in_0_rtt(mesh: Running, client: Client) -> None:
    mesh.region.hold(6)
    async with client.chat(ASK) as chat:
        while not chat._transcript.ids:
            await anext(chat)
        quic(client)._lose(UnavailableError("cut by the test"))
        await eventually(lambda: mesh.sample(EARLY) > 0)
        mesh.region.gate.set()
        assert (await chat.result()).text == REPLY
    assert len(mesh.region.opened) == 1


@pytest.mark.edge(early_data=False)
async def test_without_0_rtt_there_are_no_tickets(mesh: Running) -> None:
    tickets = SessionTickets()
    async with mesh.client(tickets=tickets) as client, client.chat(ASK) as chat:
        assert (await chat.result()).text == REPLY
    assert not len(tickets._tickets)


async def test_a_question_that_comes_byte_by_byte_is_answered(connection: ClientConnection) -> None:
    stream = RawStream(connection, DESCRIBE[:1])
    for byte in DESCRIBE[1:]:
        await asyncio.sleep(0)
        connection.send(stream.stream_id, bytes([byte]))
    await asyncio.wait_for(stream.ended.wait(), 30)
    (frame,) = stream.frames
    assert frame.description.edge == "edge"


@pytest.mark.edge(validate_addresses=True)
async def test_an_edge_that_validates_addresses_takes_0_rtt_too(mesh: Running) -> None:
    tickets = await visit(mesh, mesh.ports.main)
    async with (
        mesh.client(tickets=tickets, early_data=True) as client,
        client.chat(ASK) as chat,
    ):
        assert (await chat.result()).text == REPLY
    assert len(mesh.region.opened) == 1


@pytest.mark.edge(max_frame_bytes=4000)
async def test_more_than_a_frame_in_0_rtt_is_not_kept(mesh: Running) -> None:
    tickets = await visit(mesh, mesh.ports.main)
    async with mesh.client(tickets=tickets, early_data=True) as client:
        with pytest.raises(FrameTooLargeError):
            await said(client.chat([Message("user", "x" * 7000)]))
    assert mesh.sample(EARLY) > 4000
    assert mesh.region.opened == []


@pytest.mark.edge(max_frame_bytes=1500)
async def test_a_connection_keeps_no_more_than_a_frame_until_its_handshake_is_complete(
    mesh: Running, relay: Nat
) -> None:
    tickets = await visit(mesh, relay.port)
    relay._has_answered = False
    relay.holds_answers_of_client = True
    room = mesh.edge.listener.shared.early_data
    async with (
        mesh.client(relay.port, tickets=tickets, early_data=True) as client,
        client.chat([Message("user", "x" * 3000)]) as chat,
    ):
        await eventually(lambda: mesh.sample(EARLY) > 1500)
        assert room.num_bytes == 0, "it was refused, and what it had sent is let go"
        relay.release()
        with pytest.raises(FrameTooLargeError):
            await chat.result()
    assert mesh.region.opened == []


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.edge.limits.listener.MAX_EARLY_BYTES", 4000)


@pytest.mark.usefixtures("little_room")
@pytest.mark.edge(max_frame_bytes=4000)
async def test_all_connections_together_have_bounded_room_for_0_rtt(
    mesh: Running, relay: Nat
) -> None:
    async with nat(mesh) as other:
        tickets = [await visit(mesh, port) for port in (relay.port, other.port)]
        relay._has_answered = other._has_answered = False
        relay.holds_answers_of_client = other.holds_answers_of_client = True
        ask, room = [Message("user", "x" * 3000)], mesh.edge.listener.shared.early_data
        async with (
            mesh.client(relay.port, tickets=tickets[0], early_data=True) as client,
            client.chat(ask) as chat,
        ):
            await eventually(lambda: room.num_bytes > 3000)
            async with (
                mesh.client(other.port, tickets=tickets[1], early_data=True) as late,
                late.chat(ask) as later,
            ):
                await eventually(lambda: mesh.sample(EARLY) > 3500)
                assert 3000 < room.num_bytes <= 4000
                other.release()
                assert (await later.result()).text == REPLY
            relay.release()
            assert (await chat.result()).text == REPLY
        assert room.num_bytes == 0
