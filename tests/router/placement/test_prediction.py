"""The terms of a predicted wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.fleet.replica import ReplicaLoad
from services.router.placement.types import PredictedWait
from services.router.session_request import SessionRequest
from tests.router.placement.fleet import ASK, BLOCK, DIGEST, LOAD, Town, mover, replica

IDS = list(range(20 * BLOCK))


def wait(load: ReplicaLoad | None, prompt_tokens: int = 100, rtt_ms: float = 1.0) -> PredictedWait:
    town = Town(replica("a", load=load, rtt_ms=rtt_ms), max_queued=1000)
    return town.decide(replace(ASK, prompt_tokens=prompt_tokens)).wait


def test_an_idle_replica_costs_its_distance_and_the_prompt() -> None:
    found = wait(ReplicaLoad(fixed_ms=10.0, row_ms=1.0), rtt_ms=7.0)
    assert found == PredictedWait(7.0, 0.0, 0.0, 0.0, 0.0, 110.0, idle_prefill_ms=110.0)
    assert found.total_ms == 117.0


def test_prompts_ahead_and_running_sessions_count() -> None:
    town = Town(
        replica("a", load=ReplicaLoad(3, 0, 300, fixed_ms=10.0, row_ms=1.0), reported_at=100.0)
    )
    town.send(replace(ASK, prompt_tokens=200))
    found = town.decide().wait
    # 300 tokens reported, in two calls; each call also carries two rows of the four sessions. The
    # prompt sent since was weighed with three of them, beside which a call has 80 prompt tokens.
    assert found.queue_ms == pytest.approx(300.0 + 2 * (10.0 + 8.0) + 200.0 + 3 * (10.0 + 6.0))
    assert found.prefill_ms == 100.0 + 2 * 18.0
    assert found.idle_prefill_ms == 110.0


def test_a_replica_that_has_not_reported_is_taken_for_small_and_idle() -> None:
    assert wait(None, 50, rtt_ms=0.0).total_ms == 60.0


def test_who_has_not_reported_has_no_say_in_what_calls_take() -> None:
    quick = ReplicaLoad(fixed_ms=8.0, row_ms=0.8)
    silent = [replica(name, load=None, rtt_ms=50.0) for name in ("b", "c", "d")]
    town = Town(replica("a", load=quick, rtt_ms=0.0), *silent, max_queued=1000)
    assert town.decide().wait.total_ms == 8.0 + 0.8 * 100


def test_a_place_is_waited_for_where_all_are_taken() -> None:
    full = ReplicaLoad(4, 0, fixed_ms=10.0, row_ms=1.0, max_sessions=4)
    # One of four replies of 128 tokens has to end; a call of four sessions takes 18 ms.
    assert wait(full).slot_ms == 128 * 18.0 / 4
    assert wait(replace(full, queued_sessions=1)).slot_ms == 2 * 128 * 18.0 / 4


def test_a_prompt_takes_longer_beside_replies_which_it_may_not_hold_up() -> None:
    """An idle replica is worth more to a long prompt than the rows of its neighbours' replies."""
    alone = wait(ReplicaLoad(0, 0, 0, fixed_ms=10.0, row_ms=1.0), 480).prefill_ms
    beside = wait(ReplicaLoad(2, 0, 0, fixed_ms=10.0, row_ms=1.0), 480).prefill_ms
    crowded = wait(ReplicaLoad(14, 0, 0, fixed_ms=10.0, row_ms=1.0), 480).prefill_ms
    assert alone == 480.0 + 2 * 10.0
    assert beside == 480.0 + 6 * 14.0, "82 within eight calls of one session"
    assert crowded == 480.0 + 9 * 38.0, "58 within the same"


def test_what_is_cached_is_not_computed() -> None:
    town = Town(replica("a"), replica("b"))
    town.hold("b", IDS[: 10 * BLOCK])
    found = town.decide(town.asking(IDS))
    assert (found.replica, found.cached_tokens) == ("b", 10 * BLOCK)
    assert found.wait.prefill_ms == 10 * BLOCK + 10.0
    assert found.runner_up is not None
    assert found.runner_up.wait.prefill_ms == 20 * BLOCK + 2 * 10.0
    assert found.margin_ms == found.runner_up.wait.total_ms - found.wait.total_ms


def test_a_prompt_cached_in_full_still_costs_a_call() -> None:
    town = Town(replica("a"))
    town.hold("a", IDS)
    assert town.decide(town.asking(IDS)).wait.prefill_ms == 11.0


def test_loading_counts_as_waiting() -> None:
    """A replica far away that has the KV is chosen before a near one to which it would have to
    move for longer than the way takes."""
    slow = replace(LOAD, peer_block_ms=20.0, peer_first_ms=10.0)
    town = Town(mover("near", slow), mover("far", LOAD, rtt_ms=40.0))
    town.hold("far", IDS)
    found = town.decide(town.asking(IDS))
    assert found.replica == "far" and found.kv_source is None
    assert found.runner_up is not None
    wait = found.runner_up.wait
    # 320 tokens of 1 ms and a call's 10 ms more than the last token's, in 20 blocks of 20 ms.
    compute_ms, load_ms = 340.0 - 11.0, 20 * 20.0
    assert wait.transfer_ms == pytest.approx(compute_ms * (load_ms + 10.0) / (compute_ms + load_ms))
    assert wait.prefill_ms == 11.0


@given(
    st.lists(st.builds(
        ReplicaLoad, st.integers(0, 9), st.integers(0, 3), st.integers(0, 900), st.floats(1, 20),
        st.floats(0.1, 5), max_sessions=st.just(8),
    ), min_size=1, max_size=4),
    st.integers(1, 3000), st.integers(0, 3000), st.floats(0, 200), st.floats(0, 90),
)  # fmt: skip
def test_the_total_is_the_sum_of_its_terms(
    loads: list[ReplicaLoad], prompt: int, held: int, block_ms: float, rtt_ms: float
) -> None:
    loads = [replace(load, peer_block_ms=block_ms, peer_first_ms=rtt_ms) for load in loads]
    rows = [mover(str(n), load, rtt_ms=rtt_ms * n) for n, load in enumerate(loads)]
    town = Town(*rows, max_queued=1000)
    ids = list(range(prompt))
    town.hold("0", ids[:held])
    found = town.decide(town.asking(ids))
    totals = dict(found.considered)
    for candidate in filter(None, (found.chosen, found.runner_up)):
        assert totals[candidate.replica] == pytest.approx(candidate.wait.total_ms)


@given(
    st.integers(0, 50), st.integers(0, 10_000), st.integers(1, 4000), st.floats(0, 50),
    st.floats(0, 5), st.floats(0, 300),
)  # fmt: skip
def test_more_load_never_predicts_a_shorter_wait(
    running: int, queued: int, prompt: int, fixed: float, row: float, rtt: float
) -> None:
    def total(extra_running: int, extra_queued: int, extra_prompt: int) -> float:
        load = ReplicaLoad(running + extra_running, 0, queued + extra_queued, fixed, row)
        return wait(load, prompt + extra_prompt, rtt).total_ms

    base = total(0, 0, 0)
    assert base >= rtt
    # Prompts come in whole calls: one more session may save a part of one.
    call_ms = fixed + 2 * (running + 1) * row
    assert total(1, 0, 0) >= base - call_ms
    assert total(0, 100, 0) >= base
    assert total(0, 0, 100) >= base


def test_a_session_without_a_prompt_waits_for_the_queue_alone() -> None:
    town = Town(replica("a", rtt_ms=3.0), replica("b"))
    found = town.placement.statuses(town.now)["a"].wait
    assert found == PredictedWait(3.0, 0.0, 0.0, 0.0, 0.0, 11.0, idle_prefill_ms=11.0)
    assert SessionRequest("m", DIGEST, 0).prompt is None
