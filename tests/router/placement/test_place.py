"""Constraints first, then the least predicted wait; every refusal says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

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
from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.load import Load, Model
from services.router.fleet.replica import Replica
from services.router.placement.place import Decision, PlacementPolicy, Request, place, predict

DIGEST, OTHER = b"\x01" * 32, b"\x02" * 32


def replica(
    name: str,
    *,
    region: str = "us-east",
    rtt_ms: float = 1.0,
    model: Model | None = Model("m", DIGEST),  # noqa: B008 - frozen
    expected_model: str = "",
    state: PeerState = PeerState.READY,
    load: Load | None = Load(fixed_ms=10.0, row_ms=1.0),  # noqa: B008 - frozen
) -> Replica:
    return Replica(
        name=name,
        region=region,
        address="h:1",
        expected_model=expected_model,
        health=PeerHealth(HealthPolicy(), 0.0, state),
        rtt=RoundTrip(rtt_ms),
        model=model,
        load=load,
    )


def choose(
    request: Request,
    *replicas: Replica,
    seed: int = 1,
    near_ms: float = 0.0,
    max_queued: int = 0,
) -> Decision:
    return place(request, replicas, Random(seed), PlacementPolicy(near_ms, max_queued))


ASK = Request("m", DIGEST, prompt_tokens=100)


# --- the prediction ---


def test_an_idle_replica_costs_its_distance_and_the_prompt() -> None:
    wait = predict(replica("a", rtt_ms=7.0), 100)
    assert (wait.rtt_ms, wait.queue_ms, wait.prefill_ms) == (7.0, 0.0, 110.0)
    assert wait.total_ms == 117.0


def test_prompts_ahead_and_running_sessions_count() -> None:
    busy = replica("a", load=Load(3, 0, 300, fixed_ms=10.0, row_ms=1.0))
    busy.place(1, 200, now=0.0)
    wait = predict(busy, 100)
    # 500 tokens ahead in two calls; each call also carries two rows of four sessions.
    assert wait.queue_ms == 500.0 + 2 * (10.0 + 8.0)
    assert wait.prefill_ms == 100.0 + 18.0


def test_instances_share_what_is_ahead_but_not_a_prompt() -> None:
    one = Load(8, 0, 1024, fixed_ms=10.0, row_ms=1.0, max_sessions=16)
    four = replace(one, running_sessions=32, queued_prompt_tokens=4096, max_sessions=64)
    alike = predict(replica("b", load=replace(four, num_instances=4)), 100)
    assert alike == predict(replica("a", load=one), 100)
    assert alike.prefill_ms < predict(replica("b", load=four), 100).prefill_ms


def test_a_replica_that_has_not_reported_is_taken_for_small_and_idle() -> None:
    assert predict(replica("a", rtt_ms=0.0, load=None), 50).total_ms == 60.0


@given(
    st.integers(0, 50), st.integers(0, 10_000), st.integers(0, 4000), st.floats(0, 50),
    st.floats(0, 5), st.floats(0, 300),
)  # fmt: skip
def test_more_load_never_predicts_a_shorter_wait(
    running: int, queued: int, prompt: int, fixed: float, row: float, rtt: float
) -> None:
    def wait(extra_running: int, extra_queued: int, extra_prompt: int) -> float:
        load = Load(running + extra_running, 0, queued + extra_queued, fixed, row)
        return predict(replica("a", rtt_ms=rtt, load=load), prompt + extra_prompt).total_ms

    base = wait(0, 0, 0)
    assert base >= rtt
    assert wait(1, 0, 0) >= base
    assert wait(0, 100, 0) >= base
    assert wait(0, 0, 100) >= base


# --- the choice ---


def test_the_nearer_of_two_idle_replicas_is_taken_and_explained() -> None:
    decision = choose(ASK, replica("far", rtt_ms=80.0), replica("near", rtt_ms=2.0))
    assert decision.replica == "near"
    assert decision.considered == (("near", 112.0), ("far", 190.0))
    assert decision.wait.rtt_ms == 2.0


def test_a_far_idle_replica_beats_a_near_busy_one() -> None:
    busy = replica("near", load=Load(8, 2, 900, fixed_ms=10.0, row_ms=1.0))
    assert choose(ASK, busy, replica("far", rtt_ms=80.0)).replica == "far"


def test_a_burst_spreads_before_any_report() -> None:
    pair = [replica("a"), replica("b", rtt_ms=2.0)]
    got = Counter[str]()
    for session in range(20):
        name = choose(ASK, *pair).replica
        next(r for r in pair if r.name == name).place(session, 100, now=0.0)
        got[name] += 1
    assert got == {"a": 10, "b": 10}


def test_near_equals_share_by_the_better_of_two_random_ones() -> None:
    replicas = [replica(f"r{n}", rtt_ms=1.0 + n / 10) for n in range(5)]
    replicas.append(replica("out", rtt_ms=50.0))
    rng = Random(7)
    got = Counter(place(ASK, replicas, rng, PlacementPolicy(5.0, 0)).replica for _ in range(2000))
    assert got["out"] == 0
    assert got["r4"] == 0, "the worst of the near-equals never wins a comparison"
    # P(index i is the lower of two of five) = (4 - i) / 10.
    for index, share in enumerate((0.4, 0.3, 0.2, 0.1)):
        assert got[f"r{index}"] / 2000 == pytest.approx(share, abs=0.04)


def test_two_near_equals_leave_nothing_to_chance() -> None:
    pair = (replica("a", rtt_ms=2.0), replica("b", rtt_ms=1.0))
    assert {choose(ASK, *pair, seed=s, near_ms=5.0).replica for s in range(20)} == {"b"}


# --- constraints and their refusals ---


def test_residency_excludes_nearer_regions() -> None:
    request = Request("m", DIGEST, 100, residency=("eu-west", "eu-north"))
    eu = replica("eu", region="eu-west", rtt_ms=90.0)
    assert choose(request, replica("us"), eu).replica == "eu"
    with pytest.raises(NoReplicaError, match=r"eu-west, eu-north.*only in us-east"):
        choose(request, replica("us"))


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(UnknownModelError, match="model x: use one of m, n"):
        choose(Request("x", DIGEST, 1), replica("a"), replica("b", model=Model("n", DIGEST)))


def test_a_model_known_only_from_the_configuration_counts() -> None:
    unreached = replica("a", model=None, expected_model="m", state=PeerState.CONNECTING)
    with pytest.raises(UnknownModelError):
        choose(Request("x", DIGEST, 1), unreached)
    with pytest.raises(NoReplicaError, match="a CONNECTING"):
        choose(ASK, unreached)


def test_a_replica_never_reached_might_serve_any_model() -> None:
    unreached = replica("b", model=None, state=PeerState.DOWN)
    with pytest.raises(NoReplicaError, match="b DOWN") as caught:
        choose(Request("x", DIGEST, 1), replica("a"), unreached)
    assert caught.value.retry_delay_ms > 0


def test_a_vocabulary_mismatch_names_both_digests() -> None:
    with pytest.raises(VocabularyMismatchError) as caught:
        choose(Request("m", OTHER, 1), replica("a"), replica("b"))
    assert DIGEST.hex() in caught.value.message
    assert OTHER.hex() in caught.value.message


def test_ids_without_a_digest_match_nothing() -> None:
    with pytest.raises(VocabularyMismatchError, match=r"\(none\)"):
        choose(Request("m", b"", 1), replica("a"))


def test_replicas_of_the_right_vocabulary_are_preferred_to_refusing() -> None:
    old = replica("old", model=Model("m", OTHER))
    assert choose(ASK, old, replica("new", rtt_ms=100.0)).replica == "new"


@pytest.mark.parametrize("state", sorted(set(PeerState) - {PeerState.READY, PeerState.TRIAL}))
def test_only_ready_replicas_take_sessions(state: PeerState) -> None:
    with pytest.raises(NoReplicaError, match=f"a {state.name}, b {state.name}"):
        choose(ASK, replica("a", state=state), replica("b", state=state))
    assert choose(ASK, replica("a", state=state), replica("c", rtt_ms=99.0)).replica == "c"


def test_replicas_already_tried_are_left_out() -> None:
    request = Request("m", DIGEST, 1, exclude=frozenset({"a"}))
    assert choose(request, replica("a"), replica("b", rtt_ms=99.0)).replica == "b"
    with pytest.raises(NoReplicaError, match="a tried"):
        choose(request, replica("a"))


def test_full_replicas_are_overload_not_absence() -> None:
    full = replica("a", load=Load(running_sessions=8, max_sessions=8))
    assert choose(ASK, full, replica("b", rtt_ms=99.0)).replica == "b"
    with pytest.raises(OverloadedError, match="a 8 of 8") as caught:
        choose(ASK, full)
    assert caught.value.retry_delay_ms > 0


def test_sessions_may_wait_for_a_place_up_to_the_limit() -> None:
    def queued(count: int) -> Replica:
        load = Load(4, count, fixed_ms=10.0, row_ms=1.0, max_sessions=4)
        return replica("a", rtt_ms=0.0, load=load)

    wait = choose(ASK, queued(0), max_queued=2).wait
    # One of four replies of 128 tokens has to end; a call of four sessions takes 18 ms.
    assert wait.place_ms == 128 * 18.0 / 4
    assert choose(ASK, queued(1), max_queued=2).wait.place_ms == 2 * wait.place_ms
    with pytest.raises(OverloadedError):
        choose(ASK, queued(2), max_queued=2)


def test_a_far_replica_with_a_place_beats_a_near_full_one() -> None:
    full = replica("near", load=Load(4, 0, fixed_ms=10.0, row_ms=1.0, max_sessions=4))
    assert choose(ASK, full, replica("far", rtt_ms=200.0), max_queued=9).replica == "far"


def test_a_router_without_replicas_says_so() -> None:
    with pytest.raises(NoReplicaError, match="no replicas"):
        choose(ASK)


DIGESTS, MODELS, REGIONS = st.sampled_from([DIGEST, OTHER]), st.sampled_from("mn"), ("us", "eu")
LOADS = st.builds(Load, st.integers(0, 9), st.integers(0, 9), max_sessions=st.just(10))


def drawn_replica(data: st.DataObject, name: str) -> Replica:
    entry = replica(
        name,
        region=data.draw(st.sampled_from(REGIONS)),
        rtt_ms=data.draw(st.floats(0.1, 300)),
        model=data.draw(st.none() | st.builds(Model, MODELS, DIGESTS)),
        state=data.draw(st.sampled_from(PeerState)),
        load=data.draw(st.none() | LOADS),
    )
    if entry.model is None and entry.takes_sessions:
        entry.health.state = PeerState.CONNECTING  # READY implies that the model is known
    return entry


def is_able(entry: Replica, request: Request) -> bool:
    """The constraints, said once more."""
    return (
        entry.takes_sessions
        and entry.model == Model(request.model, request.vocabulary_digest)
        and (not request.residency or entry.region in request.residency)
        and entry.num_excess == 0
    )


@given(st.data())
def test_whatever_is_chosen_meets_every_constraint(data: st.DataObject) -> None:
    replicas = [drawn_replica(data, f"r{n}") for n in range(data.draw(st.integers(0, 6)))]
    request = Request(
        data.draw(MODELS),
        data.draw(DIGESTS),
        data.draw(st.integers(1, 4000)),
        residency=tuple(data.draw(st.lists(st.sampled_from(REGIONS), max_size=1))),
    )
    able = {entry.name for entry in replicas if is_able(entry, request)}
    try:
        decision = choose(request, *replicas, near_ms=5.0)
    except OutriderError:
        assert not able
    else:
        assert {name for name, _ in decision.considered} == able
        assert decision.wait.total_ms <= decision.considered[0][1] + 5.0
