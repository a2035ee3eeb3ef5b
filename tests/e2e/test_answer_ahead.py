"""Replies begun before Enter by real processes, which are killed (SIGKILL) between typing and
Enter: every reply is the reference's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.mesh import HOST
from outrider.client import Client, Message, connect
from outrider.telemetry import names
from services.edge.telemetry.edge import SEALED_TOKENS
from tests.e2e.test_hand_over import FAKE, LIMIT_S, Mesh, is_ready, running

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

REPLY_TOKENS = 60
OFTEN_KILLED = {"quarantine": {"max_failures": 100}}
"""A router's settings: one replica may be killed again and again within seconds."""
NUM_AHEAD = 12
"""Tokens that wait at the edge, at any distance: its `ahead.max_tokens` by default."""
REAL: Final[Mapping[str, object]] = {
    "engine": "openvino",
    "threads": 1,
    "max_fixed_rows": 4,
    "kv_bytes": 1 << 28,
}
PROMPTS = ("Why is the sky blue, and why is it red at dusk?", "Where do the whales go in winter?")


async def num_sealed(mesh: Mesh) -> int:
    """Tokens that wait at the edge."""
    samples = await mesh.edge.samples()
    return round(sum(it.value for it in samples if it.name == SEALED_TOKENS))


async def num_calls(mesh: Mesh) -> dict[str, float]:
    """Engine calls of each replica so far; a process that was killed begins anew."""
    return {
        name: sum(
            it.value for it in await replica.samples() if it.name == f"{names.TICK_OVERHEAD}_count"
        )
        for name, replica in mesh.replicas.items()
    }


async def typed(
    mesh: Mesh, client: Client, asked: ReferenceChat, num_ready: int = NUM_AHEAD
) -> str:
    """Type all of it at once, as pasted text is. Returns the replica that begins the reply, once so
    many of its tokens are at the edge."""
    before = await num_calls(mesh)
    client.typing(ahead=True, sampling=asked.sampling).update(asked.prompt)
    async with asyncio.timeout(LIMIT_S):
        while await num_sealed(mesh) < num_ready:
            await asyncio.sleep(0.02)
    after = await num_calls(mesh)
    return max(after, key=lambda name: after[name] - before[name])


async def sent(client: Client, asked: ReferenceChat) -> int:
    """Send it; returns how many tokens were ready. The reply has to be the reference's."""
    async with client.chat([Message("user", asked.prompt)], sampling=asked.sampling) as chat:
        result = await asyncio.wait_for(chat.result(), LIMIT_S)
    assert (result.text, result.ids) == (asked.text, asked.ids)
    return result.speculation_stats.ahead_tokens


@pytest.mark.parametrize(
    "replica", [FAKE, REAL], ids=["the fake engine, slowly", "the default model"]
)
async def test_replies_are_exact_whoever_dies_between_typing_and_enter(
    replica: Mapping[str, object],
) -> None:
    chats = make_reference_chats(str(replica["engine"]), REPLY_TOKENS, PROMPTS)
    async with (
        running(replica, {"ahead": {"min_tokens": NUM_AHEAD}}, OFTEN_KILLED) as mesh,
        connect(f"quic://{HOST}:{mesh.edge.port}", ca=mesh.ca) as client,
    ):
        await mesh.until(lambda rows: is_ready(rows, "one", "two"))
        for asked in chats:
            await typed(mesh, client, asked)
            assert await sent(client, asked) == NUM_AHEAD, "greedy and sampled"

        # The replica dies when all is sealed, and while it still computes.
        greedy, sampled, *_ = chats
        for asked, num_ready in ((greedy, NUM_AHEAD), (sampled, NUM_AHEAD), (sampled, 1)):
            holder = await typed(mesh, client, asked, num_ready)
            mesh.replicas[holder].kill()
            assert await sent(client, asked) >= num_ready, "sealed tokens are final"
            mesh.replicas[holder].spawn()
            await mesh.replicas[holder].ready()
            await mesh.until(lambda rows: is_ready(rows, "one", "two"))

        # With the edge goes what it kept.
        await typed(mesh, client, greedy)
        mesh.edge.kill()
        mesh.edge.spawn()
        await mesh.edge.ready()
        assert await sent(client, greedy) == 0
