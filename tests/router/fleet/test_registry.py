"""Replica health as a table, load with in-flight credit, round trips. Virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.config import ReplicaConfig
from services.router.fleet.registry import (
    TRANSITIONS,
    Load,
    Model,
    Registry,
    ReplicaState,
    RoundTrip,
    Signal,
    Transition,
)

MODEL = Model("m", b"d" * 32, 2048, (1, 2, 3))
C, R, S, D, G = (
    ReplicaState.CONNECTING,
    ReplicaState.READY,
    ReplicaState.SUSPECT,
    ReplicaState.DOWN,
    ReplicaState.DRAINING,
)

EXPECTED = {
    #               CONNECTING READY SUSPECT DOWN DRAINING
    Signal.CONNECTED: (R, R, R, R, R),
    Signal.LOST: (D, D, D, D, D),
    Signal.SERVING: (C, R, R, D, R),
    Signal.NOT_SERVING: (C, G, G, D, G),
    Signal.UNREACHED: (C, S, S, D, S),
    Signal.TIMEOUT: (D, R, D, D, G),
}


def registry(*names: str, now: float = 0.0) -> Registry:
    replicas = [ReplicaConfig(name, "r", "h:1") for name in names or ("a",)]
    return Registry(replicas, rtt_ms={"r": 10.0}, suspect_s=5.0, connect_s=3.0, now=now)


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("column", range(5))
def test_every_pair_of_state_and_signal(signal: Signal, column: int) -> None:
    before, after = (C, R, S, D, G)[column], EXPECTED[signal][column]
    table = registry()
    table["a"].state = before
    transition = table.signal("a", signal, now=7.0)
    assert table["a"].state is after
    assert transition == (None if before is after else Transition("a", before, after))
    assert table["a"].since == (0.0 if before is after else 7.0)


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(Signal)
    assert all(set(row) == set(ReplicaState) for row in TRANSITIONS.values())


def test_a_silent_suspect_goes_down_after_its_time() -> None:
    table = registry()
    table.connected("a", MODEL, now=1.0)
    table.signal("a", Signal.UNREACHED, now=2.0)
    assert table.expire(6.9) == []
    assert table.expire(7.0) == [Transition("a", S, D)]
    assert not table.is_up("a")
    assert table.expire(100.0) == []


def test_the_first_connection_has_a_limit() -> None:
    table = registry("a", "b")
    table.connected("a", MODEL, now=1.0)
    assert not table.is_settled()
    assert table.expire(3.0) == [Transition("b", C, D)]
    assert table.is_settled()


def test_a_draining_report_keeps_a_healthy_replica_draining() -> None:
    table = registry()
    table.connected("a", MODEL, now=0.0)
    assert table.report("a", Load(draining=True), now=1.0) == Transition("a", R, G)
    assert table.probed("a", 1.0, serving=True, now=2.0) is None
    table.signal("a", Signal.UNREACHED, now=3.0)
    assert table.probed("a", 1.0, serving=True, now=4.0) == Transition("a", S, G)
    table.report("a", Load(draining=False), now=5.0)
    assert table.probed("a", 1.0, serving=True, now=6.0) == Transition("a", G, R)


def test_a_reconnected_replica_starts_without_its_old_load() -> None:
    table = registry()
    table.connected("a", MODEL, now=0.0)
    table.report("a", Load(draining=True), now=1.0)
    table.signal("a", Signal.LOST, now=2.0)
    table.connected("a", MODEL, now=3.0)
    assert table["a"].load is None
    assert table["a"].state is R


def test_codecs_are_those_that_every_replica_reads() -> None:
    table = registry("a", "b", "c")
    assert table.codecs_of("m") == ()
    table.connected("a", MODEL, now=0.0)
    table.connected("b", Model("m", b"d", 0, (3, 2)), now=0.0)
    table.connected("c", Model("other", b"d", 0, ()), now=0.0)
    assert table.codecs_of("m") == (2, 3)


def test_counts_name_every_state() -> None:
    table = registry("a", "b")
    table.connected("a", MODEL, now=0.0)
    assert table.count() == {C: 1, R: 1, S: 0, D: 0, G: 0}


# --- load ---


def test_a_report_covers_what_was_placed_a_round_trip_before() -> None:
    table = registry()
    replica = table["a"]  # 10 ms away
    replica.place(1, 100, now=1.000)
    replica.place(2, 50, now=1.005)
    assert (replica.num_sessions, replica.placed_tokens) == (2, 150)
    table.report("a", Load(running_sessions=1, queued_prompt_tokens=80), now=1.012)
    assert (replica.num_sessions, replica.placed_tokens) == (2, 50)
    table.report("a", Load(running_sessions=2), now=1.016)
    assert (replica.num_sessions, replica.placed_tokens) == (2, 0)


def test_a_session_that_ends_before_the_report_is_uncounted() -> None:
    replica = registry()["a"]
    replica.place(1, 100, now=1.0)
    replica.release(1)
    replica.release(1)
    assert (replica.num_sessions, replica.placed_tokens, replica.sessions) == (0, 0, set())


def test_full_is_reported_and_placed_together() -> None:
    table = registry()
    replica = table["a"]
    assert replica.num_excess == 0
    table.report("a", Load(running_sessions=2, queued_sessions=1, max_sessions=4), now=0.0)
    assert replica.num_excess == 0
    replica.place(1, 10, now=1.0)
    assert replica.num_excess == 1
    table.report("a", Load(running_sessions=4, queued_sessions=3, max_sessions=4), now=2.0)
    assert replica.num_excess == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["place", "release", "report"]),
            st.integers(0, 5),
            st.integers(0, 1000),
            st.floats(0, 0.05),
        ),
        max_size=60,
    )
)
def test_placed_tokens_always_equal_the_sum_of_what_is_placed(
    steps: list[tuple[str, int, int, float]],
) -> None:
    replica = registry()["a"]
    now, placed = 0.0, dict[int, tuple[float, int]]()
    for verb, session, tokens, passed in steps:
        now += passed
        if verb == "place" and session not in replica.sessions:
            replica.place(session, tokens, now)
            placed[session] = (now, tokens)
        elif verb == "release":
            replica.release(session)
            placed.pop(session, None)
        elif verb == "report":
            replica.report(Load(), now)
            placed = {s: p for s, p in placed.items() if p[0] > now - 0.010}
        assert replica.placed_tokens == sum(tokens for _, tokens in placed.values())
        assert replica.num_sessions == len(placed)


# --- round trips ---


def test_the_first_sample_replaces_the_guess() -> None:
    rtt = RoundTrip(100.0)
    assert (rtt.smoothed_ms, rtt.min_ms) == (100.0, 100.0)
    rtt.add(20.0)
    assert (rtt.smoothed_ms, rtt.min_ms) == (20.0, 20.0)


def test_a_stall_moves_the_estimate_little() -> None:
    rtt = RoundTrip(100.0)
    for _ in range(10):
        rtt.add(1.0)
    rtt.add(1000.0)
    assert rtt.smoothed_ms < 3.0


def test_a_longer_path_is_learned_as_the_short_one_is_forgotten() -> None:
    rtt = RoundTrip(1.0)
    rtt.add(1.0)
    for _ in range(200):
        rtt.add(80.0)
    assert rtt.smoothed_ms == pytest.approx(80.0, rel=0.01)


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=100))
def test_the_estimate_stays_within_what_was_seen(samples: list[float]) -> None:
    rtt = RoundTrip(50.0)
    for sample in samples:
        rtt.add(sample)
    assert min(samples) * 0.999 <= rtt.smoothed_ms <= max(samples) * 1.001
