"""QUIC 0-RTT over HTTP/3: requests wait for the handshake, as chats do; a replay runs nothing."""

from __future__ import annotations

from aioquic.tls import SessionTicket

from outrider.testing import eventually
from tests.edge.http3.client import h3_client
from tests.edge.http3.lab import Lab
from tests.edge.integration.nat import Nat
from tests.edge.integration.running import Running
from tests.edge.integration.test_early_data import EARLY, visit


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
    lab: Lab, mesh: Running, relay: Nat
) -> None:
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


async def test_a_ticket_is_good_for_its_own_protocol_alone(mesh: Running) -> None:
    native = await visit(mesh, mesh.ports.main)
    ((_, ticket),) = native._tickets.items()
    async with h3_client(mesh.ports.main, mesh.ca, ticket=ticket, waits=False) as client:
        assert (await client.ask("GET", "/hello").whole()).body == b"hello"
        assert not client._quic.tls.early_data_accepted
    assert mesh.sample(EARLY) == 0
