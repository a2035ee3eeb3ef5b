"""Sessions go on when replicas are lost, hang, stop or fail: every token once, and exact."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cost import Cost
from outrider.errors import (
    NoReplicaError,
    PoisonousRequestError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.peers.health import PeerState
from outrider.wire import cost_of
from services.router.admission.pricing import Price
from services.router.recent_replies import RecentReplies
from services.router.relay.failover import Failover, RetryBudget
from services.router.relay.frames import RelayedSession
from services.router.relay.poison import Loss
from services.router.relay.policy import FailoverPolicy
from services.router.relay.sessions import Session
from services.router.session_request import SessionRequest
from tests.router.relay.scripted import NAMES, World


async def streaming(world: World, *numbers: int, length: int = 40) -> None:
    """Sessions that have tokens, all of them on the near replica."""
    for number in numbers:
        world.open(number, seed=number, length=length)
    await world.tick("near")
    assert all(world.chats[number].reply for number in numbers)


async def finish(world: World) -> None:
    """Replicas come back and compute until all is over."""
    for _ in range(400):
        for name in NAMES:
            world.restart(name)
            await world.tick(name)
        await world.wait(0.2)
        if all(chat.is_over for chat in world.chats.values()):
            break
    world.mesh.table.check_invariants()
    assert len(world.mesh.table) == 0
    world.mesh.metrics.close()


async def test_a_lost_replica_costs_no_token_and_the_edge_hears_of_the_next_one() -> None:
    world = World(1)
    await streaming(world, 1, 2, 3)
    world.kill("near")
    await world.tick("far")
    for chat in world.chats.values():
        assert chat.kinds.count("opened") == 1
        assert chat.kinds[2:4] == ["moved", "commit"]
    world.mesh.telemetry.flush(len(world.mesh.table), world.mesh.registry.count())
    sample = world.mesh.metrics.registry.get_sample_value
    assert sample("outrider_router_moves_total", {"replica": "far"}) == 3
    moves = [(it.left, it.replica, it.reason) for it in world.mesh.recent.moves]
    assert moves == [("near", "far", "REPLICA_LOST")] * 3
    await finish(world)
    assert [len(chat.reply) for chat in world.chats.values()] == [40] * 3
    assert world.went_alone[1] == [False, False], "nothing speaks against who had tokens"


async def test_a_chat_that_moved_is_told_what_all_of_it_costs_and_charged_once() -> None:
    world = World(1, prices=(Price(1.0, 10.0),))
    await streaming(world, 1)
    world.kill("near")
    await world.tick("far")
    world.kill("far")
    await finish(world)
    ended = world.chats[1].done
    assert ended is not None
    assert cost_of(ended.usage) == Cost(1000 * (10 + 10 * 40), "USD")
    assert world.mesh.admission.stats.take().costs_nanos["*", "m"] == 1000 * (10 + 10 * 40)


async def test_accepted_drafts_are_among_the_tokens_that_move() -> None:
    world = World(2)
    await streaming(world, 1)
    for right in (True, False, True):
        world.draft(1, right=right)
        await world.tick("near")
    world.kill("near")
    world.draft(1, right=True)
    await finish(world)
    assert world.chats[1].done is not None


async def test_a_session_between_two_replicas_waits_and_can_be_cancelled() -> None:
    world = World(3)
    await streaming(world, 1, 2)
    for name in NAMES:
        world.kill(name)
    await world.wait(5.0)
    assert not world.chats[1].is_over
    world.cancel(2)
    await world.read()
    assert world.chats[2].error is not None
    await finish(world)
    assert world.chats[1].done is not None


async def test_a_session_that_finds_no_replica_in_time_says_so() -> None:
    world = World(4)
    await streaming(world, 1)
    for name in NAMES:
        world.kill(name)
    await world.wait(31.0)
    assert isinstance(world.chats[1].error, ReplicaLostError)
    assert "far was lost" in world.chats[1].error.message
    await finish(world)


async def test_a_hung_replica_is_left_and_heard_no_more() -> None:
    world = World(5)
    await streaming(world, 1, 2)
    world.hung.add("near")
    await world.wait(1.8)
    assert not world.runs["far"]
    await world.wait(0.4)
    await world.tick("far")
    assert len(world.runs["far"]) == 2
    assert not world.mesh.registry["near"].health.takes_sessions, "nothing new goes there"
    world.hung.clear()
    late = dict(world.runs["near"])
    for upstream_session_id in late:
        world._commit("near", upstream_session_id)  # what it had to say when it was stopped
    await world.tick("near")
    assert world.runs["near"] == {}, "it was told to stop"
    await finish(world)
    assert all(chat.done for chat in world.chats.values())


async def test_a_session_that_made_no_progress_has_all_its_time_when_it_moves_again() -> None:
    world = World(12)
    await streaming(world, 1, 2, length=900)
    world.runs["near"].pop(min(world.runs["near"]))  # it serves only the other one
    for _ in range(32):
        await world.tick("near")
        await world.wait(1.0)
    assert world.chats[1].kinds[-1] != "error"
    for _ in range(32):
        for name in NAMES:
            await world.tick(name)
        await world.wait(1.0)
    assert "moved" in world.chats[1].kinds
    world.kill("far")
    await world.wait(1.0)
    assert not world.chats[1].is_over
    await finish(world)
    assert all(chat.done for chat in world.chats.values())


async def test_sessions_of_a_stalled_replica_move_at_once_and_bear_no_blame() -> None:
    """A process that starves says nothing of its requests, with tokens or without any."""
    world = World(11)
    await streaming(world, 1)
    for number in (2, 3, 4):
        world.open(number, seed=number, length=9)
    await world.listen("near")
    world.stopped.add("near")
    await world.wait(2.2)
    await world.listen("far")
    assert len(world.runs["far"]) == 4, "none waits for the others to be tried"
    world.stopped = {"far"}
    await world.wait(4.0)
    assert world.mesh.registry["near"].health.takes_sessions, "no quarantine"
    await world.listen("near")
    assert len(world.runs["near"]) == 4
    world.stopped.clear()
    await finish(world)
    assert all(chat.done for chat in world.chats.values())
    assert not any(any(opens) for opens in world.went_alone.values())


async def test_a_replica_that_serves_nobody_yet_does_not_hang() -> None:
    world = World(6)
    world.open(1, seed=1, length=9)
    await world.listen("near")
    await world.wait(20.0)
    assert world.mesh.registry["near"].health.takes_sessions
    await finish(world)
    assert world.chats[1].kinds[0] == "opened"


async def test_a_replica_that_stops_hands_its_sessions_over() -> None:
    world = World(7)
    await streaming(world, 1, 2)
    world.drain("near")
    await world.tick("far")
    assert len(world.runs["far"]) == 2
    assert world.went_alone[1] == [False, False], "to be refused is no loss"
    await finish(world)


async def test_a_poisonous_request_costs_two_replicas_and_nobody_else_anything() -> None:
    world = World(8, poison=99)
    await streaming(world, 1, 2, 3)
    world.open(4, seed=99, length=40)
    await world.tick("near")
    assert world.num_killed_by_poison == 1
    world.restart("near")
    await world.wait(0.1)
    await world.tick("far")
    await finish(world)
    assert world.num_killed_by_poison == 2
    assert isinstance(world.chats[4].error, PoisonousRequestError)
    assert all(world.chats[number].done for number in (1, 2, 3))


@pytest.mark.parametrize("fault", ["edge", "router"])
async def test_crashes_count_though_edge_or_router_dies_between_them(fault: str) -> None:
    world = World(8, poison=99)
    await streaming(world, 1, 2, 3)
    world.open(4, seed=99, length=40)
    await world.tick("near")
    world.restart("near")
    await (world.lose_edge() if fault == "edge" else world.lose_router())
    await world.tick("near")
    assert world.num_killed_by_poison == 2
    world.restart("near")
    await (world.lose_edge() if fault == "edge" else world.lose_router())
    await world.read()
    assert isinstance(world.chats[4].error, PoisonousRequestError), "no replica gets it again"
    await finish(world)
    assert world.num_killed_by_poison == 2
    assert all(world.chats[number].done for number in (1, 2, 3))


async def test_a_failed_engine_call_is_tried_elsewhere_and_then_told() -> None:
    world = World(9)
    await streaming(world, 1, 2)
    world.fail("near")
    await finish(world)
    assert all(chat.done for chat in world.chats.values())


async def test_the_end_counts_from_the_first_open() -> None:
    world = World(10)
    await streaming(world, 1)
    began = world.mesh.clock()
    world.kill("near")
    await world.wait(1.0)
    await world.tick("far")
    world.mesh.telemetry.flush(len(world.mesh.table), world.mesh.registry.count())
    paused_s = world.mesh.metrics.registry.get_sample_value("outrider_router_move_seconds_total")
    assert paused_s == pytest.approx(world.mesh.clock() - began)
    await finish(world)
    done = world.chats[1].done
    assert done is not None
    assert done.timings.ttft_ms == 0.0, "the first token came in the first replica's first call"
    assert done.timings.total_ms == pytest.approx((world.mesh.clock() - began) * 1e3, abs=201)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
async def test_any_deaths_leave_every_text_exact(seed: int, data: st.DataObject) -> None:
    world = World(seed)
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        world.open(number, seed=number, length=data.draw(st.integers(1, 60)))
    for _ in range(data.draw(st.integers(0, 30))):
        name = data.draw(st.sampled_from(NAMES))
        alive = [number for number, chat in world.chats.items() if not chat.is_over]
        match data.draw(
            st.sampled_from(("tick", "tick", "kill", "back", "hang", "drain", "draft"))
        ):
            case "tick":
                await world.tick(name)
            case "kill":
                world.kill(name)
            case "back":
                world.restart(name)
                await world.wait(0.1)
            case "hang":
                world.hung.add(name)
                await world.wait(2.2)
                world.hung.discard(name)
            case "drain":
                await world.listen(name)
                world.drain(name)
            case "draft" if alive:
                world.draft(data.draw(st.sampled_from(alive)), right=data.draw(st.booleans()))
        world.mesh.table.check_invariants()
    await finish(world)
    for chat in world.chats.values():
        # Who was refused before he had a token, and there is nobody else, is told so.
        refused = isinstance(chat.error, UnavailableError) and not chat.reply
        assert chat.done or refused
        assert refused or len(chat.reply) == chat.length


_FAULTS = (
    *("tick", "tick", "tick", "kill", "path", "own", "back", "hang", "stop", "open"),
    *("edge", "router"),
)


async def _any_faults(world: World, data: st.DataObject, num_chats: int) -> None:
    """Whatever may happen to processes and paths, one thing after the other: none of it is the
    fault of a request."""
    for _ in range(data.draw(st.integers(0, 40))):
        name = data.draw(st.sampled_from(NAMES))
        match data.draw(st.sampled_from(_FAULTS)):
            case "tick":
                await world.tick(name)
            case "kill":
                await world.listen(name)
                world.kill(name)
            case "path":
                world.break_path(name)
            case "own":
                world.kill(name, is_own=True)
            case "back":
                world.restart(name)
                await world.wait(0.1)
            case "hang":
                world.hung.add(name)
                await world.wait(data.draw(st.sampled_from((2.2, 12.0))))
                world.hung.discard(name)
            case "stop":
                world.stopped.add(name)
                await world.wait(3.2)
                world.stopped.discard(name)
            case "edge":
                await world.lose_edge()
            case "router":
                await world.lose_router()
            case "open" if len(world.chats) < 12:
                number = num_chats + len(world.chats) + 1
                world.open(number, seed=number, length=data.draw(st.integers(1, 30)))
        world.mesh.table.check_invariants()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
async def test_no_mixture_of_faults_ends_a_harmless_request(seed: int, data: st.DataObject) -> None:
    world = World(seed, max_running=data.draw(st.integers(1, 4)), is_patient=True)
    num_chats = data.draw(st.integers(1, 6))
    for number in range(1, num_chats + 1):
        world.open(number, seed=number, length=data.draw(st.integers(1, 30)))
    await _any_faults(world, data, num_chats)
    await finish(world)
    assert {number: chat.error for number, chat in world.chats.items() if chat.error} == {}
    assert all(len(chat.reply) == chat.length for chat in world.chats.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
async def test_a_poisonous_request_ends_after_three_replicas_at_most_and_no_other_ends(
    seed: int, data: st.DataObject
) -> None:
    """At whatever token it crashes its replicas, whoever is in its calls, whatever else fails; also
    if its edge or router dies. A second such death may hide another crash that was not reported
    yet."""
    world = World(
        seed,
        poison=99,
        poison_from=data.draw(st.integers(0, 6)),
        max_running=data.draw(st.integers(1, 4)),
        is_patient=True,
    )
    num_chats = data.draw(st.integers(1, 6))
    at = data.draw(st.integers(1, num_chats))
    for number in range(1, num_chats + 1):
        length = 40 if number == at else data.draw(st.integers(1, 30))
        world.open(number, seed=99 if number == at else number, length=length)
    await _any_faults(world, data, num_chats)
    await finish(world)
    errors = {number: chat.error for number, chat in world.chats.items() if chat.error}
    assert errors.keys() == {at}
    assert isinstance(errors[at], PoisonousRequestError)
    assert world.num_killed_by_poison <= 3 + max(0, world.num_deaths - 1)


async def test_all_wait_while_every_replica_is_tried_with_one_session() -> None:
    world = World(1, is_patient=True)
    for name in NAMES:
        world.mesh.registry.hung(name, "no token for 2 s", world.mesh.clock())
    await world.wait(2.2)
    assert {replica.state for replica in world.mesh.registry} == {PeerState.TRIAL}
    for number in range(1, 6):
        world.open(number, seed=number, length=10)
    await finish(world)
    assert all(chat.done is not None for chat in world.chats.values())


async def test_a_stream_that_broke_because_the_router_was_late_speaks_against_nobody() -> None:
    world = World(1)
    for number in range(1, 9):
        world.open(number, seed=number, length=40)
    for _ in range(4):
        for name in NAMES:
            world.kill(name, is_own=True)
        for name in NAMES:
            world.restart(name)
    await finish(world)
    assert all(chat.done is not None for chat in world.chats.values())
    assert all(replica.takes_sessions for replica in world.mesh.registry)


async def test_sessions_of_other_models_give_a_model_no_moves() -> None:
    policy = FailoverPolicy(share=0.25, min_moves=1, window_s=10.0)
    world = World(1, failover_policy=policy)
    await streaming(world, 1, 2, 3, 4, length=600)
    others = world.mesh.edge()
    frame = world.mesh.table.of_edge(world.edge, 1).open_frame  # type: ignore[union-attr]
    for number in range(10):
        request = SessionRequest("other")
        world.mesh.table.open(others, number, request, frame, 1, world.mesh.clock())
    assert world.mesh.table.num_sessions("m") == 4

    world.kill("near")
    await world.tick("far")
    assert len(world.runs["far"]) == 2, "one, and a quarter of this model's four"
    for _ in range(101):
        await world.wait(0.1)
        await world.tick("far")
    assert len(world.runs["far"]) == 4, "in the next window the rest"
    world.mesh.table.check_invariants()
    world.mesh.metrics.close()


def test_budgets_of_models_whose_sessions_do_not_move_any_more_are_forgotten() -> None:
    failover = World(1).mesh.failover
    for second in range(1000):
        failover._budget_of(f"model-{second}", float(second)).spend(float(second))
    assert len(failover._budgets) <= FailoverPolicy().window_s + 1


class Fleet:
    """Replicas that have room or not, by what `replica_set` says of a request: its model and the
    tens of its session's number."""

    def __init__(self) -> None:
        self.full: set[Hashable] = set()
        self.placed: list[int] = []

    def replica_set(self, request: SessionRequest) -> Hashable:
        return request.model, request.call_key // 10

    def place(self, session: RelayedSession, now: float) -> None:
        if self.replica_set(session.request) in self.full:
            raise NoReplicaError("none is left")
        self.placed.append(session.router_session_id)

    def num_sessions(self, model: str) -> int:
        return 0


def failover_of(fleet: Fleet) -> Failover:
    world = World(1).mesh
    return Failover(fleet, fleet, fleet, world.telemetry, RecentReplies())  # type: ignore[arg-type]


def lost(
    failover: Failover, model: str, *numbers: int, is_proven: bool = False
) -> list[RelayedSession]:
    """Sessions whose replica is lost, which wait for another one."""
    sessions: list[RelayedSession] = []
    for number in numbers:
        request = SessionRequest(model, call_key=number)
        sessions.append(Session(1, number, number, number, 0.0, None, request))
        sessions[-1].losses.is_proven = is_proven
    failover.replica_lost(sessions, Loss("near", b"process"))
    for session in sessions:
        failover.wait(session, ReplicaLostError("lost"), 0.0)
    return sessions


def test_a_model_without_replicas_holds_up_no_suspect_of_another() -> None:
    fleet = Fleet()
    failover = failover_of(fleet)
    fleet.full = {("x", 0)}
    lost(failover, "x", 1, 2, 3, 4, is_proven=True)  # as many as are tried in vain
    lost(failover, "x", 5)
    lost(failover, "y", 6)
    assert failover.retry(0.0) == []
    assert fleet.placed == [6]


def test_a_suspect_on_trial_holds_up_no_suspect_of_another_model() -> None:
    fleet = Fleet()
    failover = failover_of(fleet)
    (first,) = lost(failover, "x", 1)
    lost(failover, "x", 2)
    lost(failover, "y", 3)
    failover.retry(0.0)
    assert fleet.placed == [1, 3], "each is alone among the suspects of its model"
    failover.first_token(first, 0.1)
    assert failover.is_due
    failover.retry(0.1)
    assert fleet.placed == [1, 3, 2]


def test_a_suspect_that_is_not_tried_lets_others_of_its_model_try() -> None:
    """Other replicas may have them."""
    fleet = Fleet()
    failover = failover_of(fleet)
    fleet.full = {("x", 0)}
    lost(failover, "x", 1, 2, 3, 4, is_proven=True)
    lost(failover, "x", 5)
    lost(failover, "x", 11)
    failover.retry(0.0)
    assert fleet.placed == [11]


def test_models_without_suspects_are_forgotten() -> None:
    failover = failover_of(Fleet())
    (suspect,) = lost(failover, "model-0", 1)
    for number in range(2, 1000):
        (session,) = lost(failover, f"model-{number}", number)
        failover.forget(session)
    assert set(failover._poison) == {"model-0", "model-999"}
    failover.retry(0.0)
    failover.first_token(suspect, 0.1)
    assert suspect.losses.num_lost == 0


def test_losses_are_explained_though_other_models_lost_replicas_since() -> None:
    failover = failover_of(Fleet())
    waiting: RelayedSession = Session(1, 1, 1, 1, 0.0, None, SessionRequest("x"))
    waiting.losses.is_waiting = True
    failover.replica_lost([waiting], Loss("near", b"process"))
    for number in range(2, 9):
        lost(failover, f"y-{number}", number)
    assert waiting.losses.goes_alone
    failover.explained("near", b"the next one", (), 0.0)
    assert not waiting.losses.goes_alone


def test_who_is_past_the_deadline_waits_for_no_budget() -> None:
    """It is over in any case, and the next replica says so."""
    fleet, policy = Fleet(), FailoverPolicy(share=0.0, min_moves=0)
    telemetry = World(1).mesh.telemetry
    recent = RecentReplies()
    failover = Failover(fleet, fleet, fleet, telemetry, recent, policy)  # type: ignore[arg-type]
    (session,) = lost(failover, "x", 1)
    session.request = replace(session.request, deadline_at=5.0)
    failover.retry(4.9)
    assert fleet.placed == []
    failover.retry(5.0)
    assert fleet.placed == [1]


def test_moves_within_the_window_are_a_share_of_the_sessions_and_some_more() -> None:
    budget = RetryBudget(FailoverPolicy(share=0.5, min_moves=3, window_s=10.0))
    for second in range(8):
        assert budget.allows(10, float(second))
        budget.spend(float(second))
    assert not budget.allows(10, 9.9)
    assert budget.allows(12, 9.9), "more sessions, more moves"
    assert budget.allows(10, 10.0), "the first one is forgotten"
    last_s = 7.0
    assert not budget.is_whole(last_s + 9.9)
    assert budget.is_whole(last_s + 10.0)
