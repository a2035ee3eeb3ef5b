"""KV memory of replicas in the choice among them: an expected wait, never a wall."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.session.types import Priority
from services.router.fleet.replica import ClassLoad, ReplicaLoad
from services.router.session_request import SessionRequest
from tests.router.placement.fleet import ASK, BLOCK, LOAD, MODEL, Town, replica

TOTAL = 100
"""Blocks of a replica: 1,600 tokens."""
QUICK = replace(
    LOAD,
    fixed_ms=0.01,
    row_ms=0.001,
    service_ms=8000.0,
    kv_blocks_total=TOTAL,
    kv_blocks_free=TOTAL,
)
"""An idle replica that computes prompts in no time: memory alone makes a difference."""
CHAT = replace(ASK, prompt_tokens=100, max_tokens=44)
"""It takes 144 tokens, and a part of a block more: ten blocks."""
MOVED = replace(CHAT, num_committed=20)
CHAT_BLOCKS = 10
NUM_FIT = TOTAL // CHAT_BLOCKS


def memory_ms(load: ReplicaLoad, request: SessionRequest = CHAT) -> float:
    return Town(replica("a", load=load), max_queued=1000).decide(request).wait.memory_ms


def test_a_chat_waits_for_the_memory_that_it_lacks() -> None:
    assert memory_ms(replace(QUICK, kv_blocks_free=CHAT_BLOCKS)) == 0.0
    # All 100 blocks come free in eight seconds.
    assert memory_ms(replace(QUICK, kv_blocks_free=CHAT_BLOCKS - 1)) == pytest.approx(80.0)
    assert memory_ms(replace(QUICK, kv_blocks_owed=TOTAL)) == pytest.approx(800.0)
    assert memory_ms(replace(QUICK, kv_blocks_free=0, kv_blocks_owed=50)) == pytest.approx(4800.0)


def test_memory_that_comes_free_with_the_slot_is_not_waited_for_twice() -> None:
    full = replace(QUICK, running_sessions=4, max_sessions=4, kv_blocks_free=5)
    wait = Town(replica("a", load=full), max_queued=10).decide(CHAT).wait
    assert (wait.slot_ms, wait.memory_ms) == (2000.0, 0.0)


def test_replies_are_taken_to_be_as_long_as_they_were() -> None:
    short = replace(QUICK, kv_blocks_free=8, reply_tokens=12)
    assert memory_ms(short) == 0.0
    assert memory_ms(short, replace(CHAT, num_committed=13)) == pytest.approx(80.0 / BLOCK)
    assert memory_ms(replace(short, reply_tokens=4000)) == pytest.approx(160.0)


def test_no_chat_is_taken_to_need_more_than_there_is() -> None:
    assert memory_ms(QUICK, replace(CHAT, max_tokens=1 << 31)) == 0.0


def test_what_is_cached_takes_memory_only_of_a_reply_that_moves() -> None:
    """Others have the beginning of a new prompt, or it is free; of replies that move, many come in
    one moment, each with KV of its own."""
    town = Town(replica("a", load=replace(QUICK, kv_blocks_free=6)))
    ids = list(range(100))
    town.hold("a", ids)
    asked = replace(town.asking(ids), max_tokens=44)
    assert town.decide(asked).wait.memory_ms == 0.0
    moved = replace(asked, num_committed=20)
    assert town.decide(moved).wait.memory_ms == pytest.approx(4 * 80.0)


def test_higher_classes_take_the_memory_of_lower_ones() -> None:
    low = ClassLoad(sessions=5, kv_blocks=70)
    full = replace(QUICK, running_sessions=5, kv_blocks_free=40, kv_blocks_owed=40, low=low)
    assert memory_ms(full, replace(CHAT, priority=Priority.LOW)) == pytest.approx(800.0)
    assert memory_ms(full, replace(CHAT, priority=Priority.MEDIUM)) == 0.0
    medium = ClassLoad(sessions=5, kv_blocks=70)
    full = replace(full, low=ClassLoad(), medium=medium)
    assert memory_ms(full, replace(CHAT, priority=Priority.MEDIUM)) == pytest.approx(800.0)
    assert memory_ms(full, replace(CHAT, priority=Priority.HIGH)) == 0.0


@pytest.mark.parametrize("request_", [CHAT, MOVED])
def test_a_burst_fills_no_memory_twice_before_any_report(request_: SessionRequest) -> None:
    near, far = replica("near", load=QUICK), replica("far", load=QUICK, rtt_ms=60.0)
    town = Town(near, far, max_queued=1000)
    assert Counter(town.send(request_) for _ in range(2 * NUM_FIT)) == {
        "near": NUM_FIT,
        "far": NUM_FIT,
    }
    # Nowhere is room: those that are waited for least are chosen, however long that is.
    assert Counter(town.send(request_) for _ in range(10)).total() == 10


def test_a_report_takes_the_place_of_what_was_counted() -> None:
    town = Town(replica("a", load=QUICK), replica("b", load=QUICK, rtt_ms=60.0), max_queued=1000)
    for _ in range(NUM_FIT):
        assert town.send(CHAT) == "a"
    town.now += 0.1
    town.report("a", replace(QUICK, running_sessions=NUM_FIT, kv_blocks_free=10, kv_blocks_owed=10))
    assert town.send(CHAT) == "b"
    town.report("a", replace(QUICK, kv_blocks_free=30))
    assert [town.send(CHAT) for _ in range(4)] == ["a", "a", "a", "b"]


def test_a_chat_that_ends_before_a_report_gives_its_memory_back() -> None:
    town = Town(replica("a", load=QUICK), replica("b", load=QUICK, rtt_ms=60.0), max_queued=1000)
    for _ in range(3 * NUM_FIT):
        assert town.send(CHAT) == "a"
        town.placement.release(town.last)


def test_a_replica_that_says_nothing_of_its_memory_is_chosen_as_if_there_were_enough() -> None:
    silent = replace(QUICK, kv_blocks_total=0, kv_blocks_free=0)
    town = Town(replica("a", load=silent), replica("b", load=QUICK, rtt_ms=1e6), max_queued=1000)
    assert Counter(town.send(CHAT) for _ in range(30)) == {"a": 30}
    assert town.decide(CHAT).wait.memory_ms == 0.0


def test_absurd_figures_are_bounded() -> None:
    most = (1 << 32) - 1
    absurd = replace(QUICK, kv_blocks_total=most, kv_blocks_free=0, kv_blocks_owed=most)
    row = replica("a", load=absurd, model=replace(MODEL, block_tokens=most))
    town = Town(row, replica("b", load=QUICK, rtt_ms=60.0), max_queued=1000)
    assert Counter(town.send(CHAT) for _ in range(3)) == {"b": 3}


loads = st.builds(
    ReplicaLoad,
    running_sessions=st.integers(0, 9),
    fixed_ms=st.floats(0.1, 20),
    row_ms=st.floats(0.01, 5),
    service_ms=st.floats(0, 20_000),
    kv_blocks_total=st.integers(0, 500),
    kv_blocks_free=st.integers(0, 500),
    kv_blocks_owed=st.integers(0, 2000),
    reply_tokens=st.integers(0, 500),
    low=st.integers(0, 600).map(lambda count: ClassLoad(kv_blocks=count)),
    medium=st.integers(0, 600).map(lambda count: ClassLoad(kv_blocks=count)),
)


@given(
    st.lists(loads, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(Priority))),
)
def test_memory_is_no_wall_and_what_is_not_known_costs_nothing(
    given_loads: list[ReplicaLoad], sessions: list[tuple[int, int, Priority]]
) -> None:
    given_loads = [
        replace(it, kv_blocks_free=min(it.kv_blocks_free, it.kv_blocks_total)) for it in given_loads
    ]
    names = [str(number) for number in range(len(given_loads))]
    pairs = list(zip(names, given_loads, strict=True))
    town = Town(*(replica(name, load=load) for name, load in pairs), max_queued=1000)
    totals = {name: load.kv_blocks_total * BLOCK for name, load in pairs}
    for prompt, reply, priority in sessions:
        request = replace(ASK, prompt_tokens=prompt, max_tokens=reply, priority=priority)
        found = town.decide(request)
        for candidate in filter(None, (found.chosen, found.runner_up)):
            assert 0 <= candidate.wait.kv_tokens <= totals[candidate.replica]
            assert candidate.wait.memory_ms >= 0.0
            if not totals[candidate.replica]:
                assert candidate.wait.memory_ms == 0.0
        town.send(request)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
    st.floats(0, 5),
    st.sampled_from(Priority),
)
def test_what_fits_somewhere_never_goes_where_it_does_not(
    prompts: list[int], rtt_ms: float, priority: Priority
) -> None:
    """Whatever the lengths are, before any report."""
    town = Town(
        replica("a", load=QUICK, rtt_ms=0.0), replica("b", load=QUICK, rtt_ms=rtt_ms), max_queued=99
    )
    free = {"a": TOTAL * BLOCK, "b": TOTAL * BLOCK}
    for prompt in prompts:
        request = replace(CHAT, prompt_tokens=prompt, priority=priority)
        need = prompt + CHAT.max_tokens + BLOCK
        chosen = town.send(request)
        free[chosen] -= need
        # Less than a block is waited for as long as the way to the other one takes.
        if free[chosen] < -BLOCK:
            assert max(free[name] for name in free if name != chosen) < need
