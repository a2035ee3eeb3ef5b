"""Only a replica that computes the same goes on with a reply, unless the tenant allows another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.typing import EventDict

from outrider.errors import NoReplicaError, UnavailableError
from outrider.model_identity import short_form
from outrider.peers.health import PeerState
from outrider.v1 import inference_pb2
from services.router.admission.tenants import TenantPolicy
from services.router.fleet.replica import ReplicaLoad
from tests.router.relay.mesh import IDENTITY, Mesh, accepted, commit, done, opening, reasons
from tests.router.relay.scripted import World, block

A, B = IDENTITY, b"\x0b" * 32
TWO_MODELS = {"near": A, "far": B}


async def begun(world: World, *numbers: int, length: int = 40) -> None:
    """Sessions that have tokens from the near replica."""
    for number in numbers:
        world.open(number, seed=number, length=length)
    await world.tick("near")
    assert all(world.chats[number].committed_by for number in numbers)


async def finish(world: World) -> None:
    """All compute until all is over."""
    for _ in range(400):
        for name in world.names:
            await world.tick(name)
        await world.wait(0.2)
        if all(chat.is_over for chat in world.chats.values()):
            break
    world.mesh.table.check_invariants()
    assert len(world.mesh.table) == 0
    world.mesh.metrics.close()


async def test_a_reply_waits_for_a_replica_that_computes_the_same() -> None:
    world = World(1, identities=TWO_MODELS)
    await begun(world, 1)
    world.kill("near")
    await world.wait(5.0)
    await world.listen("far")
    assert world.runs["far"] == {} and not world.chats[1].is_over
    world.restart("near")
    await finish(world)
    chat = world.chats[1]
    assert chat.done is not None and not chat.model.is_inexact
    assert set(chat.committed_by) == {A}


async def test_another_model_behind_the_same_name_after_a_restart_is_another_model() -> None:
    world = World(3, identities={"near": A})
    await begun(world, 1)
    world.kill("near")
    world.restart("near", B)
    await world.wait(31.0)
    assert isinstance(world.chats[1].error, NoReplicaError)
    await finish(world)


async def test_where_it_is_allowed_the_reply_goes_on_and_is_labelled_counted_and_logged(
    logs: list[EventDict],
) -> None:
    world = World(4, identities=TWO_MODELS, allows_inexact=True)
    await begun(world, 1, 2)
    world.kill("near")
    await world.tick("far")
    world.mesh.telemetry.flush(len(world.mesh.table), world.mesh.registry.count())
    sample = world.mesh.metrics.registry.get_sample_value
    assert sample("outrider_router_inexact_moves_total", {"replica": "far"}) == 2
    (line,) = [line for line in logs if line["event"] == "inexact_moves"]
    assert line["num_by_identities"] == {f"{short_form(A)} to {short_form(B)}": 2}
    await finish(world)
    for chat in world.chats.values():
        assert chat.done is not None and chat.model.is_inexact
        assert set(chat.committed_by) == {A, B}


async def test_an_equal_replica_is_preferred_where_others_are_allowed() -> None:
    world = World(5, identities={"near": A, "far": B, "far-too": A}, allows_inexact=True)
    await begun(world, 1, 2, 3)
    world.kill("near")
    await world.listen("far-too")
    assert len(world.runs["far-too"]) == 3
    await finish(world)
    assert not any(chat.model.is_inexact for chat in world.chats.values())


async def test_an_equal_replica_that_is_full_is_waited_for() -> None:
    world = World(6, identities={"near": A, "far": B, "far-too": A}, allows_inexact=True)
    await begun(world, 1)
    full = ReplicaLoad(running_sessions=1, max_sessions=1, refuses_sessions=True)
    world.mesh.registry.report("far-too", full, world.mesh.clock())
    world.kill("near")
    await world.listen("far")
    assert world.runs["far"] == {}
    await world.wait(0.2)  # it reports that it has room
    await world.listen("far-too")
    assert len(world.runs["far-too"]) == 1
    await finish(world)


async def test_a_session_without_tokens_goes_anywhere_and_is_bound_there() -> None:
    world = World(7, identities=TWO_MODELS)
    world.open(1, seed=1, length=30)
    await world.listen("near")
    world.kill("near")
    await world.tick("far")
    assert set(world.chats[1].committed_by) == {B}
    world.kill("far")
    world.restart("near")
    await world.wait(1.0)
    await world.listen("near")
    assert world.runs["near"] == {}
    world.restart("far")
    await finish(world)
    assert world.chats[1].done is not None and set(world.chats[1].committed_by) == {B}


async def test_a_replica_that_opens_as_another_model_than_it_reported_is_asked_anew() -> None:
    world = World(11, identities={"near": A})
    world.kill("near")
    world.replace("near", B)
    world.open(1, seed=1, length=30)
    await world.listen("near")
    assert world.mesh.registry["near"].model_identity == B
    assert world.chats[1].kinds == [] and world.runs["near"] == {}
    await world.wait(0.2)
    await world.tick("near")
    assert set(world.chats[1].committed_by) == {B}
    world.kill("near")
    world.restart("near", A)
    await world.wait(31.0)
    assert isinstance(world.chats[1].error, NoReplicaError), "it is bound to the one that opened it"
    await finish(world)


async def serve_for_a_tenth(mesh: Mesh, opens_as: bytes) -> int:
    """The only replica opens what it was sent; how often it was connected anew for it."""
    num_connected = 0
    for frame in await mesh.at_replica("near"):
        if frame.WhichOneof("kind") != "open":
            continue
        if not mesh.reply("near", accepted(frame.session, opens_as)):
            mesh.lose("near", is_own=True)
            mesh.connect("near")
            num_connected += 1
            break
        mesh.reply("near", commit(frame.session))
        mesh.reply("near", done(frame.session))
    now = mesh.clock.advance(0.1)
    mesh.registry.report("near", ReplicaLoad(), now)
    mesh.registry.expire(now)
    mesh.switch.expire(now)
    return num_connected


async def test_a_sole_replica_that_contradicts_itself_is_not_connected_anew_for_ever() -> None:
    mesh = Mesh(names=("near",))
    edge = mesh.edge()

    def is_inconsistent() -> bool:
        return mesh.registry["near"].is_inconsistent

    for number in range(1, 9):
        mesh.send(edge, opening(number))
    num_connected = sum([await serve_for_a_tenth(mesh, B) for _ in range(290)])
    assert 2 < num_connected <= 6, "twice at first, then after 2, 4, 8 and 16 s"
    assert is_inconsistent()

    mesh.send(edge, opening(9))
    for _ in range(180):
        await serve_for_a_tenth(mesh, A)
    assert not is_inconsistent()
    assert mesh.registry["near"].state is PeerState.READY
    mesh.metrics.close()


async def test_tokens_before_the_session_is_opened_are_of_an_unknown_model() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening())
    (sent,) = await mesh.at_replica("near")
    tokens = inference_pb2.Commit(id=5, upto=1)
    mesh.reply("near", inference_pb2.SessionDown(session=sent.session, commit=tokens))
    session = mesh.table.of_edge(edge, 1)
    assert session is not None and session.num_committed == 1 and not session.model_identity
    mesh.metrics.close()


async def test_an_unknown_model_is_the_same_as_none() -> None:
    world = World(8, identities={"near": b"", "far": b""})
    await begun(world, 1)
    world.kill("near")
    world.restart("near")
    await world.wait(31.0)
    error = world.chats[1].error
    assert isinstance(error, NoReplicaError) and "unknown" in error.message
    await finish(world)


async def test_sessions_that_wait_for_their_model_hold_up_no_others() -> None:
    world = World(9, identities={"near": A, "far": B, "far-too": B})
    world.kill("far")
    world.kill("far-too")
    await begun(world, *range(1, 9))
    world.kill("near")
    world.restart("far")
    world.restart("far-too")
    world.open(11, seed=11, length=20)
    await world.tick("far")
    await world.tick("far-too")
    (had,) = (name for name in ("far", "far-too") if world.runs[name])
    world.kill(had)
    (other,) = {"far", "far-too"} - {had}
    await world.listen(other)
    assert len(world.runs[other]) == 1
    world.restart("near")
    await finish(world)
    assert all(chat.done for chat in world.chats.values())


def resuming(**fields: Any) -> Any:
    return opening(3, resume=block([5, 7]), **fields)


@pytest.mark.parametrize(("identity", "name"), [(A, "near"), (B, "far")])
async def test_an_edge_that_opens_a_reply_again_names_its_model(identity: bytes, name: str) -> None:
    world = World(10, identities=TWO_MODELS)
    world.mesh.send(world.edge, resuming(model_identity=identity))
    (sent,) = await world.mesh.at_replica(name)
    assert sent.open.model_identity == identity, "the replica checks it too"
    world.mesh.metrics.close()


@pytest.mark.parametrize(
    ("identity", "reason"),
    [(b"\x0c" * 32, "NO_REPLICA"), (b"", "NO_REPLICA"), (bytes(65), "MALFORMED_FRAME")],
    ids=["of no replica", "unknown", "too long"],
)
async def test_tokens_of_another_model_are_refused(identity: bytes, reason: str) -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, resuming(model_identity=identity))
    assert reasons(await mesh.at_edge(edge)) == [(3, reason)]
    assert len(mesh.table) == 0
    mesh.metrics.close()


async def test_tokens_of_another_model_are_taken_where_the_tenant_allows_it() -> None:
    mesh = Mesh(tenants=(TenantPolicy("bold", allow_inexact=True),))
    edge = mesh.edge()
    mesh.send(edge, resuming(model_identity=B, tenant="bold"))
    (sent,) = await mesh.at_replica("near")
    assert sent.open.model_identity == b"", "the replica is not to refuse it"
    mesh.metrics.close()


async def test_an_identity_without_tokens_binds_nobody() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening(model_identity=B))
    assert len(await mesh.at_replica("near")) == 1
    mesh.metrics.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.data())
async def test_all_tokens_of_a_reply_are_of_one_model_or_it_is_labelled(
    seed: int, allows_inexact: bool, data: st.DataObject
) -> None:
    models = st.sampled_from((A, B, b"\x0c" * 32, b""))
    names = ("near", "far", "farther", "farthest")[: data.draw(st.integers(1, 4))]
    identities = {name: data.draw(models) for name in names}
    world = World(seed, identities=identities, allows_inexact=allows_inexact)
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        world.open(number, seed=number, length=data.draw(st.integers(1, 60)))
    for _ in range(data.draw(st.integers(0, 30))):
        name = data.draw(st.sampled_from(names))
        match data.draw(
            st.sampled_from(("tick", "tick", "kill", "back", "other", "replaced", "drain"))
        ):
            case "tick":
                await world.tick(name)
            case "kill":
                world.kill(name)
            case "back":
                world.restart(name)
                await world.wait(0.1)
            case "other":
                world.restart(name, data.draw(models))
                await world.wait(0.1)
            case "replaced":
                world.replace(name, data.draw(models))
                await world.wait(0.1)
            case "drain":
                await world.listen(name)
                world.drain(name)
        world.mesh.table.check_invariants()
    for name in names:
        world.restart(name)
    await finish(world)
    for chat in world.chats.values():
        pairs = zip(chat.committed_by, chat.committed_by[1:], strict=False)
        changed = any(one != other for one, other in pairs)
        assert not changed or chat.model.is_inexact
        if chat.model.is_inexact:
            assert allows_inexact
        refused = isinstance(chat.error, UnavailableError)
        assert chat.done or refused or chat.error is not None
        if chat.done:
            assert len(chat.reply) == chat.length
