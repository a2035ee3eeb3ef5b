"""Sessions in the queue, from their open to their end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from outrider.v1 import common_pb2
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.tenants import TenantPolicy
from services.router.autoscale.advisor import FleetKey, FleetUsage
from services.router.fleet.replica import ReplicaLoad
from services.router.metrics import AutoscaleMetrics
from services.router.relay.dispatch import PromptCache
from services.router.relay.intake import RETRY_INTERVAL_S
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import Mesh, cancel, commit, done, draft, opening, reasons

FULL = ReplicaLoad(
    running_sessions=8,
    queued_sessions=8,
    fixed_ms=10.0,
    row_ms=1.0,
    max_sessions=8,
    service_ms=9000.0,
)
IDLE = ReplicaLoad(fixed_ms=10.0, row_ms=1.0, max_sessions=8)
TENANTS = (
    TenantPolicy("poor", "economy", max_sessions=1),
    TenantPolicy("metered", tokens_per_minute=200),
)


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Two regions, the near one at home; both full until a test says otherwise."""
    mesh = Mesh(policy=AdmissionPolicy(max_waiting=4), tenants=TENANTS)
    report(mesh, "near", FULL)
    report(mesh, "far", FULL)
    yield mesh
    mesh.table.check_invariants()
    assert len(mesh.admission) == len(mesh.table)
    assert mesh.intake.num_waiting == sum(mesh.admission.num_waiting().values())
    mesh.metrics.close()


def report(mesh: Mesh, name: str, load: ReplicaLoad) -> None:
    mesh.registry.report(name, load, mesh.clock())


def tick(mesh: Mesh, seconds: float = 0.1) -> None:
    mesh.clock.advance(seconds)
    mesh.switch.expire(mesh.clock())


def state(mesh: Mesh, edge: int, number: int = 1) -> SessionState:
    session = mesh.table.of_edge(edge, number)
    assert session is not None
    return session.state


async def test_a_report_places_waiting_sessions_anew_but_not_every_report_does(mesh: Mesh) -> None:
    mesh.switch.reported(mesh.clock())
    assert mesh.num_retries_scheduled == 0, "nobody waits"
    edge = mesh.edge()
    mesh.send(edge, opening())
    for _ in range(3):
        report(mesh, "near", IDLE)
        mesh.switch.reported(mesh.clock())
    assert mesh.num_retries_scheduled == 1
    mesh.clock.advance(2 * RETRY_INTERVAL_S)
    mesh.switch.reported(mesh.clock())
    assert mesh.num_retries_scheduled == 2
    mesh.switch.retry(mesh.clock())
    assert state(mesh, edge) is SessionState.OPENING


async def test_a_session_waits_for_room_with_its_drafts(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.send(edge, draft(base=7))
    assert state(mesh, edge) is SessionState.QUEUED
    tick(mesh)
    assert await mesh.at_replica("near") == await mesh.at_edge(edge) == []
    report(mesh, "near", IDLE)
    tick(mesh)
    frames = await mesh.at_replica("near")
    assert [frame.WhichOneof("kind") for frame in frames] == ["open", "draft"]
    assert state(mesh, edge) is SessionState.OPENING


async def test_the_end_of_another_session_wakes_the_queue(mesh: Mesh) -> None:
    edge = mesh.edge()
    report(mesh, "near", IDLE)
    mesh.send(edge, opening(1))
    (sent,) = await mesh.at_replica("near")
    report(mesh, "near", FULL)
    mesh.send(edge, opening(2))
    assert state(mesh, edge, 2) is SessionState.QUEUED
    mesh.num_retries_scheduled = 0
    mesh.reply("near", done(sent.session))
    assert mesh.num_retries_scheduled == 1
    report(mesh, "near", IDLE)
    mesh.switch.retry(mesh.clock())
    assert [frame.WhichOneof("kind") for frame in await mesh.at_replica("near")] == ["open"]


async def test_a_cancelled_session_leaves_the_queue(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.send(edge, cancel())
    assert reasons(await mesh.at_edge(edge)) == [(1, "CANCELLED")]
    report(mesh, "near", IDLE)
    tick(mesh)
    assert await mesh.at_replica("near") == []


async def test_an_edge_that_leaves_takes_its_sessions_from_the_queue(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1))
    mesh.send(edge, opening(2))
    mesh.switch.detach_edge(edge, mesh.clock())
    assert len(mesh.table) == len(mesh.admission) == 0


async def test_a_wait_ends_with_a_time_to_come_back_or_with_the_deadline(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1, priority=common_pb2.PRIORITY_HIGH))
    mesh.send(edge, opening(2, deadline_ms=3000))
    tick(mesh, 3.0)
    tick(mesh, 2.0)
    second, first = await mesh.at_edge(edge)
    assert reasons([second, first]) == [(2, "DEADLINE"), (1, "OVERLOADED")]
    assert first.error.retry_delay_ms > 0
    assert first.error.metadata["cause"] == "slo"


async def test_tokens_that_were_not_used_come_back(mesh: Mesh) -> None:
    edge = mesh.edge()
    report(mesh, "near", IDLE)
    sampling = common_pb2.Sampling(max_tokens=190)
    mesh.send(edge, opening(1, tenant="metered", sampling=sampling))
    mesh.send(edge, opening(2, tenant="metered"))
    (refused,) = await mesh.at_edge(edge)
    assert refused.error.reason == "INVALID_REQUEST", "256 tokens are more than it can ever have"
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", commit(sent.session, upto=5))
    mesh.reply("near", done(sent.session))
    await mesh.at_edge(edge)
    left = common_pb2.Sampling(max_tokens=200 - 15 - 10)
    mesh.send(edge, opening(3, tenant="metered", sampling=left))
    assert [frame.WhichOneof("kind") for frame in await mesh.at_replica("near")] == ["open"]


async def test_a_session_spills_over_and_returns(mesh: Mesh) -> None:
    edge = mesh.edge()
    report(mesh, "far", IDLE)
    mesh.send(edge, opening(1, priority=common_pb2.PRIORITY_HIGH))
    assert [frame.WhichOneof("kind") for frame in await mesh.at_replica("far")] == ["open"]
    assert mesh.admission.stats.take().spilled == {("us", "eu", "full"): 1}
    report(mesh, "near", IDLE)
    mesh.send(edge, opening(2, priority=common_pb2.PRIORITY_HIGH))
    assert [frame.WhichOneof("kind") for frame in await mesh.at_replica("near")] == ["open"]


async def test_what_clients_write_gives_nobody_more_turns() -> None:
    """Whom the same replicas can serve share the turns: regions that there are not, and what a
    tenant allows only replies that have begun, make no queue of their own."""
    mesh = Mesh(names=("near",), tenants=(TenantPolicy("bold", allow_inexact=True),))
    edge = mesh.edge()
    report(mesh, "near", FULL)
    tenants = ["greedy", "bold", "plain"]
    for number in range(12):
        residency = ["us", "us", f"made-up-{number}"] if number % 3 == 0 else []
        mesh.send(edge, opening(number + 1, tenant=tenants[number % 3], residency=residency))
    turns = []
    for _ in range(9):  # one place comes free after the other
        report(mesh, "near", replace(IDLE, running_sessions=7))
        mesh.switch.retry(mesh.clock.advance(0.1))
        turns += [frame.open.tenant for frame in await mesh.at_replica("near")]
        report(mesh, "near", replace(IDLE, running_sessions=8))
        mesh.clock.advance(0.1)
    assert [sorted(turns[at : at + 3]) for at in (0, 3, 6)] == [sorted(tenants)] * 3
    mesh.metrics.close()


async def test_the_prompts_of_sessions_that_have_a_replica_are_not_kept(mesh: Mesh) -> None:
    """Not beside the open, whose bytes are counted."""
    edge = mesh.edge()
    report(mesh, "near", IDLE)
    mesh.send(edge, opening(1))
    report(mesh, "near", FULL)
    mesh.send(edge, opening(2))

    def has_prompt() -> list[bool]:
        return [it.request.prompt is not None for it in mesh.admission._sessions.values()]

    assert has_prompt() == [False, True], "who waits is tried again and again"
    report(mesh, "near", IDLE)
    mesh.switch.retry(mesh.clock())
    assert has_prompt() == [False, False]
    assert len(await mesh.at_replica("near")) == 2


async def test_the_autoscale_advisor_hears_of_late_tokens_and_of_lack_of_room(mesh: Mesh) -> None:
    edge, key = mesh.edge(), FleetKey("us", "m")
    fleets = {key: FleetUsage(1, 1.0)}
    mesh.autoscale.advise(fleets, mesh.clock())
    report(mesh, "near", IDLE)
    mesh.send(edge, opening(1))
    (sent,) = await mesh.at_replica("near")
    mesh.clock.advance(0.5)
    mesh.reply("near", commit(sent.session))
    mesh.reply("near", commit(sent.session, upto=2))
    found = mesh.autoscale.advise(fleets, mesh.clock())[key]
    assert (found.num_requests, found.late_share) == (1, 1.0), "the first token counts, once"
    report(mesh, "near", FULL)
    report(mesh, "far", IDLE)
    mesh.send(edge, opening(2, priority=common_pb2.PRIORITY_HIGH))
    found = mesh.autoscale.advise(fleets, mesh.clock())[key]
    assert (found.num_requests, found.late_share) == (2, 1.0), "it spilled over"


async def test_a_slow_replica_s_prompt_makes_no_first_token_late(mesh: Mesh) -> None:
    edge, key = mesh.edge(), FleetKey("us", "m")
    fleets = {key: FleetUsage(1, 1.0)}
    mesh.autoscale.advise(fleets, mesh.clock())
    report(mesh, "near", replace(IDLE, row_ms=400.0))
    mesh.send(edge, opening(1))
    (sent,) = await mesh.at_replica("near")
    mesh.clock.advance(0.5)
    mesh.reply("near", commit(sent.session))
    found = mesh.autoscale.advise(fleets, mesh.clock())[key]
    assert (found.num_requests, found.late_share) == (1, 0.0)


async def test_counting_those_who_wait_and_are_refused_reads_no_prompt(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand long prompts would hold up the loop, and push out those that placement needs."""
    edge, key = mesh.edge(), FleetKey("us", "m")
    autoscale = AutoscaleMetrics(
        mesh.metrics,
        mesh.registry,
        mesh.intake,
        mesh.failover,
        mesh.fleet_view,
        mesh.autoscale,
        120.0,
    )
    autoscale.tick(mesh.clock())
    for number in range(1, 4):
        mesh.send(edge, opening(number, priority=common_pb2.PRIORITY_HIGH))

    def read(*_: object) -> None:
        pytest.fail("a prompt was read")

    monkeypatch.setattr(PromptCache, "of", read)
    autoscale.tick(mesh.clock.advance(1.0))
    assert autoscale.advice[key].utilization == pytest.approx((16 / 8 + 19 / 8) / 2)
    tick(mesh, 5.0)
    assert [frame.error.metadata["cause"] for frame in await mesh.at_edge(edge)] == ["slo"] * 3
    autoscale.tick(mesh.clock())
    assert autoscale.advice[key].num_requests == 3, "each of them found no room"


async def test_a_replica_lost_while_sessions_wait_is_told_when_no_other_is_left(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.lose("near")
    mesh.lose("far")
    tick(mesh)
    assert reasons(await mesh.at_edge(edge)) == [(1, "NO_REPLICA")]


async def test_a_session_waits_for_replicas_that_were_lost_a_moment_ago_and_no_longer() -> None:
    mesh = Mesh(return_s=2.0)
    edge = mesh.edge()
    for name in ("near", "far"):
        mesh.lose(name, is_own=True)
    mesh.send(edge, opening(1))
    assert state(mesh, edge) is SessionState.QUEUED
    tick(mesh, 1.0)
    before = mesh.num_retries_scheduled
    mesh.connect("near")
    assert mesh.num_retries_scheduled > before, "who waits goes on at once"
    mesh.switch.retry(mesh.clock())
    assert state(mesh, edge) is SessionState.OPENING
    mesh.lose("near", is_own=True)
    mesh.send(edge, opening(2))
    for _ in range(21):
        tick(mesh)
    assert reasons(await mesh.at_edge(edge)) == [(2, "NO_REPLICA")]
    mesh.send(edge, opening(3))
    assert reasons(await mesh.at_edge(edge)) == [(3, "NO_REPLICA")], "at once, from then on"
    mesh.metrics.close()


async def test_a_prompt_beyond_every_context_is_refused_with_both_numbers() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening(1, tokens=2048))
    (frame,) = await mesh.at_edge(edge)
    assert frame.error.reason == "PROMPT_TOO_LONG"
    assert "2048 tokens, and at most 2047 fit" in frame.error.message
    mesh.send(edge, opening(2, tokens=2047))
    assert len(mesh.table) == 1
    mesh.metrics.close()


def test_the_longest_context_is_that_of_replicas_that_said_one() -> None:
    mesh = Mesh()
    assert mesh.registry.longest_context("m") == 2048
    assert mesh.registry.longest_context("other") == 0
    mesh.metrics.close()
