"""The replica to which a session would move is asked to copy its KV while it runs elsewhere."""

from __future__ import annotations

import numpy as np

from outrider.codec import varint
from outrider.codec.block_hashes import block_hashes
from outrider.v1 import inference_pb2
from services.router.fleet.replica import ReplicaLoad
from services.router.relay.kv_ahead import KvAhead
from services.router.relay.policy import KvAheadPolicy
from tests.router.relay.mesh import DIGEST, Mesh
from tests.router.relay.test_kv_holder import (
    BLOCK,
    PROMPT,
    REPLY,
    SALT,
    begin,
    hold,
    mesh_of,
    packed,
)


def ahead_of(mesh: Mesh, *, enabled: bool = True) -> KvAhead:
    policy = KvAheadPolicy(enabled=enabled)
    return KvAhead(mesh.table, mesh.dispatch, mesh.registry, mesh.token_ids, policy)


async def test_the_next_best_replica_is_asked_once_for_what_is_new() -> None:
    mesh = mesh_of("near", "far")
    ahead = ahead_of(mesh)
    session = await begin(mesh, mesh.edge())
    hold(mesh, "near", [*PROMPT, *REPLY])
    ahead.tick(mesh.clock())
    (sent,) = await mesh.at_replica("far")
    told = sent.keep_kv
    assert sent.session == session and told.vocabulary_digest == DIGEST
    assert told.kv_holder.replica == "near" and told.kv_holder.address == "h:1"
    ids = varint.decode_array(told.ids.payload, max_count=told.ids.count)
    assert ids.tolist() == [*PROMPT, *REPLY] and told.cache_salt == SALT
    names = [*block_hashes(ids.tolist(), BLOCK, told.cache_salt)]
    assert names == [*block_hashes([*PROMPT, *REPLY], BLOCK, SALT)]
    ahead.tick(mesh.clock())
    assert not await mesh.at_replica("far"), "nothing is new"
    more = np.arange(500, 500 + BLOCK // 2).tolist()
    commit = inference_pb2.Commit(base=BLOCK, upto=BLOCK + BLOCK // 2, ids=packed(more))
    mesh.reply("near", inference_pb2.SessionDown(session=session, commit=commit))
    ahead.tick(mesh.clock())
    (sent,) = await mesh.at_replica("far")
    assert sent.keep_kv.ids.count == len(PROMPT) + BLOCK + BLOCK // 2
    mesh.metrics.close()


async def test_it_is_off_unless_it_is_set_and_leaves_busy_replicas_in_peace() -> None:
    for enabled, busy in ((False, ""), (True, "near"), (True, "far")):
        mesh = mesh_of("near", "far")
        ahead = ahead_of(mesh, enabled=enabled)
        await begin(mesh, mesh.edge())
        hold(mesh, "near", [*PROMPT, *REPLY])
        if busy:
            mesh.registry.report(busy, ReplicaLoad(overload_level=1), mesh.clock())
        ahead.tick(mesh.clock())
        assert not await mesh.at_replica("far")
        mesh.metrics.close()


async def test_a_lost_session_goes_where_its_kv_was_kept() -> None:
    mesh = mesh_of("near", "far", "third")
    ahead = ahead_of(mesh)
    await begin(mesh, mesh.edge())
    hold(mesh, "near", [*PROMPT, *REPLY])
    ahead.tick(mesh.clock())
    asked = [name for name in ("far", "third") if await mesh.at_replica(name)]
    assert len(asked) == 1
    hold(mesh, asked[0], [*PROMPT, *REPLY])
    mesh.lose("near")
    mesh.switch.retry(mesh.clock())
    (moved,) = await mesh.at_replica(asked[0])
    assert moved.WhichOneof("kind") == "open" and not moved.open.HasField("kv_holder")
    mesh.metrics.close()
