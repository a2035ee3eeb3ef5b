"""Addresses that change in the middle of a chat: it goes on, on the same connection."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from outrider.client import Client, Committed, Event, Interrupted, Resumed
from outrider.client.chat import Chat
from outrider.client.liveness import LivenessLimits
from outrider.errors import UnavailableError
from outrider.testing import eventually
from services.edge.quic.connection import EdgeConnection
from services.edge.quic.server import Routes
from tests.edge.integration.nat import Nat
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, quic

HELD_AT = 6


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silence is noticed in a second, not in seven."""
    limits = LivenessLimits(busy_s=0.3, idle_s=0.6, answer_s=0.3)
    monkeypatch.setattr("outrider.client.life_signs.LIMITS", limits)
    yield


async def halfway(mesh: Running, client: Client) -> tuple[Chat, list[Event]]:
    """A chat whose region holds it in the middle, and its events so far."""
    mesh.region.hold_at = HELD_AT
    mesh.region.gate.clear()
    chat = client.chat(ASK)
    await chat.__aenter__()
    events: list[Event] = []
    while sum(len(e.ids) for e in events if isinstance(e, Committed)) < HELD_AT:
        events.append(await anext(chat))
    return chat, events


async def finish(mesh: Running, chat: Chat, events: list[Event]) -> list[Event]:
    """Let the region go on; all events, which have to make the whole reply."""
    mesh.region.gate.set()
    events += [event async for event in chat]
    assert "".join(e.text for e in events if isinstance(e, Committed)) == REPLY
    assert (await chat.result()).text == REPLY
    assert len(mesh.region.opened) == 1, "nothing ran twice"
    return events


def peer_port(mesh: Running) -> int:
    """The client's port, as the edge's only connection knows it."""
    (connection,) = mesh.edge.listener.connections
    return int(connection._quic._network_paths[0].addr[1])


async def test_a_chat_survives_a_nat_that_forgets_its_binding(mesh: Running, relay: Nat) -> None:
    async with mesh.client(relay.port) as client:
        chat, events = await halfway(mesh, client)
        before = peer_port(mesh)
        await relay.rebind()
        events = await finish(mesh, chat, events)
        assert peer_port(mesh) != before
        assert not any(isinstance(event, Interrupted) for event in events)
        assert quic(client).lost is None
        (served,) = mesh.edge.listener.connections
        await eventually(lambda: served._quic._network_paths[0].is_validated)


async def test_every_id_that_a_client_has_leads_to_its_connection(
    monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    """From the moment it is sent: the client's next datagram may use it, if it moves."""
    all_sent, unknown, transmit = set[bytes](), set[bytes](), EdgeConnection.transmit

    def transmitted(self: EdgeConnection) -> None:
        transmit(self)
        sent = {cid.cid for cid in self._quic._host_cids if cid.was_sent}
        routes = getattr(self._connection_id_issued_handler, "__self__", None)
        if isinstance(routes, Routes):  # it has not ended
            all_sent.update(sent)
            unknown.update(sent - routes._cids)

    monkeypatch.setattr(EdgeConnection, "transmit", transmitted)
    async with mesh.client() as client:
        chat, events = await halfway(mesh, client)
        for _ in range(3):
            await client.migrate()
            await eventually(lambda: not quic(client)._quic._retire_connection_ids)
        await finish(mesh, chat, events)
    assert len(all_sent) > 8 and not unknown


async def test_a_move_that_the_loss_overtakes_leaves_no_socket(client: Client) -> None:
    connection = quic(client)
    open_socket, opened = connection._open_socket, list[asyncio.DatagramTransport]()

    async def lost_meanwhile() -> asyncio.DatagramTransport:
        opened.append(await open_socket())
        connection._lose(UnavailableError("cut by the test"))
        return opened[0]

    connection._open_socket = lost_meanwhile  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="cut by the test"):
        await client.migrate()
    assert opened[0].is_closing()
    assert not connection._transport.is_closing()  # type: ignore[union-attr]


async def test_a_chat_survives_a_move_to_another_socket(mesh: Running, client: Client) -> None:
    chat, events = await halfway(mesh, client)
    (served,) = mesh.edge.listener.connections
    port, cid = peer_port(mesh), quic(client)._quic._peer_cid.cid
    await client.migrate()
    await client.migrate()
    assert quic(client)._quic._peer_cid.cid != cid, "RFC 9000, section 9.5"
    await eventually(lambda: peer_port(mesh) != port)
    await finish(mesh, chat, events)
    assert mesh.edge.listener.connections == {served}
    await eventually(lambda: served._quic._network_paths[0].is_validated)


async def test_a_socket_that_fails_is_replaced(mesh: Running, client: Client) -> None:
    chat, events = await halfway(mesh, client)
    connection = quic(client)
    error = OSError(errno.ENETUNREACH, "the network is gone")
    connection.socket_failed(connection._transport, error)
    await eventually(lambda: connection.num_migrations == 1)
    await finish(mesh, chat, events)
    assert connection.lost is None


async def test_silence_leads_to_another_socket(mesh: Running, relay: Nat) -> None:
    async with mesh.client(relay.port) as client:
        chat, events = await halfway(mesh, client)
        assert relay.clients is not None
        relay.deaf_to.add(relay.clients)  # the old network drops everything
        events = await finish(mesh, chat, events)
        assert quic(client).num_migrations >= 1
        assert not any(isinstance(event, Interrupted) for event in events)


@pytest.mark.edge(idle_timeout_s=1.5)
async def test_silence_on_every_way_leads_to_another_connection(mesh: Running, relay: Nat) -> None:
    async with mesh.client(relay.port) as client:
        chat, events = await halfway(mesh, client)
        relay.is_cut = True
        mesh.region.gate.set()  # the reply is made while nobody can hear it
        while not isinstance(events[-1], Interrupted):
            events.append(await asyncio.wait_for(anext(chat), 30))
        relay.is_cut = False
        events = await finish(mesh, chat, events)
        kinds = [type(event) for event in events]
        assert (kinds.count(Interrupted), kinds.count(Resumed)) == (1, 1)
        assert mesh.sample("outrider_edge_resumed_chats_total", how="replayed") == 1


async def test_no_move_before_the_handshake_nor_after_the_end(mesh: Running) -> None:
    async with mesh.client() as client:
        connection = quic(client)
    with pytest.raises(UnavailableError):
        await connection.migrate()
