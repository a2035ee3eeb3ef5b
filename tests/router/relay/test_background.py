"""Sessions that nobody has asked for yet: placed at once or refused, and counted for nobody."""

from __future__ import annotations

from typing import Any

from services.router.admission.policy import AdmissionPolicy
from services.router.admission.pricing import Price
from services.router.admission.tenants import TenantPolicy
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import Mesh, commit, done, opening, reasons
from tests.router.relay.test_intake import FULL, IDLE, report, state

TENANTS = (TenantPolicy("metered", tokens_per_minute=1000, max_sessions=1),)
PRICES = (Price(1.0, 1.0),)
EARLY: dict[str, Any] = {"background": True, "tenant": "metered"}


def idle(**options: Any) -> Mesh:
    mesh = Mesh(policy=AdmissionPolicy(max_waiting=4), tenants=TENANTS, **options)
    for name in ("near", "far"):
        report(mesh, name, IDLE)
    return mesh


async def test_it_goes_to_an_idle_replica_as_low() -> None:
    mesh = idle()
    edge = mesh.edge()
    mesh.send(edge, opening(priority=3, **EARLY))
    (frame,) = await mesh.at_replica("near")
    assert frame.open.background and frame.open.priority == 1
    assert state(mesh, edge) is SessionState.OPENING
    assert len(mesh.admission) == 0, "nobody's"
    mesh.metrics.close()


async def test_where_it_would_wait_it_is_refused() -> None:
    mesh = idle()
    for name in ("near", "far"):
        report(mesh, name, FULL)
    edge = mesh.edge()
    mesh.send(edge, opening(**EARLY))
    assert reasons(await mesh.at_edge(edge)) == [(1, "OVERLOADED")]
    assert mesh.intake.num_waiting == 0
    mesh.metrics.close()


async def test_its_tenants_chats_are_not_counted_down() -> None:
    mesh = idle(prices=PRICES)
    edge = mesh.edge()
    for number in range(1, 6):
        mesh.send(edge, opening(number, tokens=50, **EARLY))
    assert len(await mesh.at_replica("near")) + len(await mesh.at_replica("far")) == 5
    mesh.send(edge, opening(9, tokens=50, tenant="metered"))
    assert reasons(await mesh.at_edge(edge)) == []
    assert len(mesh.admission) == 1
    mesh.metrics.close()


async def test_it_costs_nothing() -> None:
    mesh = idle(prices=PRICES)
    edge = mesh.edge()
    mesh.send(edge, opening(**EARLY))
    (frame,) = await mesh.at_replica("near")
    mesh.reply("near", commit(frame.session, 1))
    mesh.reply("near", done(frame.session))
    last = (await mesh.at_edge(edge))[-1]
    assert not last.done.usage.HasField("cost")
    assert not mesh.admission.stats.costs_nanos
    mesh.metrics.close()


async def test_a_reply_begun_ahead_takes_its_turn() -> None:
    """One that resumes jumps the queue, for its text has stopped; this one has only begun."""
    mesh = Mesh(policy=AdmissionPolicy(max_waiting=4))
    report(mesh, "near", FULL)
    report(mesh, "far", FULL)
    edge = mesh.edge()
    for number in range(1, 5):
        mesh.send(edge, opening(number))
    resume = {"count": 3}
    mesh.send(edge, opening(5, resume=resume, begun_ahead=True))
    assert reasons(await mesh.at_edge(edge)) == [(5, "OVERLOADED")], "the queue is full"
    mesh.send(edge, opening(6, resume=resume))
    assert reasons(await mesh.at_edge(edge)) == [], "it has room of its own"
    mesh.metrics.close()
