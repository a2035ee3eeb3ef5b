"""UDP that is blocked in the middle of replies, before an edge of two real processes: TCP leads to
either of them, and every text is the reference's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from bench.faults.chats import make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.client import Client, Committed, Event, Interrupted, Message, Resumed, connect
from tests.edge.integration.nat import Nat

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 300
CALL_MS = 20.0
"""A reply lasts for seconds: longer than it takes to notice that nothing gets through."""
NUM_CHATS = 2
"""Whose connections over TCP reach the process that has them, or the other one."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    with local_mesh(
        engine="fake",
        regions="here",
        http=True,
        shape=("--edge-processes", "2"),
        settings=(
            "edge.http.tls=on",
            "edge.drafter.model=none",
            f"inference.fake_call_ms={CALL_MS}",
        ),
    ) as running:
        yield running


@asynccontextmanager
async def blockable(mesh: LocalMesh) -> AsyncIterator[tuple[Nat, Client]]:
    """A client, and its way over UDP. Each has a port of its own, of which nothing is known."""
    host, port = mesh.edge
    relay = Nat(port)
    await relay.start()
    where = f"quic://{host}:{relay.port}?tcp={mesh.state.service('edge')['http_port']}"
    try:
        async with connect(where, ca=mesh.ca, timeout_s=30.0) as client:
            yield relay, client
    finally:
        relay.close()


async def test_replies_go_on_over_tcp_at_either_process(mesh: LocalMesh) -> None:
    for reference in make_reference_chats("fake", num_tokens=NUM_TOKENS)[:NUM_CHATS]:
        events: list[Event] = []
        async with blockable(mesh) as (relay, client):
            asked = [Message("user", reference.prompt)]
            chat = client.chat(asked, sampling=reference.sampling, speculation="off")
            async with chat:
                async for event in chat:
                    events.append(event)
                    relay.is_cut = relay.is_cut or isinstance(event, Committed)
                result = await chat.result()
            assert client.way == "TCP"
        assert (result.text, result.ids) == (reference.text, reference.ids)
        committed = [event for event in events if isinstance(event, Committed)]
        assert "".join(event.text for event in committed) == reference.text
        assert any(isinstance(event, Interrupted) for event in events)
        assert any(isinstance(event, Resumed) for event in events)
