"""QUIC 0-RTT over HTTP/3: requests wait for the handshake, as chats do; a replay runs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aioquic.tls import SessionTicket

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.quic.early_data import TicketStore
from tests.edge.http3.client import h3_client
from tests.edge.http3.lab import Lab, serving
from tests.edge.integration.nat import Nat, nat
from tests.edge.integration.running import Running
from tests.edge.integration.test_early_data import EARLY, replay, visit


async def first_visit(mesh: Running, port: int) -> SessionTicket:
    """A first connection, for the ticket it leaves behind."""
    tickets: list[SessionTicket] = []
    async with h3_client(port, mesh.ca, on_ticket=tickets.append) as client:
        assert (await client.get("/hello")).status == 200
        await eventually(lambda: bool(tickets))
    await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
    return tickets[-1]


def hold(relay: Nat) -> None:
    """Keep what completes the handshake of the next client."""
    relay._has_answered = False
    relay.holds_answers_of_client = True
    relay.sent.clear()


async def test_a_request_in_0_rtt_waits_for_the_handshake(
    words: Vocabulary, tmp_path: Path
) -> None:
    lab = Lab()
    async with serving(words, tmp_path, lab) as mesh, nat(mesh) as relay:
        ticket = await first_visit(mesh, relay.port)
        lab.began.clear()
        hold(relay)
        async with h3_client(relay.port, mesh.ca, ticket=ticket, waits=False) as client:
            asked = [client.ask("GET", "/hello"), client.ask("POST", "/echo", b"x" * 500)]
            await eventually(lambda: mesh.sample(EARLY) > 500)
            assert lab.began == [] and mesh.edge.telemetry.num_connections == 0
            relay.release()
            assert [(await it.whole()).body for it in asked] == [b"hello", b"x" * 500]
            assert client._quic.tls.early_data_accepted
        assert sorted(lab.began) == ["/echo", "/hello"]


@pytest.mark.parametrize("keeps_tickets", [False, True])
async def test_a_recorded_flight_sent_again_runs_nothing(
    keeps_tickets: bool, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keeps_tickets:  # as for a copy sent to another edge that shares its tickets
        take = TicketStore.take
        monkeypatch.setattr(
            TicketStore, "take", lambda self, label: [t := take(self, label), t and self.add(t)][0]
        )
    lab = Lab()
    async with serving(words, tmp_path, lab) as mesh, nat(mesh) as relay:
        ticket = await first_visit(mesh, relay.port)
        relay.sent.clear()
        async with h3_client(relay.port, mesh.ca, ticket=ticket, waits=False) as client:
            assert (await client.ask("POST", "/echo", b"once").whole()).body == b"once"
        await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
        lab.began.clear()
        before = mesh.sample(EARLY)
        await replay(mesh.ports.main, relay.sent[:2])
        await eventually(lambda: (mesh.sample(EARLY) > before) == keeps_tickets)
        await asyncio.wait_for(mesh.edge.listener.services["h3"].idle(), 30)
        assert lab.began == []
        for connection in list(mesh.edge.listener.connections):
            connection.drop("the test is over")


async def test_a_ticket_is_good_for_its_own_protocol_alone(
    words: Vocabulary, tmp_path: Path
) -> None:
    lab = Lab()
    async with serving(words, tmp_path, lab) as mesh:
        native = await visit(mesh, mesh.ports.main)
        (ticket,) = native._tickets.values()
        async with h3_client(mesh.ports.main, mesh.ca, ticket=ticket, waits=False) as client:
            assert (await client.ask("GET", "/hello").whole()).body == b"hello"
            assert not client._quic.tls.early_data_accepted
        assert mesh.sample(EARLY) == 0


async def test_0_rtt_has_bounded_room(words: Vocabulary, tmp_path: Path) -> None:
    lab = Lab()
    quic = {"max_frame_bytes": 1500}
    async with serving(words, tmp_path, lab, quic=quic) as mesh, nat(mesh) as relay:
        ticket = await first_visit(mesh, relay.port)
        lab.began.clear()
        hold(relay)
        room = mesh.edge.listener.shared.early_data
        async with h3_client(relay.port, mesh.ca, ticket=ticket, waits=False) as client:
            asked = client.ask("POST", "/echo", bytes(3000))
            await eventually(lambda: mesh.sample(EARLY) > 1500)
            assert room.num_bytes == 0, "it was refused, and what it had sent is let go"
            relay.release()
            await asked.whole()
        assert lab.began == []
