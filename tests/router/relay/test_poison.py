"""Which request crashes its replicas."""

from __future__ import annotations

from itertools import count

import pytest

from outrider.engine_calls import CRASH_KEPT_S, MAX_CRASHES, Crash, EngineCall
from services.router.relay.poison import CrashReports, Loss, LossRecord, PoisonDetector

_numbers = count(1)


def record(*, is_proven: bool = False, is_waiting: bool = False) -> LossRecord:
    return LossRecord(next(_numbers), is_proven=is_proven, is_waiting=is_waiting)


def loss(number: int) -> Loss:
    return Loss("a", bytes([number]))


def call(*records: LossRecord, num_sessions: int = 0) -> EngineCall:
    """With these, new ones, and as many as there have to be besides."""
    return EngineCall(frozenset(it.request for it in records), num_sessions or len(records))


def reopened(detector: PoisonDetector, records: list[LossRecord]) -> list[LossRecord]:
    """Those that may be opened again now, which are."""
    opened = []
    for it in records:
        if detector.may_open(it):
            detector.opened(it)
            opened.append(it)
    return opened


def test_who_had_tokens_moves_on_at_once() -> None:
    detector, records = PoisonDetector(2), [record(is_proven=True) for _ in range(5)]
    detector.replica_lost(records, loss(1))
    assert reopened(detector, records) == records
    assert len(detector) == 0
    assert not any(it.goes_alone for it in records)


def test_who_waited_moves_on_at_once_and_alone_in_its_calls() -> None:
    detector, records = PoisonDetector(2), [record(is_waiting=True) for _ in range(5)]
    detector.replica_lost(records, loss(1))
    assert reopened(detector, records) == records
    assert len(detector) == 0
    assert all(it.goes_alone for it in records)


def test_who_was_computed_goes_one_at_a_time_then_two_then_four() -> None:
    detector, records = PoisonDetector(2), [record() for _ in range(9)]
    detector.replica_lost(records, loss(1))
    waiting = list(records)
    for expected in (1, 2, 4, 2):
        gone = reopened(detector, waiting)
        assert len(gone) == expected
        waiting = [it for it in waiting if it not in gone]
        assert reopened(detector, waiting) == []
        for it in gone:
            detector.proved(it)
    assert len(detector) == 0


def test_a_request_that_crashes_two_replicas_is_poisonous_and_the_others_go_on() -> None:
    detector, poison, other = PoisonDetector(2), record(), record()
    detector.replica_lost([poison, other], loss(1))
    assert reopened(detector, [poison, other]) == [poison]
    detector.explained(loss(1), call(poison, other))
    detector.replica_lost([poison], loss(2))
    detector.explained(loss(2), call(poison))
    assert poison.is_poisonous
    assert not other.is_poisonous
    assert reopened(detector, [other]) == [other]
    detector.proved(other)
    assert not other.crashes


def test_in_the_middle_of_its_reply_a_request_crashes_three() -> None:
    detector, poison, others = PoisonDetector(2), record(is_proven=True), [record() for _ in "ab"]
    detector.replica_lost([poison, *others], loss(1))
    detector.explained(loss(1), call(*others, num_sessions=3))
    assert reopened(detector, [poison]) == [poison]
    detector.replica_lost([poison], loss(2))
    detector.explained(loss(2), call(poison, num_sessions=4))
    assert not any(it.is_poisonous for it in (poison, *others))
    (first,) = reopened(detector, [poison, *others])
    assert first is others[0], "suspects are tried in their order"
    detector.proved(others[0])
    assert reopened(detector, [others[1], poison]) == [others[1], poison]
    detector.replica_lost([poison], loss(3))
    detector.explained(loss(3), call(poison))
    assert poison.is_poisonous
    assert not others[1].is_poisonous


@pytest.mark.parametrize("explanation", [None, EngineCall(), EngineCall(frozenset({1 << 60}), 1)])
def test_a_loss_that_it_did_not_cause_clears_a_session(explanation: EngineCall | None) -> None:
    """Killed from outside, or crashed outside of its call, or in another's."""
    detector, records = PoisonDetector(2), [record() for _ in range(3)]
    detector.replica_lost(records, loss(1))
    detector.explained(loss(1), explanation)
    assert reopened(detector, records) == records
    assert not any(it.goes_alone for it in records)
    assert detector.losses_of("a") == set()


def test_who_lost_two_replicas_waits_until_one_is_explained() -> None:
    detector, it, other = PoisonDetector(2), record(), record()
    detector.replica_lost([it], loss(1))
    assert reopened(detector, [it]) == [it]
    detector.replica_lost([it, other], loss(2))
    assert reopened(detector, [it]) == []
    assert reopened(detector, [other]) == [other], "it holds up nobody"
    detector.proved(other)
    assert detector.losses_of("a") == {loss(1), loss(2)}
    detector.explained(loss(1), None)
    assert reopened(detector, [it]) == [it]
    assert it.goes_alone
    detector.replica_lost([it], loss(3))
    assert reopened(detector, [it]) == []
    detector.explained(loss(2), call(it))
    assert reopened(detector, [it]) == [], "one crash, and one loss to be explained"
    detector.explained(loss(3), None)
    assert reopened(detector, [it]) == [it]
    assert not it.is_poisonous


def test_crashes_with_others_in_the_call_do_not_convict() -> None:
    detector, it = PoisonDetector(2), record()
    for number in range(1, 6):
        detector.replica_lost([it], loss(number))
        detector.explained(loss(number), call(it, num_sessions=2))
        assert reopened(detector, [it]) == [it]
    assert not it.is_poisonous
    detector.replica_lost([it], loss(7))
    detector.explained(loss(7), call(it))
    assert it.is_poisonous


def test_tokens_clear_a_session() -> None:
    detector, it = PoisonDetector(2), record()
    for number in range(8):
        detector.replica_lost([it], loss(number))
        detector.explained(loss(number), call(it))
        assert reopened(detector, [it]) == [it]
        detector.proved(it)
        assert (it.num_lost, it.goes_alone, it.is_poisonous) == (0, False, False)
        it.is_proven = False


def test_tokens_are_no_excuse_where_a_call_failed() -> None:
    detector, first, second = PoisonDetector(2), record(is_proven=True), record(is_proven=True)
    detector.call_failed(first, "call 1", is_single=False)
    detector.call_failed(second, "call 1", is_single=False)
    assert reopened(detector, [first, second]) == [first], "never in one call again"
    detector.call_failed(first, "call 2", is_single=True)
    assert first.is_poisonous
    assert reopened(detector, [second]) == [second]
    assert not second.is_poisonous


def test_who_finds_no_replica_lets_the_others_try() -> None:
    detector, records = PoisonDetector(2), [record() for _ in range(3)]
    detector.replica_lost(records, loss(1))
    assert [detector.may_open(it) for it in records] == [True, False, False]
    detector.deferred(records[0])
    assert [detector.may_open(it) for it in records] == [False, True, False]
    assert reopened(detector, records[1:]) == [records[1]]
    detector.deferred(record())  # nobody who is suspected
    assert len(detector) == 3


def test_who_was_not_taken_is_next() -> None:
    detector, records = PoisonDetector(2), [record() for _ in range(2)]
    detector.replica_lost(records, loss(1))
    detector.opened(records[0])
    detector.left_replica(records[0])
    assert reopened(detector, records) == [records[0]]
    detector.forget(records[0])
    assert reopened(detector, records[1:]) == [records[1]]
    detector.forget(records[1])
    assert len(detector) == 0
    assert detector.losses_of("a") == set(), "nothing is kept of who ended"


def crash(number: int, *requests: int, num_sessions: int = 0) -> Crash:
    return Crash(bytes([number]), EngineCall(frozenset(requests), num_sessions or len(requests)))


def test_what_a_replica_told_of_a_request_counts_for_each_of_its_sessions() -> None:
    reports, detector = CrashReports(), PoisonDetector(2)
    reports.record("a", [crash(1, 7, 8)], 0.0)
    reports.record("b", [crash(2, 7), crash(3, 9)], 1.0)
    assert dict(reports.of(7, 1.0)) == {Loss("a", b"\x01"): False, Loss("b", b"\x02"): True}
    poison, other, new = LossRecord(7), LossRecord(8), LossRecord(6)
    for it in (poison, other, new):
        for of_crash, is_single in reports.of(it.request, 1.0):
            detector.crashed(it, of_crash, is_single=is_single)
    assert poison.is_poisonous
    assert (other.is_poisonous, other.goes_alone) == (False, True)
    assert not new.goes_alone


def test_a_crash_that_is_told_again_counts_once_and_not_for_ever() -> None:
    reports = CrashReports()
    assert reports.record("a", [crash(1, 7)], 0.0) == [crash(1, 7)]
    assert reports.record("a", [crash(1, 7), crash(2, 7)], CRASH_KEPT_S) == [crash(2, 7)]
    assert len(list(reports.of(7, CRASH_KEPT_S))) == 2
    assert list(reports.of(7, CRASH_KEPT_S + 1)) == [(Loss("a", b"\x02"), True)]
    assert list(reports.of(7, 2 * CRASH_KEPT_S + 1)) == []
    assert len(reports) == 0


def test_a_request_with_a_token_since_is_forgiven_what_is_told_again_as_well() -> None:
    reports, detector, it = CrashReports(), PoisonDetector(2), LossRecord(7)
    reports.record("a", [crash(1, 7, 8)], 0.0)
    reports.forgive(7)
    reports.record("a", [crash(1, 7, 8)], 1.0)
    assert list(reports.of(7, 1.0)) == []
    assert len(list(reports.of(8, 1.0))) == 1
    detector.proved(it)
    detector.crashed(it, loss(2), is_single=True)
    assert not it.crashes


def test_of_a_replica_that_tells_of_ever_new_crashes_the_last_ones_are_kept() -> None:
    reports = CrashReports()
    reports.record("b", [crash(1, 5)], 0.0)
    for number in range(200):
        reports.record("a", [crash(number, 7)], 0.0)
    assert len(reports) == MAX_CRASHES + 1
    assert len(list(reports.of(5, 0.0))) == 1, "nobody else's"
