"""Edges that break the rules, send too much or do not read; replicas that do not read."""

from __future__ import annotations

from tests.router.relay.mesh import Mesh, cancel, commit, draft, opening, reasons, start


async def test_a_number_used_twice_ends_the_session_it_names(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, opening())
    assert reasons(await mesh.at_edge(edge)) == [(1, "DUPLICATE_SESSION")]
    (sent,) = await mesh.at_replica("near")
    assert (sent.session, sent.cancel.reason) == (number, "DUPLICATE_SESSION")
    assert len(mesh.table) == 0


async def test_an_edge_that_does_not_read_loses_its_sessions_and_nobody_elses() -> None:
    mesh = Mesh(edge_capacity=8)
    slow, other = mesh.edge(), mesh.edge()
    numbers = [await start(mesh, slow, n) for n in (1, 2)]
    theirs = await start(mesh, other)
    for upto in range(5):
        for number in numbers:
            mesh.reply("near", commit(number, upto))
        mesh.reply("near", commit(theirs, upto))
        assert len(await mesh.at_edge(other)) == 1
    cancelled = await mesh.at_replica("near")
    assert [(f.session, f.cancel.reason) for f in cancelled] == [(n, "OVERLOADED") for n in numbers]
    assert len(mesh.table) == 1
    left = await mesh.at_edge(slow)
    assert len(left) == 10
    assert reasons(left)[8:] == [(1, "OVERLOADED"), (2, "OVERLOADED")]
    mesh.metrics.close()


async def test_an_edge_that_opens_and_never_reads_is_given_up() -> None:
    mesh = Mesh(edge_capacity=4)
    mesh.lose("near")
    mesh.lose("far")
    edge = mesh.edge()
    for number in range(1, 40):
        mesh.send(edge, opening(number))
    assert mesh.down[edge].is_overrun
    mesh.switch.detach_edge(edge, mesh.clock())
    assert len(mesh.table) == 0
    mesh.metrics.close()


async def test_a_replica_that_does_not_read_loses_drafts_then_opens_go_elsewhere() -> None:
    mesh = Mesh(replica_capacity=3)
    edge = mesh.edge()
    mesh.send(edge, opening())
    for base in range(5):
        mesh.send(edge, draft(base=base))
    mesh.telemetry.flush(len(mesh.table), mesh.registry.count())
    assert mesh.metrics.registry.get_sample_value("outrider_router_drafts_dropped_total") == 3
    mesh.send(edge, opening(2))
    assert [f.WhichOneof("kind") for f in await mesh.at_replica("far")] == ["open"]
    mesh.send(edge, cancel())
    sent = await mesh.at_replica("near")
    assert [f.WhichOneof("kind") for f in sent] == ["open", "draft", "draft", "cancel"]
    mesh.metrics.close()


async def test_when_no_replica_reads_opens_are_overload() -> None:
    mesh = Mesh(replica_capacity=1)
    edge = mesh.edge()
    for number in (1, 2, 3):
        mesh.send(edge, opening(number))
    (frame,) = await mesh.at_edge(edge)
    assert (frame.session, frame.error.reason) == (3, "OVERLOADED")
    assert "buffer" in frame.error.message
    mesh.metrics.close()
