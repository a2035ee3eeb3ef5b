"""Several edges and routers on one machine, with a distance between them: each edge serves, and
goes on without the router that it prefers."""

from __future__ import annotations

import os
import signal

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.client import Message, connect

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

RTT_MS = 60
NO_DRAFTER = ("edge.drafter.model=none",)
SHAPE = ("--routers", "2", "--edges", "2", "--rtt", str(RTT_MS))


async def ask(mesh: LocalMesh, edge: str, reference: ReferenceChat) -> float:
    """A chat at this edge, which says what the reference says; time to its first final token."""
    host, port = mesh.state.host, mesh.state.service(edge)["port"]
    async with connect(host, port, ca=mesh.ca) as client:
        async with client.chat(
            [Message("user", reference.prompt)], sampling=reference.sampling
        ) as asked:
            result = await asked.result()
    assert (result.text, result.ids) == (reference.text, reference.ids)
    assert result.timings.committed_ttft_ms is not None
    return result.timings.committed_ttft_ms


async def test_edges_share_routers_which_are_far_away_and_outlive_one() -> None:
    reference = make_reference_chats("fake", num_tokens=60)[0]
    with local_mesh(engine="fake", shape=SHAPE, settings=NO_DRAFTER) as mesh:
        told = outrider("status", "--state-dir", str(mesh.state_dir)).stdout
        assert told.count(f"{RTT_MS} ms from the edges") == 2
        for edge in ("edge", "edge-2"):
            assert await ask(mesh, edge, reference) >= RTT_MS
        os.kill(mesh.state.service("router-2")["pid"], signal.SIGKILL)
        await ask(mesh, "edge-2", reference)
