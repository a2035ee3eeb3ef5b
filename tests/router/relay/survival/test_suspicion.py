"""Which request killed its replica."""

from __future__ import annotations

from services.router.relay.survival.suspicion import Record, Suspects


def reopened(suspects: Suspects, records: list[Record]) -> list[Record]:
    """Those that may be opened again now, which are."""
    gone = []
    for record in records:
        if suspects.may_go(record):
            suspects.went(record)
            gone.append(record)
    return gone


def test_who_had_tokens_moves_on_at_once() -> None:
    suspects, records = Suspects(2), [Record(is_proven=True) for _ in range(5)]
    assert suspects.died(records) is None
    assert reopened(suspects, records) == records
    assert len(suspects) == 0


def test_who_had_none_goes_one_at_a_time_then_two_then_four() -> None:
    suspects, records = Suspects(2), [Record() for _ in range(9)]
    suspects.died(records)
    waiting = list(records)
    for expected in (1, 2, 4, 2):
        gone = reopened(suspects, waiting)
        assert len(gone) == expected
        waiting = [record for record in waiting if record not in gone]
        assert reopened(suspects, waiting) == []
        for record in gone:
            suspects.proved(record)
    assert len(suspects) == 0


def test_a_request_that_kills_two_replicas_is_found_and_the_others_go_on() -> None:
    suspects = Suspects(2)
    poison, others = Record(), [Record(is_proven=True) for _ in range(3)]
    assert suspects.died([poison, *others]) is None
    assert reopened(suspects, [poison, *others]) == [poison, *others]
    for record in others:
        suspects.proved(record)
    assert suspects.died([poison, *others]) is poison
    assert reopened(suspects, others) == others
    assert all(record.num_lost == 0 for record in others)


def test_who_kills_in_the_middle_of_a_reply_stands_alone_at_the_third_replica() -> None:
    suspects = Suspects(2)
    poison, others = Record(is_proven=True), [Record(is_proven=True) for _ in range(3)]
    everybody = [*others, poison]
    assert suspects.died(everybody) is None
    assert reopened(suspects, everybody) == everybody, "nothing speaks against any of them"
    assert suspects.died(everybody) is None
    for record in others:
        assert record in reopened(suspects, [record])
        suspects.proved(record)
    assert reopened(suspects, [poison]) == [poison]
    assert suspects.died([poison, *others]) is poison


def test_of_several_that_had_no_token_none_is_accused_until_one_stands_alone() -> None:
    suspects = Suspects(2)
    poison, other = Record(), Record()
    suspects.died([poison])
    suspects.died([other])
    suspects.went(poison)
    suspects.went(other)
    assert suspects.died([other, poison]) is None
    assert reopened(suspects, [other, poison]) == [other]
    suspects.proved(other)
    assert reopened(suspects, [poison]) == [poison]
    assert suspects.died([poison]) is poison
    assert len(suspects) == 0


def test_tokens_clear_a_session() -> None:
    suspects, record = Suspects(2), Record()
    for _ in range(4):
        assert suspects.died([record]) is None
        suspects.went(record)
        suspects.proved(record)
        assert record.num_lost == 0


def test_tokens_are_no_excuse_where_a_call_failed() -> None:
    suspects, first, second = Suspects(2), Record(is_proven=True), Record(is_proven=True)
    assert suspects.died([first], excuses=False) is None
    assert suspects.died([second], excuses=False) is None
    assert reopened(suspects, [first, second]) == [first], "never in one call again"
    assert suspects.died([first], excuses=False) is first
    assert reopened(suspects, [second]) == [second]


def test_who_was_not_taken_is_next() -> None:
    suspects, records = Suspects(2), [Record() for _ in range(2)]
    suspects.died(records)
    suspects.went(records[0])
    suspects.came_back(records[0])
    assert reopened(suspects, records) == [records[0]]
    suspects.forget(records[0])
    assert reopened(suspects, records[1:]) == [records[1]]
    suspects.forget(records[1])
    assert len(suspects) == 0
