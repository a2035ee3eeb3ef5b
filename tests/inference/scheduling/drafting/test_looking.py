"""Nobody looks for drafts that do not pay, and whoever finds some goes on looking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.decode_cost import DecodeCost
from services.inference.scheduler.looking import Account, Look, Looking, Watch

NUM = 8


def looking(look_ms: float = 0.1) -> Looking:
    return Looking(DecodeCost(10.0, 1.0), look_ms)


def look_of(judge: Looking, num_drafts: int) -> Look:
    """Of each sampled reply in a call of NUM with as many drafts each."""
    accounts = [judge.account(NUM, sampled=True)] * NUM
    return judge.looks(accounts, [num_drafts] * NUM, NUM)[0]


def fruitless(judge: Looking, calls: int, watch: Watch) -> list[bool]:
    """In which calls the session looks while nothing is ever found."""
    looked = []
    for _ in range(calls):
        looked.append(watch.is_due(judge.account(NUM, sampled=True)))
        if looked[-1]:
            watch.observe(look_of(judge, 0), 1)
    return looked


def test_a_look_costs_its_time_and_that_of_the_rows_it_fills() -> None:
    accounts = [Account() for _ in range(4)]
    looks = looking(0.9).looks(accounts, [0, 1, 2, 0], 8)
    tokens_per_ms = 4 / 18.0
    assert [look.bill for look in looks] == [
        (0.9 + rows * 1.0) * tokens_per_ms for rows in (0, 1, 2, 0)
    ]
    assert [look.found for look in looks] == [False, True, True, False]
    assert [look.account for look in looks] == accounts


def test_looks_that_find_nothing_become_rare() -> None:
    looked = fruitless(looking(), 2000, Watch())
    assert all(looked[:20])
    assert 0 < sum(looked[-160:]) <= 10


def test_a_find_brings_looks_back_for_that_session_only() -> None:
    judge, lucky, other = looking(), Watch(), Watch()
    fruitless(judge, 2000, lucky)
    fruitless(judge, 40, other)
    while not lucky.is_due(judge.account(NUM, sampled=True)):
        pass
    lucky.observe(look_of(judge, 1), 2)
    assert lucky.is_due(judge.account(NUM, sampled=True))
    assert sum(fruitless(judge, 16, other)) <= 2


def test_looks_that_pay_again_are_taken_by_all_again() -> None:
    judge, watch = looking(), Watch()
    fruitless(judge, 2000, watch)
    account = judge.account(NUM, sampled=True)
    found, nothing = Look(account, 1.0, True), Look(account, 0.05, False)
    for _ in range(400):
        while not watch.is_due(account):
            pass
        watch.observe(found, 5)
        watch.observe(nothing, 1)
    assert all(Watch(pause=3, left=3).is_due(account) for _ in range(5))


def test_greedy_replies_and_calls_of_another_size_are_judged_by_themselves() -> None:
    judge = looking()
    fruitless(judge, 2000, Watch())
    idle = Watch(pause=15, left=15)
    assert Watch(15, 15).is_due(judge.account(NUM, sampled=False))
    assert Watch(15, 15).is_due(judge.account(NUM // 2, sampled=True))
    assert not idle.is_due(judge.account(NUM, sampled=True))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=300), st.integers(1, 40))
def test_no_session_is_ever_left_out_for_long(
    finds: list[tuple[bool, int]], num_sessions: int
) -> None:
    judge, watch, missed = looking(), Watch(), 0
    account = judge.account(num_sessions, sampled=False)
    for found, committed in finds:
        if not watch.is_due(account):
            missed += 1
            assert missed <= 15
            continue
        missed = 0
        counts = [int(found)] * num_sessions
        watch.observe(judge.looks([account] * num_sessions, counts, num_sessions)[0], committed)
