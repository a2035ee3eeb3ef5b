"""The gate as a whole: who comes in, waits, is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import (
    ConfigError,
    DeadlineError,
    InvalidRequestError,
    NoReplicaError,
    OverloadedError,
)
from outrider.session_types import Priority
from services.router.admission.admission import Admission
from services.router.admission.choosing import Route
from services.router.admission.counting.lengths import LengthPolicy
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.tenants.accounts import TenantPolicy
from tests.router.admission.people import FakeScout, Region, arrival

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH


def test_a_long_prompt_steps_back_and_a_resumed_one_counts_without_its_reply() -> None:
    lengths = LengthPolicy(medium_above_tokens=20, low_above_tokens=30)
    admission = Admission(AdmissionPolicy(), lengths=lengths)

    def grant(asked: Priority | None, prompt_tokens: int) -> Priority:
        one = arrival(1, asked, "acme")
        asking = replace(one, request=replace(one.request, prompt_tokens=prompt_tokens))
        return admission.grant(asking, 0.0)

    assert grant(HIGH, 20) is HIGH
    assert grant(HIGH, 21) is MEDIUM
    assert grant(None, 31) is LOW
    one = replace(arrival(1), num_resumed=5)
    admission.open(replace(one, request=replace(one.request, prompt_tokens=34)), full(), 0.0)
    assert admission.waiting() == {LOW: 0, MEDIUM: 1, HIGH: 0}


def full() -> FakeScout:
    """A fleet without room."""
    return FakeScout({"us": Region(is_full=True)})


def gate(*tenants: TenantPolicy, **policy: Any) -> Admission:
    return Admission(AdmissionPolicy(**policy), tenants)


def woken(admission: Admission, scout: FakeScout, now: float, count: int = 1000) -> list[int]:
    """Sessions that get a replica, at most so many."""
    found = []
    for turn in admission.wake(scout, now):
        assert isinstance(turn.outcome, Route)
        found.append(turn.session)
        if len(found) == count:
            break
    return found


def test_with_room_a_session_goes_on_at_once() -> None:
    admission = gate()
    route = admission.open(arrival(1), FakeScout(), 0.0)
    assert route is not None and route.sight.decision.replica == "us-0"
    assert list(admission.tally.take().waits_ms) == [(MEDIUM, 0.0)]
    admission.leave(1, 50, 1.0)
    assert len(admission) == 0


def test_without_room_it_waits_and_goes_on_when_there_is() -> None:
    admission = gate()
    assert admission.open(arrival(1), full(), 0.0) is None
    assert admission.waiting() == {LOW: 0, MEDIUM: 1, HIGH: 0}
    assert woken(admission, full(), 0.5) == []
    assert woken(admission, FakeScout(), 2.0) == [1]
    assert sum(admission.waiting().values()) == 0
    assert list(admission.tally.take().waits_ms) == [(MEDIUM, 2000.0)]


def test_nobody_goes_past_those_in_line() -> None:
    admission = gate()
    admission.open(arrival(1), full(), 0.0)
    assert admission.open(arrival(2), FakeScout(), 0.0) is None
    assert admission.open(arrival(3, LOW), FakeScout(), 0.0) is None
    assert admission.open(arrival(4, HIGH), FakeScout(), 0.0) is not None
    assert admission.open(arrival(5, model="other"), FakeScout(), 0.0) is not None
    assert woken(admission, FakeScout(), 0.0) == [1, 2, 3]


def test_clients_of_no_tenant_share_by_where_they_are() -> None:
    """One with sixty-four chats is one among two for who comes with a single one."""
    admission = gate(max_outranking_per_address=100)
    for session in range(64):
        admission.open(replace(arrival(session), address=b"many"), full(), 0.0)
    admission.open(replace(arrival(64), address=b"one"), full(), 0.0)
    assert 64 in woken(admission, FakeScout(), 1.0, count=2)
    # Those of one tenant have its share between them.
    for session in range(100, 164):
        admission.open(replace(arrival(session, tenant="acme"), address=b"many"), full(), 2.0)
    admission.open(replace(arrival(164, tenant="acme"), address=b"one"), full(), 2.0)
    assert 164 not in woken(admission, FakeScout(), 3.0, count=64)


def test_of_one_address_only_a_few_sessions_outrank_anybody_while_others_are_there() -> None:
    """Further ones are LOW: somebody from elsewhere goes before them."""
    admission = gate(max_outranking_per_address=2)

    def highest(address: bytes) -> Priority:
        return admission.grant(replace(arrival(99, HIGH), address=address), 2.0)

    admission.open(replace(arrival(9), address=b"one"), full(), 0.0)
    for session in range(5):
        admission.open(replace(arrival(session), address=b"many"), full(), 0.0)
    assert admission.waiting() == {LOW: 3, MEDIUM: 3, HIGH: 0}
    assert 9 in woken(admission, FakeScout(), 1.0, count=2)
    assert woken(admission, FakeScout(), 1.0)[-3:] == [2, 3, 4]
    assert highest(b"many") is LOW
    admission.leave(2, 10, 2.0)
    assert highest(b"many") is LOW, "one that was LOW has left"
    admission.leave(0, 10, 2.0)
    assert highest(b"many") is HIGH
    assert highest(b"") is HIGH, "who has a key has no address"


def test_a_session_that_leaves_the_queue_is_never_woken() -> None:
    admission = gate()
    for session in (1, 2):
        admission.open(arrival(session), full(), 0.0)
    admission.leave(1, 0, 1.0)
    admission.leave(1, 0, 1.0)
    assert woken(admission, FakeScout(), 1.0) == [2]


def test_a_wait_has_an_end_with_a_time_to_come_back() -> None:
    admission = gate()
    for session, priority in enumerate((HIGH, MEDIUM, LOW)):
        admission.open(arrival(session, priority), full(), 0.0)
    for now, session in ((5.0, 0), (20.0, 1), (60.0, 2)):
        admission.expire(now - 0.01)
        assert admission.take_refused() == []
        admission.expire(now)
        ((refused, error),) = admission.take_refused()
        assert refused == session
        assert isinstance(error, OverloadedError) and error.retry_delay_ms > 0
        assert error.metadata == {"cause": "slo"}
        admission.leave(refused, 0, now)
    assert len(admission) == sum(admission.waiting().values()) == 0


def test_a_deadline_ends_the_wait_with_its_own_word() -> None:
    admission = gate()
    admission.open(arrival(1, deadline_at=3.0), full(), 0.0)
    admission.expire(3.0)
    ((_, error),) = admission.take_refused()
    assert isinstance(error, DeadlineError)


def test_in_a_full_queue_low_makes_room_and_then_nobody() -> None:
    admission = gate(max_waiting=2)
    admission.open(arrival(1, LOW), full(), 0.0)
    admission.open(arrival(2, LOW), full(), 0.0)
    for session in (3, 4):
        assert admission.open(arrival(session), full(), 1.0) is None
        ((shed, error),) = admission.take_refused()
        assert error.metadata["cause"] == "shed"
        assert shed == 5 - session
        admission.leave(shed, 0, 1.0)
    for priority in (LOW, MEDIUM):
        with pytest.raises(OverloadedError) as caught:
            admission.open(arrival(5, priority), full(), 1.0)
        assert caught.value.metadata == {"cause": "queue"}
    assert admission.open(arrival(6, HIGH), full(), 1.0) is None
    refused = admission.tally.take().refused
    assert refused == {
        ("LOW", "shed"): 2,
        ("LOW", "queue"): 1,
        ("MEDIUM", "queue"): 1,
        ("MEDIUM", "shed"): 1,
    }


def test_who_started_elsewhere_is_not_refused_for_lack_of_room() -> None:
    admission = gate(TenantPolicy("*", tokens_per_minute=100), max_waiting=1)
    admission.open(arrival(1, HIGH), full(), 0.0)
    assert admission.open(arrival(2, LOW, has_started=True), full(), 0.0) is None
    assert admission.open(arrival(3, LOW, has_started=True), full(), 0.0) is None
    assert admission.take_refused() == []
    assert woken(admission, FakeScout({"us": Region(backlog_ms=1e5)}), 1.0) == [2, 3]


def test_a_wait_that_would_be_too_long_is_refused_at_once() -> None:
    admission = gate(max_wait_medium_s=10.0)
    for session in range(20):
        admission.open(arrival(session), full(), 0.0)
    for turn in range(10):  # one leaves every second
        assert len(woken(admission, FakeScout(), 1.0 + turn, 1)) == 1
    admission.open(arrival(100, tenant="other"), full(), 10.0)
    with pytest.raises(OverloadedError) as caught:
        admission.open(arrival(101), full(), 10.0)
    assert caught.value.metadata == {"cause": "slo"}
    # 12 s would pass, 2 too many; in one more second the next session leaves.
    assert caught.value.retry_delay_ms == pytest.approx(3000, abs=300)
    later = 10.0 + caught.value.retry_delay_ms / 1000.0
    woken(admission, FakeScout(), later, 3)
    assert admission.open(arrival(101), full(), later) is None


def test_a_burst_is_told_to_come_back_one_after_the_other() -> None:
    admission = gate(max_waiting=9)
    for session in range(8):  # the ninth place is kept for LOW ones
        admission.open(arrival(session), full(), 0.0)
    for turn in range(4):
        assert len(woken(admission, FakeScout(), 1.0 + turn, 1)) == 1
        admission.open(arrival(100 + turn), full(), 1.0 + turn)
    delays = []
    for session in range(200, 204):
        with pytest.raises(OverloadedError) as caught:
            admission.open(arrival(session), full(), 4.0)
        delays.append(caught.value.retry_delay_ms)
    assert delays == pytest.approx([1000, 2000, 3000, 4000], abs=2)


def test_what_a_tenant_may_not_is_refused_and_leaves_nothing_behind() -> None:
    admission = gate(TenantPolicy("acme", max_sessions=1, tokens_per_minute=200))
    assert admission.open(arrival(1, tenant="acme"), FakeScout(), 0.0)
    with pytest.raises(OverloadedError):
        admission.open(arrival(2, tenant="acme"), FakeScout(), 0.0)
    admission.leave(1, 90, 0.0)
    with pytest.raises(OverloadedError):
        admission.open(arrival(3, tenant="acme", max_tokens=150), FakeScout(), 0.0)
    with pytest.raises(InvalidRequestError):
        admission.open(arrival(4, tenant="acme", max_tokens=250), FakeScout(), 0.0)
    assert admission.open(arrival(5, tenant="acme"), FakeScout(), 0.0)
    assert len(admission) == 1
    tally = admission.tally.take()
    assert tally.refused == {("MEDIUM", "tenant_sessions"): 1, ("MEDIUM", "tenant_tokens"): 1}
    assert tally.sessions == {("acme", "admitted"): 2, ("acme", "refused"): 2}
    assert tally.tokens == {("acme",): 100}


def test_a_session_refused_by_the_queue_gives_its_tokens_back() -> None:
    admission = gate(TenantPolicy("acme", tokens_per_minute=100), max_waiting=1)
    admission.open(arrival(1), full(), 0.0)
    with pytest.raises(OverloadedError) as caught:
        admission.open(arrival(2, tenant="acme"), full(), 0.0)
    assert caught.value.metadata == {"cause": "queue"}
    assert admission.open(arrival(3, HIGH, tenant="acme"), FakeScout(), 0.0)


def test_without_any_replica_there_is_nothing_to_wait_for() -> None:
    admission, scout = gate(), full()
    admission.open(arrival(1), scout, 0.0)
    scout.fleet["us"].is_down = True
    with pytest.raises(NoReplicaError):
        admission.open(arrival(2, model="other"), scout, 0.0)
    (turn,) = admission.wake(scout, 1.0)
    assert turn.session == 1 and isinstance(turn.outcome, NoReplicaError)
    admission.leave(1, 0, 1.0)
    assert len(admission) == 0


def test_spilling_over_is_counted_and_ends_when_home_has_room_again() -> None:
    admission = gate()
    scout = FakeScout({"us": Region(is_full=True), "eu": Region(rtt_ms=90.0)})
    route = admission.open(arrival(1), scout, 0.0)
    assert route is not None and (route.home, route.sight.region) == ("us", "eu")
    assert admission.tally.take().spilled == {("us", "eu", "full"): 1}
    scout.fleet["us"].is_full = False
    route = admission.open(arrival(2), scout, 0.0)
    assert route is not None and route.sight.region == "us" and not route.spilled
    assert admission.tally.take().spilled == {}


def test_the_caller_places_one_before_the_next_is_chosen() -> None:
    admission, scout = gate(), full()
    for session in range(3):
        admission.open(arrival(session), scout, 0.0)
    scout.fleet["us"].is_full = False
    for _ in admission.wake(scout, 1.0):
        scout.fleet["us"].is_full = True
    assert sum(admission.waiting().values()) == 2


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"slo_ttft_high_ms": 0.0}, "admission.slo_ttft_high_ms is 0.0"),
        ({"max_wait_low_s": float("nan")}, "max_wait_low_s"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"slo_ttft_high_ms": 2000.0}, "larger than slo_ttft_medium_ms"),
        ({"slo_ttft_medium_ms": 9000.0}, "larger than slo_ttft_low_ms"),
    ],
)
def test_promises_that_cannot_work_are_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AdmissionPolicy(**policy)


def test_what_was_not_computed_is_given_back() -> None:
    admission = gate(TenantPolicy("*", tokens_per_minute=300))
    assert admission.open(arrival(1, tenant="a"), FakeScout(), 0.0)
    assert admission.open(arrival(2, tenant="a"), full(), 0.0) is None
    resumed = replace(arrival(3, tenant="a", has_started=True), num_resumed=5)
    assert admission.open(resumed, FakeScout(), 0.0)
    for session in (1, 2, 3):
        admission.leave(session, 25, 0.0)
    # 10 of the prompt and 25; nothing; 10, which include 5 that came along, and 20 more.
    assert admission.tally.take().tokens == {("*",): 35 + 30}
    with pytest.raises(OverloadedError):
        admission.open(arrival(4, tenant="a", max_tokens=290 - 65 + 1), FakeScout(), 0.0)
    assert admission.open(arrival(4, tenant="a", max_tokens=290 - 65), FakeScout(), 0.0)
