"""Which request killed its replica."""

from __future__ import annotations

from services.router.relay.poison import LossRecord, PoisonDetector


def reopened(detector: PoisonDetector, records: list[LossRecord]) -> list[LossRecord]:
    """Those that may be opened again now, which are."""
    opened = []
    for record in records:
        if detector.may_open(record):
            detector.opened(record)
            opened.append(record)
    return opened


def test_who_had_tokens_moves_on_at_once() -> None:
    detector, records = PoisonDetector(2), [LossRecord(is_proven=True) for _ in range(5)]
    assert detector.replica_lost(records) is None
    assert reopened(detector, records) == records
    assert len(detector) == 0


def test_who_had_none_goes_one_at_a_time_then_two_then_four() -> None:
    detector, records = PoisonDetector(2), [LossRecord() for _ in range(9)]
    detector.replica_lost(records)
    waiting = list(records)
    for expected in (1, 2, 4, 2):
        gone = reopened(detector, waiting)
        assert len(gone) == expected
        waiting = [record for record in waiting if record not in gone]
        assert reopened(detector, waiting) == []
        for record in gone:
            detector.proved(record)
    assert len(detector) == 0


def test_a_request_that_kills_two_replicas_is_found_and_the_others_go_on() -> None:
    detector = PoisonDetector(2)
    poison, others = LossRecord(), [LossRecord(is_proven=True) for _ in range(3)]
    assert detector.replica_lost([poison, *others]) is None
    assert reopened(detector, [poison, *others]) == [poison, *others]
    for record in others:
        detector.proved(record)
    assert detector.replica_lost([poison, *others]) is poison
    assert reopened(detector, others) == others
    assert all(record.num_lost == 0 for record in others)


def test_who_kills_in_the_middle_of_a_reply_stands_alone_at_the_third_replica() -> None:
    detector = PoisonDetector(2)
    poison, others = LossRecord(is_proven=True), [LossRecord(is_proven=True) for _ in range(3)]
    everybody = [*others, poison]
    assert detector.replica_lost(everybody) is None
    assert reopened(detector, everybody) == everybody, "nothing speaks against any of them"
    assert detector.replica_lost(everybody) is None
    for record in others:
        assert record in reopened(detector, [record])
        detector.proved(record)
    assert reopened(detector, [poison]) == [poison]
    assert detector.replica_lost([poison, *others]) is poison


def test_of_several_that_had_no_token_none_is_accused_until_one_stands_alone() -> None:
    detector = PoisonDetector(2)
    poison, other = LossRecord(), LossRecord()
    detector.replica_lost([poison])
    detector.replica_lost([other])
    detector.opened(poison)
    detector.opened(other)
    assert detector.replica_lost([other, poison]) is None
    assert reopened(detector, [other, poison]) == [other]
    detector.proved(other)
    assert reopened(detector, [poison]) == [poison]
    assert detector.replica_lost([poison]) is poison
    assert len(detector) == 0


def test_tokens_clear_a_session() -> None:
    detector, record = PoisonDetector(2), LossRecord()
    for _ in range(4):
        assert detector.replica_lost([record]) is None
        detector.opened(record)
        detector.proved(record)
        assert record.num_lost == 0


def test_tokens_are_no_excuse_where_a_call_failed() -> None:
    detector, first, second = (
        PoisonDetector(2),
        LossRecord(is_proven=True),
        LossRecord(is_proven=True),
    )
    assert detector.replica_lost([first], is_proof_valid=False) is None
    assert detector.replica_lost([second], is_proof_valid=False) is None
    assert reopened(detector, [first, second]) == [first], "never in one call again"
    assert detector.replica_lost([first], is_proof_valid=False) is first
    assert reopened(detector, [second]) == [second]


def test_who_finds_no_replica_lets_the_others_try() -> None:
    detector, records = PoisonDetector(2), [LossRecord() for _ in range(3)]
    detector.replica_lost(records)
    assert [detector.may_open(record) for record in records] == [True, False, False]
    detector.deferred(records[0])
    assert [detector.may_open(record) for record in records] == [False, True, False]
    assert reopened(detector, records[1:]) == [records[1]]
    detector.deferred(LossRecord())  # nobody who is suspected
    assert len(detector) == 3


def test_who_was_not_taken_is_next() -> None:
    detector, records = PoisonDetector(2), [LossRecord() for _ in range(2)]
    detector.replica_lost(records)
    detector.opened(records[0])
    detector.left_replica(records[0])
    assert reopened(detector, records) == [records[0]]
    detector.forget(records[0])
    assert reopened(detector, records[1:]) == [records[1]]
    detector.forget(records[1])
    assert len(detector) == 0
