"""How long a replica may be silent."""

from __future__ import annotations

import pytest

from outrider.engine_calls import Crash, EngineCall
from services.router.fleet.replica import ReplicaLoad
from services.router.relay.poison import LossRecord
from services.router.relay.policy import HangPolicy
from services.router.relay.replica_monitor import HangDetector
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import Mesh, accepted, begun, commit, opening
from tests.router.relay.scripted import World


def test_a_replica_may_be_silent_for_as_long_as_its_calls_take() -> None:
    detector = HangDetector(HangPolicy(min_silence_s=2.0, num_calls=20.0))
    assert detector.limit_s(longest_call_ms=35.6) == 2.0
    assert detector.limit_s(longest_call_ms=306.0) == 20 * 306 / 1000


def test_any_frame_is_a_sign_of_life() -> None:
    detector = HangDetector(HangPolicy())
    detector.heard(1, 5.0)
    assert not detector.is_silent(1, 2.0, 6.9)
    assert detector.is_silent(1, 2.0, 7.0)
    detector.detached(1)
    assert detector.is_silent(1, 2.0, 5.0), "nothing was heard of it yet"


def reported(world: World, call: EngineCall | None, seconds: float) -> None:
    """Time passes in which `near` says that this call runs, and the others nothing."""
    for _ in range(round(seconds * 10)):
        now = world.mesh.clock.advance(0.1)
        if call is not None:
            call = call._replace(duration_ms=call.duration_ms + 100.0)
        load = ReplicaLoad(fixed_ms=10.0, row_ms=0.1, running_call=call or EngineCall())
        world.mesh.registry.report("near", load, now)
        world.mesh.registry.report("far", ReplicaLoad(fixed_ms=10.0, row_ms=0.1), now)
        world.mesh.switch.expire(now)


def reported_far(world: World, seconds: float) -> None:
    """Time passes in which `far` alone is there."""
    for _ in range(round(seconds * 10)):
        now = world.mesh.clock.advance(0.1)
        world.mesh.registry.report("far", ReplicaLoad(fixed_ms=10.0, row_ms=0.1), now)
        world.mesh.switch.expire(now)


async def hangs(duration_ms: float) -> tuple[World, LossRecord, int]:
    """`near` hangs in a call with the session of chat 2, which others wait for; its request."""
    world = World(1, is_patient=True)
    world.open(1, seed=1, length=90)
    await world.tick("near")
    world.open(2, seed=2, length=9)
    await world.listen("near")
    (run,) = [run for run in world.runs["near"].values() if not run.has_begun]
    (number,) = [number for number, found in world.runs["near"].items() if found is run]
    world.mesh.reply("near", begun(number))
    world.hung.add("near")
    session = world.mesh.table.of_edge(world.edge, 2)
    assert session is not None
    reported(world, EngineCall(frozenset({run.request}), 1, duration_ms), 2.2)
    return world, session.losses, run.request


async def test_a_call_that_does_not_end_counts_as_one_that_crashed() -> None:
    world, losses, request = await hangs(0.0)
    call = EngineCall(frozenset({request}), 1, 2200.0)
    assert (len(losses.unexplained), losses.crashes) == (1, set())
    reported(world, call, 8.0)
    assert losses.crashes == set(), "it may still end"
    reported(world, call._replace(duration_ms=10200.0), 3.0)
    assert (len(losses.unexplained), len(losses.crashes), losses.was_single) == (0, 1, True)


@pytest.mark.parametrize("later", [None, EngineCall(frozenset({5}), 1)])
async def test_a_replica_that_is_in_another_call_later_was_slow(later: EngineCall | None) -> None:
    """The machine had too much to do: that speaks against nobody."""
    world, losses, _ = await hangs(0.0)
    reported(world, None, 2.0)
    assert len(losses.unexplained) == 1, "reports may be old"
    reported(world, later, 1.5)
    assert (losses.unexplained, losses.crashes) == (set(), set())
    assert not losses.goes_alone


async def test_that_a_replica_goes_on_does_not_explain_its_crash_later() -> None:
    world, losses, request = await hangs(0.0)
    world.hung.clear()
    world.kill("near")
    assert len(losses.unexplained) == 1
    reported_far(world, 4.0)
    assert len(losses.unexplained) == 1, "only its next process can tell"
    call = EngineCall(frozenset({request}), 1)
    world.crashes["near"].append(Crash(world.mesh.registry["near"].process, call))
    world.restart("near")
    assert (len(losses.unexplained), len(losses.crashes)) == (0, 1)


async def test_what_a_process_is_said_to_crash_in_ends_the_doubt_about_its_hang() -> None:
    world, losses, request = await hangs(0.0)
    world.crashes["near"] = []
    world.kill("near")
    world.restart("near")
    assert (losses.unexplained, losses.crashes) == (set(), set())
    reported(world, EngineCall(frozenset({request}), 1, 60_000.0), 12.0)
    assert losses.crashes == set(), "another process"


async def test_a_session_of_a_replica_that_hangs_leaves_it_once(mesh: Mesh) -> None:
    """One whose calls are so long that by now its session alone has waited too long as well."""
    edge = mesh.edge()
    mesh.send(edge, opening())
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", accepted(sent.session))
    first = commit(sent.session)
    first.commit.id = 5  # what is known can be resumed after
    mesh.reply("near", first)
    now = mesh.clock.advance(33.0)
    for name in mesh.streams:
        mesh.registry.report(name, ReplicaLoad(fixed_ms=4000.0), now)
    mesh.switch.expire(now)
    mesh.switch.expire(mesh.clock.advance(0.1))
    (session,) = mesh.table.edge_sessions(edge)
    assert (session.replica, session.state) == ("far", SessionState.OPENING)
