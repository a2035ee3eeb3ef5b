"""Sessions of a model without replicas, from their open until one is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.router.admission.policy import WakeUpPolicy
from services.router.autoscale.advisor import FleetKey
from services.router.metrics import AutoscaleMetrics
from tests.router.relay.mesh import DIGEST, Mesh, cancel, commit, done, opening, reasons, texting

KEY = FleetKey("us", "m")


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Both replicas are gone."""
    mesh = Mesh(wake_up=WakeUpPolicy(("m",), 60.0))
    mesh.lose("near")
    mesh.lose("far")
    yield mesh
    mesh.table.check_invariants()
    assert len(mesh.admission) == len(mesh.table)
    mesh.metrics.close()


def advice(mesh: Mesh) -> int:
    """How many replicas the metric that autoscalers read asks for."""
    whose = (mesh.intake, mesh.failover, mesh.fleet_view)
    exported = AutoscaleMetrics(
        mesh.metrics, mesh.registry, *whose, mesh.autoscale, 120.0, woken=[KEY]
    )
    exported.tick(mesh.clock())
    return exported.advice[KEY].desired_replicas


async def test_the_edge_hears_of_the_wait_and_then_of_the_reply(mesh: Mesh) -> None:
    edge = mesh.edge()
    assert advice(mesh) == 0
    mesh.send(edge, opening(1, knows_waking=True))
    assert [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)] == ["waking"]
    assert advice(mesh) == 1
    mesh.clock.advance(30.0)
    mesh.switch.expire(mesh.clock())
    mesh.connect("near")
    assert mesh.num_retries_scheduled
    mesh.switch.retry(mesh.clock())
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", commit(sent.session))
    mesh.reply("near", done(sent.session))
    assert [it.WhichOneof("kind") for it in await mesh.at_edge(edge)] == ["commit", "done"]


async def test_an_edge_that_does_not_know_of_it_hears_nothing_until_the_reply(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1))
    assert await mesh.at_edge(edge) == []
    mesh.connect("near")
    mesh.switch.retry(mesh.clock())
    assert len(await mesh.at_replica("near")) == 1


async def test_messages_wait_too_once_they_are_ids(mesh: Mesh) -> None:
    edge, frame = mesh.edge(), texting(1)
    frame.open.knows_waking = True
    mesh.send(edge, frame)
    (session,) = mesh.texts
    mesh.switch.tokenized(session, opening().open.ids.tail, DIGEST, mesh.clock())
    assert [it.WhichOneof("kind") for it in await mesh.at_edge(edge)] == ["waking"]


async def test_a_wait_in_vain_ends(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1))
    mesh.send(edge, opening(2))
    mesh.send(edge, cancel(2))
    mesh.clock.advance(60.0)
    mesh.switch.expire(mesh.clock())
    answers = await mesh.at_edge(edge)
    assert [it.error.metadata["cause"] for it in answers if it.error.metadata] == ["wake_up"]
    assert len(mesh.table) == 0


async def test_what_nobody_has_asked_for_wakes_nothing(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1, background=True, knows_waking=True))
    assert reasons(await mesh.at_edge(edge)) == [(1, "NO_REPLICA")]
    assert advice(mesh) == 0


async def test_another_model_is_refused_at_once(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1, model="other"))
    assert reasons(await mesh.at_edge(edge)) == [(1, "UNKNOWN_MODEL")]


async def test_without_the_setting_a_session_is_refused_at_once() -> None:
    mesh = Mesh()
    mesh.lose("near")
    mesh.lose("far")
    edge = mesh.edge()
    mesh.send(edge, opening(1, knows_waking=True))
    assert reasons(await mesh.at_edge(edge)) == [(1, "NO_REPLICA")]
    mesh.metrics.close()
