"""How long a replica may be silent."""

from __future__ import annotations

from services.router.fleet.replica import ReplicaLoad
from services.router.relay.replica_monitor import HangDetector, HangPolicy
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import Mesh, accepted, commit, opening


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
