"""Replies that move in one moment go where there is KV memory for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from outrider.v1 import common_pb2, inference_pb2
from services.router.fleet.replica import ReplicaLoad
from tests.router.relay.mesh import Mesh, accepted, opening

NUM_CHATS = 12
BLOCK_TOKENS, CHAT_BLOCKS = 16, 5
SAMPLING = common_pb2.Sampling(max_tokens=54)
"""With ten tokens of the prompt, and a part of a block, a chat takes 80 tokens."""


def serve(mesh: Mesh, name: str, num_blocks: int) -> None:
    """A replica says how large its KV blocks are, and how many are free."""
    model = mesh.registry.find(name).model  # type: ignore[union-attr]
    assert model is not None
    now = mesh.clock()
    mesh.registry.connected(name, replace(model, block_tokens=BLOCK_TOKENS), now)
    load = ReplicaLoad(
        fixed_ms=0.1,
        row_ms=0.01,
        service_ms=5000.0,
        kv_blocks_total=num_blocks,
        kv_blocks_free=num_blocks,
    )
    mesh.registry.report(name, load, now)


@pytest.mark.parametrize(("num_far", "num_farther"), [(4, 8), (1, 11), (12, 12)])
async def test_replies_of_a_lost_replica_are_spread_by_the_memory_of_the_others(
    num_far: int, num_farther: int
) -> None:
    mesh = Mesh(names=("near", "far", "farther"))
    mesh.registry.probed("farther", 140.0, True, mesh.clock())
    for name, count in (("near", NUM_CHATS), ("far", num_far), ("farther", num_farther)):
        serve(mesh, name, count * CHAT_BLOCKS)
    edge = mesh.edge()
    for number in range(1, NUM_CHATS + 1):
        mesh.send(edge, opening(number, sampling=SAMPLING))
    sent = await mesh.at_replica("near")
    assert len(sent) == NUM_CHATS
    for frame in sent:
        mesh.reply("near", accepted(frame.session))
        with_token = inference_pb2.Commit(upto=1, id=7)
        mesh.reply("near", inference_pb2.SessionDown(session=frame.session, commit=with_token))

    mesh.lose("near")

    moved = Counter({name: len(await mesh.at_replica(name)) for name in ("far", "farther")})
    assert moved == {"far": num_far, "farther": NUM_CHATS - num_far}
    mesh.metrics.close()
