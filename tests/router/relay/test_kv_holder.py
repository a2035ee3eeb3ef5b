"""A session that moves is told who has its KV: of the prompt, and of the reply so far."""

from __future__ import annotations

import numpy as np

from outrider.codec import varint
from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.codec.tokens import TokenCodec
from outrider.errors import UnavailableError
from outrider.v1 import common_pb2, inference_pb2
from services.router.fleet.replica import ServedModel
from tests.router.relay.mesh import DIGEST, IDENTITY, Mesh, accepted, failed, opening

BLOCK = 16
SALT = b"g"
PROMPT = list(range(100, 100 + 2 * BLOCK))
REPLY = list(range(300, 300 + BLOCK))


def mesh_of(*names: str) -> Mesh:
    mesh = Mesh(names=names)
    model = ServedModel("m", DIGEST, 2048, (1, 2), block_tokens=BLOCK, identity=IDENTITY)
    for name in names:
        mesh.registry.connected(name, model, mesh.clock())
    mesh.fleet_view.refresh(mesh.registry, mesh.clock())
    return mesh


def hold(mesh: Mesh, name: str, ids: list[int]) -> None:
    """A replica tells that it has these blocks."""
    blocks = list(block_hashes(ids, BLOCK, SALT))
    mesh.index.store(mesh.placement.owner(name), root_hash(SALT), blocks)


def packed(ids: list[int]) -> bytes:
    return varint.encode_array(np.array(ids, np.uint32))


async def begin(mesh: Mesh, edge: int) -> int:
    """A session in the middle of its reply, at the near replica, which calls it so."""
    tail = common_pb2.TokenBlock(
        codec=common_pb2.TokenCodec.ValueType(TokenCodec.VARINT),
        count=len(PROMPT),
        payload=packed(PROMPT),
    )
    ids = inference_pb2.PromptDelta(tail=tail)
    mesh.send(edge, opening(1, ids=ids, cache_salt=SALT, request_id="r"))
    (sent,) = await mesh.at_replica("near")
    assert not sent.open.HasField("kv_holder"), "nobody has more than it"
    mesh.reply("near", accepted(sent.session))
    half = BLOCK // 2
    for base in (0, half):
        some = packed(REPLY[base : base + half])
        commit = inference_pb2.Commit(base=base, upto=base + half, ids=some)
        mesh.reply("near", inference_pb2.SessionDown(session=sent.session, commit=commit))
    return sent.session


async def test_one_that_is_sent_away_takes_its_reply_along() -> None:
    mesh = mesh_of("near", "far")
    edge = mesh.edge()
    session = await begin(mesh, edge)
    hold(mesh, "near", [*PROMPT, *REPLY])
    mesh.reply("near", failed(session, UnavailableError("this replica is drained")))
    (sent,) = await mesh.at_replica("far")
    assert sent.open.kv_holder.replica == "near" and sent.open.kv_holder.address == "h:1"
    assert sent.open.kv_holder.num_tokens == len(PROMPT) + len(REPLY)
    mesh.metrics.close()


async def test_one_that_is_lost_has_nothing_but_a_third_one_may() -> None:
    mesh = mesh_of("near", "far", "third")
    edge = mesh.edge()
    await begin(mesh, edge)
    hold(mesh, "near", [*PROMPT, *REPLY])
    mesh.lose("near")
    mesh.switch.retry(mesh.clock())
    sent = [frame for name in ("far", "third") for frame in await mesh.at_replica(name)]
    assert [frame.open.HasField("kv_holder") for frame in sent] == [False]
    mesh.metrics.close()
    mesh = mesh_of("near", "far", "third")
    edge = mesh.edge()
    await begin(mesh, edge)
    hold(mesh, "third", PROMPT)
    # It has the prompt, and no room.
    mesh.registry.leave("third", mesh.clock(), "the test says so")
    mesh.lose("near")
    mesh.switch.retry(mesh.clock())
    (moved,) = await mesh.at_replica("far")
    assert moved.open.kv_holder.replica == "third"
    assert moved.open.kv_holder.num_tokens == len(PROMPT)
    mesh.metrics.close()
