"""Who may have a session; every refusal says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.peers.health import PeerState
from outrider.session.types import Priority
from services.router.fleet.replica import Replica, ReplicaLoad, ServedModel
from services.router.placement.constraints import is_other_identity
from services.router.placement.types import Decision
from services.router.session_request import SessionRequest
from tests.router.placement.fleet import ASK, DIGEST, MODEL, OTHER, Town, replica


def choose(
    request: SessionRequest, *replicas: Replica, max_queued: int = 0, tried: Sequence[str] = ()
) -> Decision:
    town = Town(*replicas, max_queued=max_queued)
    return town.placement.decide(request, town.now, tried)


def test_residency_excludes_nearer_regions() -> None:
    request = SessionRequest("m", DIGEST, 100, residency=("eu-west", "eu-north"))
    eu = replica("eu", region="eu-west", rtt_ms=90.0)
    assert choose(request, replica("us"), eu).replica == "eu"
    with pytest.raises(NoReplicaError, match=r"eu-west, eu-north.*only in us-east"):
        choose(request, replica("us"))


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(UnknownModelError, match="model x; use one of m, n"):
        choose(
            SessionRequest("x", DIGEST, 1),
            replica("a"),
            replica("b", model=ServedModel("n", DIGEST)),
        )


def test_a_model_known_only_from_the_configuration_counts() -> None:
    unreached = replica("a", model=None, expected_model="m", state=PeerState.CONNECTING)
    with pytest.raises(UnknownModelError):
        choose(SessionRequest("x", DIGEST, 1), unreached)
    with pytest.raises(NoReplicaError, match="a CONNECTING"):
        choose(ASK, unreached)


def test_a_replica_never_reached_might_serve_any_model() -> None:
    unreached = replica("b", model=None, state=PeerState.DOWN)
    with pytest.raises(NoReplicaError, match="b DOWN") as caught:
        choose(SessionRequest("x", DIGEST, 1), replica("a"), unreached)
    assert caught.value.retry_delay_ms > 0


def test_a_vocabulary_mismatch_names_both_digests() -> None:
    with pytest.raises(VocabularyMismatchError) as caught:
        choose(SessionRequest("m", OTHER, 1), replica("a"), replica("b"))
    assert DIGEST.hex() in caught.value.message
    assert OTHER.hex() in caught.value.message


def test_ids_without_a_digest_match_nothing() -> None:
    with pytest.raises(VocabularyMismatchError, match=r"\(none\)"):
        choose(SessionRequest("m", b"", 1), replica("a"))


@pytest.mark.parametrize(
    "state", [s for s in PeerState if s not in (PeerState.READY, PeerState.TRIAL)]
)
def test_only_replicas_in_good_health_take_sessions(state: PeerState) -> None:
    with pytest.raises(NoReplicaError, match=f"a {state.name}, b {state.name}"):
        choose(ASK, replica("a", state=state), replica("b", state=state))
    assert choose(ASK, replica("a", state=state), replica("c", rtt_ms=99.0)).replica == "c"


def test_a_replica_on_trial_takes_one() -> None:
    on_trial = replica("a", state=PeerState.TRIAL)
    town = Town(on_trial, replica("b", rtt_ms=50.0))
    assert town.send() == "a"
    on_trial.health.begin_session(town.last)
    town.table.changed.add("a")
    assert town.send() == "b"


def test_replicas_already_tried_are_left_out() -> None:
    tried = ("a", "gone")
    assert choose(ASK, replica("a"), replica("b", rtt_ms=99.0), tried=tried).replica == "b"
    with pytest.raises(NoReplicaError, match="a tried"):
        choose(ASK, replica("a"), tried=tried)


A, B = b"\x0a" * 32, b"\x0b" * 32
BEGUN = replace(ASK, identity=A)
"""A session with tokens that a model of identity A computed."""


def computing(name: str, identity: bytes, **fields: Any) -> Replica:
    return replica(name, model=replace(MODEL, identity=identity), **fields)


def test_a_reply_goes_on_where_the_same_is_computed_however_far_that_is() -> None:
    far = computing("far", A, rtt_ms=200.0)
    decision = choose(BEGUN, computing("near", B), far)
    assert (decision.replica, decision.num_able, decision.chosen.identity) == ("far", 1, A)
    assert choose(ASK, computing("near", B), far).replica == "near", "it has not begun"


@pytest.mark.parametrize("identity", [A, b""], ids=["known", "unknown"])
def test_a_reply_that_nobody_here_can_go_on_with_is_refused_with_what_to_do(
    identity: bytes,
) -> None:
    others = [computing("b", B), computing("c", B), computing("d", b"")]
    with pytest.raises(NoReplicaError) as caught:
        choose(replace(BEGUN, identity=identity), *others)
    for said in ("2 as 0b0b0b0b, 1 as unknown", "allow_inexact", "[[router.tenants]]"):
        assert said in caught.value.message
    assert is_other_identity(caught.value)


def test_a_reply_whose_model_is_only_not_at_hand_is_no_matter_of_models() -> None:
    """Lost, tried in vain or full: it may be back."""
    down = computing("a", A, state=PeerState.DOWN)
    with pytest.raises(NoReplicaError) as caught:
        choose(BEGUN, down)
    assert not is_other_identity(caught.value)
    with pytest.raises(NoReplicaError) as caught:
        choose(BEGUN, computing("a", A), computing("b", B), tried="a")
    assert not is_other_identity(caught.value)
    full = computing("a", A, load=ReplicaLoad(running_sessions=8, max_sessions=8))
    with pytest.raises(OverloadedError):
        choose(BEGUN, full, computing("b", B))


def test_where_it_is_allowed_another_model_goes_on_if_none_of_its_own_can() -> None:
    allowed = replace(BEGUN, allows_inexact=True)
    assert choose(allowed, computing("a", A, rtt_ms=99.0), computing("b", B)).replica == "a"
    down = computing("a", A, state=PeerState.DOWN)
    assert choose(allowed, down, computing("b", B)).replica == "b"
    full = computing("a", A, load=ReplicaLoad(running_sessions=8, max_sessions=8))
    with pytest.raises(OverloadedError):
        choose(allowed, full, computing("b", B))
    # One that refused it may be full by now: its report is older.
    with pytest.raises(NoReplicaError):
        choose(allowed, computing("a", A), computing("b", B), tried="a")


def test_a_replica_that_is_another_model_after_a_restart_is_known_as_that() -> None:
    one = computing("a", A)
    town = Town(one)
    assert town.decide(BEGUN).replica == "a"
    one.model = replace(MODEL, identity=B)
    town.table.changed.add("a")
    with pytest.raises(NoReplicaError):
        town.decide(BEGUN)


def test_full_replicas_are_overload_not_absence() -> None:
    full = replica("a", load=ReplicaLoad(running_sessions=8, max_sessions=8))
    assert choose(ASK, full, replica("b", rtt_ms=99.0)).replica == "b"
    with pytest.raises(OverloadedError, match="a 8 of 8") as caught:
        choose(ASK, full)
    assert caught.value.retry_delay_ms > 0


def test_sessions_may_wait_for_a_place_up_to_the_limit() -> None:
    def queued(count: int) -> Replica:
        return replica("a", load=ReplicaLoad(4, count, fixed_ms=10.0, row_ms=1.0, max_sessions=4))

    assert choose(ASK, queued(1), max_queued=2).wait.slot_ms > 0.0
    with pytest.raises(OverloadedError):
        choose(ASK, queued(2), max_queued=2)


@pytest.mark.parametrize(("max_queue", "fits"), [(0, 0), (2, 2), (9, 4)])
def test_no_more_wait_on_a_replica_than_it_takes(max_queue: int, fits: int) -> None:
    """Beyond that it would refuse what may wait at the router."""
    load = ReplicaLoad(4, 0, fixed_ms=10.0, row_ms=1.0, max_sessions=4, max_queue=max_queue)
    for count in range(fits):
        choose(ASK, replica("a", load=replace(load, queued_sessions=count)), max_queued=4)
    with pytest.raises(OverloadedError):
        choose(ASK, replica("a", load=replace(load, queued_sessions=fits)), max_queued=4)


def test_a_far_replica_with_a_place_beats_a_near_full_one() -> None:
    full = replica("near", load=ReplicaLoad(4, 0, fixed_ms=10.0, row_ms=1.0, max_sessions=4))
    assert choose(ASK, full, replica("far", rtt_ms=200.0), max_queued=9).replica == "far"


@pytest.mark.parametrize(
    ("level", "queues_low", "refuses", "priority", "fits"),
    [
        (2, False, False, Priority.LOW, True),
        (3, True, False, Priority.LOW, False),
        (3, True, False, Priority.MEDIUM, True),
        (3, True, False, Priority.HIGH, True),
        (4, True, True, Priority.HIGH, False),
    ],
)
def test_an_overloaded_replica_gets_no_low_sessions_and_then_none(
    level: int, queues_low: bool, refuses: bool, priority: int, fits: bool
) -> None:
    load = ReplicaLoad(
        fixed_ms=10.0,
        row_ms=1.0,
        overload_level=level,
        queues_low=queues_low,
        refuses_sessions=refuses,
    )
    busy = replica("a", load=load)
    request = replace(ASK, priority=Priority(priority))
    assert choose(request, busy, replica("b", rtt_ms=99.0)).replica == ("a" if fits else "b")
    if not fits:
        with pytest.raises(OverloadedError, match="overloaded"):
            choose(request, busy)


def test_a_router_without_replicas_says_so() -> None:
    with pytest.raises(NoReplicaError, match="no replicas"):
        choose(ASK)


REGIONS = ("us", "eu")
LOADS = st.builds(ReplicaLoad, st.integers(0, 9), st.integers(0, 9), max_sessions=st.just(10))
IDENTITIES = st.sampled_from([A, B, b""])
MODELS = st.builds(
    ServedModel, st.sampled_from("mn"), st.sampled_from([DIGEST, OTHER]), identity=IDENTITIES
)


def drawn_replica(data: st.DataObject, name: str) -> Replica:
    model = data.draw(st.none() | MODELS)
    # Only a replica that was reached takes sessions, and then its model is known.
    states = st.sampled_from(PeerState) if model else st.just(PeerState.CONNECTING)
    return replica(
        name,
        region=data.draw(st.sampled_from(REGIONS)),
        rtt_ms=data.draw(st.floats(0.1, 300)),
        model=model,
        state=data.draw(states),
        load=data.draw(st.none() | LOADS),
    )


def is_able(entry: Replica, request: SessionRequest) -> bool:
    """The constraints, said once more."""
    load = entry.load or ReplicaLoad()
    return (
        entry.takes_sessions
        and entry.model is not None
        and (entry.model.name, entry.model.vocabulary_digest)
        == (request.model, request.vocabulary_digest)
        and (not request.residency or entry.region in request.residency)
        and (request.identity is None or request.identity == entry.model.identity != b"")
        and (not load.max_sessions or load.running_sessions + load.queued_sessions < 10)
    )


@given(st.data())
def test_whatever_is_chosen_meets_every_constraint(data: st.DataObject) -> None:
    replicas = [drawn_replica(data, f"r{n}") for n in range(data.draw(st.integers(0, 6)))]
    request = SessionRequest(
        data.draw(st.sampled_from("mn")),
        data.draw(st.sampled_from([DIGEST, OTHER])),
        data.draw(st.integers(1, 4000)),
        residency=tuple(data.draw(st.lists(st.sampled_from(REGIONS), max_size=1))),
        identity=data.draw(st.none() | IDENTITIES),
    )
    able = {entry.name for entry in replicas if is_able(entry, request)}
    try:
        decision = Town(*replicas, near_ms=5.0).decide(request)
    except OutriderError:
        assert not able
    else:
        assert {name for name, _ in decision.considered} == able
        assert decision.num_able == len(able)
        assert decision.wait.total_ms <= decision.considered[0][1] + 5.0


def test_a_replica_that_changes_is_judged_anew() -> None:
    town = Town(replica("a"), replica("b", rtt_ms=50.0))
    assert town.decide().replica == "a"
    town.table.rows["a"].model = replace(MODEL, name="other")
    town.table.changed.add("a")
    assert town.decide().replica == "b"
