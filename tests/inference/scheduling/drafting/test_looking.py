"""Nobody looks for drafts that do not pay, and whoever finds some goes on looking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduling.drafting.looking import Look, Looking, Watch
from services.inference.scheduling.policy.decode_cost import DecodeCost

NUM = 8


def looking(look_ms: float = 0.1) -> Looking:
    return Looking(DecodeCost(10.0, 1.0), look_ms)


def fruitless(judge: Looking, calls: int, watch: Watch) -> list[bool]:
    """In which calls the session looks while nothing is ever found."""
    looked = []
    for _ in range(calls):
        looked.append(judge.is_due(watch, NUM, sampled=True))
        if looked[-1]:
            look = judge.looks([0] * NUM, NUM)[0]
            judge.observe(watch, look, 1, sampled=True)
    return looked


def test_a_look_costs_its_time_and_that_of_the_rows_it_fills() -> None:
    looks = looking(0.9).looks([0, 1, 2, 0], 8)
    tokens_per_ms = 4 / 18.0
    assert [look.bill for look in looks] == [
        (0.9 + rows * 1.0) * tokens_per_ms for rows in (0, 1, 2, 0)
    ]
    assert [look.found for look in looks] == [False, True, True, False]
    assert {look.num_sessions for look in looks} == {4}


def test_looks_that_find_nothing_become_rare() -> None:
    looked = fruitless(looking(), 2000, Watch())
    assert all(looked[:20])
    assert 0 < sum(looked[-160:]) <= 10


def test_a_find_brings_looks_back_for_that_session_only() -> None:
    judge, lucky, other = looking(), Watch(), Watch()
    fruitless(judge, 2000, lucky)
    fruitless(judge, 40, other)
    while not judge.is_due(lucky, NUM, sampled=True):
        pass
    found = judge.looks([1] * NUM, NUM)[0]
    judge.observe(lucky, found, 2, sampled=True)
    assert judge.is_due(lucky, NUM, sampled=True)
    assert sum(fruitless(judge, 16, other)) <= 2


def test_looks_that_pay_again_are_taken_by_all_again() -> None:
    judge, watch = looking(), Watch()
    fruitless(judge, 2000, watch)
    found, nothing = Look(NUM, 1.0, True), Look(NUM, 0.05, False)
    for _ in range(400):
        while not judge.is_due(watch, NUM, sampled=True):
            pass
        judge.observe(watch, found, 5, sampled=True)
        judge.observe(watch, nothing, 1, sampled=True)
    assert all(judge.is_due(Watch(pause=3, left=3), NUM, sampled=True) for _ in range(5))


def test_greedy_replies_and_calls_of_another_size_are_judged_by_themselves() -> None:
    judge = looking()
    fruitless(judge, 2000, Watch())
    idle = Watch(pause=15, left=15)
    assert judge.is_due(Watch(15, 15), NUM, sampled=False)
    assert judge.is_due(Watch(15, 15), NUM // 2, sampled=True)
    assert not judge.is_due(idle, NUM, sampled=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=300), st.integers(1, 40))
def test_no_session_is_ever_left_out_for_long(
    finds: list[tuple[bool, int]], num_sessions: int
) -> None:
    judge, watch, missed = looking(), Watch(), 0
    for found, committed in finds:
        if not judge.is_due(watch, num_sessions, sampled=False):
            missed += 1
            assert missed <= 15
            continue
        missed = 0
        look = judge.looks([int(found)] * num_sessions, num_sessions)[0]
        judge.observe(watch, look, committed, sampled=False)
