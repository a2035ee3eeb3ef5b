"""Which way to an edge is tried when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.ways import (
    MAX_NETWORKS,
    TABLE,
    KnownWays,
    Race,
    RaceAction,
    RaceInput,
    RaceState,
    Way,
    WayLimits,
)

LIMITS = WayLimits(silence_s=0.25, remembered_s=600.0)
ENDED = (RaceState.WON, RaceState.LOST)


@pytest.mark.parametrize(("state", "happened"), list(itertools.product(RaceState, RaceInput)))
def test_every_state_has_a_step_for_every_input(state: RaceState, happened: RaceInput) -> None:
    after, action = TABLE[state][happened]
    assert (action is RaceAction.BEGIN_OTHER) == (
        state is RaceState.FIRST_ALONE and happened in (RaceInput.SILENT, RaceInput.FAILED)
    ), "the other way is begun once, and never where the edge has refused"
    assert (action is RaceAction.TAKE) == (happened is RaceInput.COMPLETE and state not in ENDED), (
        "whatever is complete first is used"
    )
    is_given_up = after is RaceState.LOST and state not in ENDED
    assert (action is RaceAction.GIVE_UP) == is_given_up
    assert state not in ENDED or after is state


def test_silence_begins_the_other_way_beside_the_first() -> None:
    race = Race(10.0, LIMITS)
    assert race.silent_at == 10.25
    assert race.take(RaceInput.SILENT) is RaceAction.BEGIN_OTHER
    assert race.take(RaceInput.COMPLETE) is RaceAction.TAKE


def test_silence_is_waited_for_once() -> None:
    race = Race(10.0, LIMITS)
    race.take(RaceInput.SILENT)
    assert race.silent_at is None


def test_an_answer_gives_the_first_way_more_time() -> None:
    race = Race(10.0, LIMITS)
    race.heard(10.2)
    assert race.silent_at == pytest.approx(10.45)
    race.heard(10.1)  # an earlier one, told late
    assert race.silent_at == pytest.approx(10.45)


def test_one_failure_is_none_and_two_are() -> None:
    race = Race(0.0, LIMITS)
    assert race.take(RaceInput.FAILED) is RaceAction.BEGIN_OTHER
    assert race.take(RaceInput.FAILED) is RaceAction.GIVE_UP
    assert race.state is RaceState.LOST


def test_a_refusal_of_the_edge_is_no_reason_to_try_another_way() -> None:
    race = Race(0.0, LIMITS)
    assert race.take(RaceInput.REFUSED) is RaceAction.GIVE_UP


@given(st.lists(st.sampled_from(RaceInput)))
def test_a_race_ends_once_and_tries_no_way_twice(inputs: list[RaceInput]) -> None:
    race = Race(0.0, LIMITS)
    actions = [race.take(happened) for happened in inputs]
    assert actions.count(RaceAction.BEGIN_OTHER) <= 1
    ends = [at for at, it in enumerate(actions) if it in (RaceAction.TAKE, RaceAction.GIVE_UP)]
    assert len(ends) <= 1
    assert (race.state in ENDED) == bool(ends)
    for at in ends:
        assert all(it is RaceAction.NOTHING for it in actions[at + 1 :])
        assert (race.state is RaceState.WON) == (inputs[at] is RaceInput.COMPLETE)


@given(st.floats(0, 1e6), st.lists(st.floats(0, 1e6)))
def test_the_wait_ends_after_the_last_answer(now: float, answers: list[float]) -> None:
    race = Race(now, LIMITS)
    for at in answers:
        race.heard(at)
    assert race.silent_at == max([now, *answers]) + LIMITS.silence_s


def test_tcp_is_remembered_for_its_network_for_a_time() -> None:
    known = KnownWays(LIMITS)
    assert known.first("here", 0.0) is Way.QUIC
    known.won("here", Way.TCP, 0.0, quic_answered=False)
    assert known.first("here", 599.0) is Way.TCP
    assert known.first("there", 599.0) is Way.QUIC
    assert known.first("here", 600.0) is Way.QUIC


def test_quic_that_was_only_slower_is_tried_first_again() -> None:
    known = KnownWays(LIMITS)
    known.won("here", Way.TCP, 0.0, quic_answered=True)
    assert known.first("here", 1.0) is Way.QUIC


def test_quic_that_works_is_tried_first_again() -> None:
    known = KnownWays(LIMITS)
    known.won("here", Way.TCP, 0.0, quic_answered=False)
    known.won("here", Way.QUIC, 1.0, quic_answered=True)
    assert known.first("here", 2.0) is Way.QUIC


_WINS = st.tuples(st.integers(0, 200), st.sampled_from(Way), st.booleans())


@given(st.lists(_WINS))
def test_what_is_remembered_is_bounded_and_the_newest(wins: list[tuple[int, Way, bool]]) -> None:
    known = KnownWays(LIMITS)
    newest: dict[str, Way] = {}
    for number, way, answered in wins:
        network = str(number)
        known.won(network, way, 0.0, quic_answered=answered)
        if way is Way.QUIC:
            newest.pop(network, None)
        elif not answered:
            newest.pop(network, None)
            newest[network] = way
    for network in list(newest)[-MAX_NETWORKS:]:
        assert known.first(network, 1.0) is Way.TCP
    assert sum(known.first(str(it), 1.0) is Way.TCP for it in range(201)) <= MAX_NETWORKS


@pytest.mark.parametrize("way", Way)
def test_each_way_is_the_other_of_the_other(way: Way) -> None:
    assert way.other is not way and way.other.other is way
