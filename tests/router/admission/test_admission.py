"""The gate as a whole: who comes in, waits, is refused."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import (
    DeadlineError,
    InvalidRequestError,
    NoReplicaError,
    OverloadedError,
)
from outrider.session.types import Priority
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy, LengthPolicy
from services.router.admission.routing import Route
from services.router.admission.tenants import TenantPolicy
from tests.router.admission.fakes import FakeFleetView, Region, asking

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH


def test_a_long_prompt_steps_back_and_a_resumed_one_counts_without_its_reply() -> None:
    lengths = LengthPolicy(medium_above_tokens=20, low_above_tokens=30)
    admission = Admission(AdmissionPolicy(), lengths=lengths)

    def grant(asked: Priority, prompt_tokens: int) -> Priority:
        _, request = asking(1, asked, "acme", prompt_tokens=prompt_tokens)
        return admission.grant(request, 0.0)

    assert grant(HIGH, 20) is HIGH
    assert grant(HIGH, 21) is MEDIUM
    assert grant(MEDIUM, 31) is LOW
    _, resumed = asking(1, HIGH, "acme", prompt_tokens=29, num_committed=5)
    assert admission.grant(resumed, 0.0) is MEDIUM


def full() -> FakeFleetView:
    """A fleet without room."""
    return FakeFleetView({"us": Region(is_full=True)})


def gate(*tenants: TenantPolicy, **policy: Any) -> Admission:
    return Admission(AdmissionPolicy(**policy), tenants)


def woken(
    admission: Admission, fleet_view: FakeFleetView, now: float, count: int = 1000
) -> list[int]:
    """Sessions that get a replica, at most so many."""
    found = []
    for turn in admission.dequeue(fleet_view, now):
        assert isinstance(turn.outcome, Route)
        found.append(turn.session_id)
        if len(found) == count:
            break
    return found


def test_without_room_it_waits_and_goes_on_when_there_is() -> None:
    admission = gate()
    assert admission.open(*asking(1), full(), 0.0) is None
    assert admission.num_waiting() == {("m", LOW): 0, ("m", MEDIUM): 1, ("m", HIGH): 0}
    assert woken(admission, full(), 0.5) == []
    assert woken(admission, FakeFleetView(), 2.0) == [1]
    assert sum(admission.num_waiting().values()) == 0
    assert list(admission.stats.take().waits_ms) == [(MEDIUM, "m", 2000.0)]


def test_nobody_goes_past_those_in_line() -> None:
    admission = gate()
    admission.open(*asking(1), full(), 0.0)
    assert admission.open(*asking(2), FakeFleetView(), 0.0) is None
    assert admission.open(*asking(3, LOW), FakeFleetView(), 0.0) is None
    assert admission.open(*asking(4, HIGH), FakeFleetView(), 0.0) is not None
    assert admission.open(*asking(5, model="other"), FakeFleetView(), 0.0) is not None
    assert woken(admission, FakeFleetView(), 0.0) == [1, 2, 3]


def test_clients_of_no_tenant_share_by_where_they_are() -> None:
    """One with sixty-four chats is one among two for who comes with a single one."""
    admission = gate(max_above_low_per_address=100)
    for session in range(64):
        admission.open(*asking(session, address_hash=b"many"), full(), 0.0)
    admission.open(*asking(64, address_hash=b"one"), full(), 0.0)
    assert 64 in woken(admission, FakeFleetView(), 1.0, count=2)
    # Those of one tenant have its share between them.
    for session in range(100, 164):
        admission.open(*asking(session, tenant="acme", address_hash=b"many"), full(), 2.0)
    admission.open(*asking(164, tenant="acme", address_hash=b"one"), full(), 2.0)
    assert 164 not in woken(admission, FakeFleetView(), 3.0, count=64)


def test_of_one_address_only_a_few_sessions_outrank_anybody_while_others_are_there() -> None:
    """Further ones are LOW: somebody from elsewhere goes before them."""
    admission = gate(max_above_low_per_address=2)

    def highest(address: bytes) -> Priority:
        _, request = asking(99, HIGH, address_hash=address)
        return admission.grant(request, 2.0)

    admission.open(*asking(9, address_hash=b"one"), full(), 0.0)
    for session in range(5):
        admission.open(*asking(session, address_hash=b"many"), full(), 0.0)
    assert admission.num_waiting() == {("m", LOW): 3, ("m", MEDIUM): 3, ("m", HIGH): 0}
    assert 9 in woken(admission, FakeFleetView(), 1.0, count=2)
    assert woken(admission, FakeFleetView(), 1.0)[-3:] == [2, 3, 4]
    assert highest(b"many") is LOW
    admission.close(2, 10, 2.0)
    assert highest(b"many") is LOW, "one that was LOW has left"
    admission.close(0, 10, 2.0)
    assert highest(b"many") is HIGH
    assert highest(b"") is HIGH, "who has a key has no address"


def test_a_session_that_leaves_the_queue_is_never_woken() -> None:
    admission = gate()
    for session in (1, 2):
        admission.open(*asking(session), full(), 0.0)
    admission.close(1, 0, 1.0)
    admission.close(1, 0, 1.0)
    assert woken(admission, FakeFleetView(), 1.0) == [2]


def test_a_wait_has_an_end_with_a_time_to_come_back() -> None:
    admission = gate()
    for session, priority in enumerate((HIGH, MEDIUM, LOW)):
        admission.open(*asking(session, priority), full(), 0.0)
    for now, session in ((5.0, 0), (20.0, 1), (60.0, 2)):
        admission.expire(now - 0.01)
        assert admission.take_refused() == []
        admission.expire(now)
        ((refused, error),) = admission.take_refused()
        assert refused == session
        assert isinstance(error, OverloadedError) and error.retry_delay_ms > 0
        assert error.metadata == {"cause": "slo"}
        admission.close(refused, 0, now)
    assert len(admission) == sum(admission.num_waiting().values()) == 0


def test_a_deadline_ends_the_wait_with_its_own_word() -> None:
    admission = gate()
    admission.open(*asking(1, deadline_at=3.0), full(), 0.0)
    admission.expire(3.0)
    ((_, error),) = admission.take_refused()
    assert isinstance(error, DeadlineError)


def test_in_a_full_queue_low_makes_room_and_then_nobody() -> None:
    admission = gate(max_waiting=2)
    admission.open(*asking(1, LOW), full(), 0.0)
    admission.open(*asking(2, LOW), full(), 0.0)
    for session in (3, 4):
        assert admission.open(*asking(session), full(), 1.0) is None
        ((shed, error),) = admission.take_refused()
        assert error.metadata["cause"] == "shed"
        assert shed == 5 - session
        admission.close(shed, 0, 1.0)
    for priority in (LOW, MEDIUM):
        with pytest.raises(OverloadedError) as caught:
            admission.open(*asking(5, priority), full(), 1.0)
        assert caught.value.metadata == {"cause": "queue"}
    assert admission.open(*asking(6, HIGH), full(), 1.0) is None
    refused = admission.stats.take().refused
    assert refused == {
        ("LOW", "shed", "m"): 2,
        ("LOW", "queue", "m"): 1,
        ("MEDIUM", "queue", "m"): 1,
        ("MEDIUM", "shed", "m"): 1,
    }


def test_who_started_elsewhere_is_not_refused_for_lack_of_room() -> None:
    admission = gate(TenantPolicy("*", tokens_per_minute=200), max_waiting=2)
    for session in (1, 2):
        admission.open(*asking(session, HIGH), full(), 0.0)
    for session in (3, 4):
        assert admission.open(*asking(session, LOW, is_resumed=True), full(), 0.0) is None
    assert admission.take_refused() == []
    assert woken(admission, FakeFleetView({"us": Region(backlog_ms=1e5)}), 1.0) == [3, 4]


def test_those_who_say_so_have_room_of_their_own_and_its_end() -> None:
    admission = gate(max_waiting=4)
    for session in range(4):
        asked = asking(session, HIGH, "greedy", is_resumed=True)
        assert admission.open(*asked, full(), 0.0) is None
    with pytest.raises(OverloadedError) as caught:
        admission.open(*asking(4, HIGH, "greedy", is_resumed=True), full(), 0.0)
    assert caught.value.metadata == {"cause": "queue"}
    assert admission.open(*asking(5, LOW, "other", is_resumed=True), full(), 0.0) is None
    ((shed, error),) = admission.take_refused()
    assert (shed, error.metadata["cause"]) == (3, "shed"), "the longest share gives way"
    admission.close(shed, 0, 0.0)
    for session in range(10, 14):  # and who does not say so has all of the rest
        assert admission.open(*asking(session, LOW), full(), 0.0) is None
    assert admission.num_waiting_by_model() == {"m": 8}


@pytest.mark.parametrize(("num_resumed", "reserved"), [(0, 100), (40, 100), (90, 100), (500, 510)])
def test_what_a_chat_goes_on_after_is_reserved_too(num_resumed: int, reserved: int) -> None:
    """A prompt of 10 tokens and a reply of 90, or however many it comes with."""
    admission = gate(TenantPolicy("acme", tokens_per_minute=1000))
    admission.open(*asking(1, tenant="acme", num_committed=num_resumed), FakeFleetView(), 0.0)
    left = 1000 - reserved
    with pytest.raises(OverloadedError):
        admission.open(*asking(2, tenant="acme", max_tokens=left - 9), FakeFleetView(), 0.0)
    assert admission.open(*asking(3, tenant="acme", max_tokens=left - 10), FakeFleetView(), 0.0)


def test_a_wait_that_would_be_too_long_is_refused_at_once() -> None:
    admission = gate(max_wait_medium_s=10.0)
    for session in range(20):
        admission.open(*asking(session), full(), 0.0)
    for turn in range(10):  # one leaves every second
        assert len(woken(admission, FakeFleetView(), 1.0 + turn, 1)) == 1
    admission.open(*asking(100, tenant="other"), full(), 10.0)
    with pytest.raises(OverloadedError) as caught:
        admission.open(*asking(101), full(), 10.0)
    assert caught.value.metadata == {"cause": "slo"}
    # 12 s would pass, 2 too many; in one more second the next session leaves.
    assert caught.value.retry_delay_ms == pytest.approx(3000, abs=300)
    later = 10.0 + caught.value.retry_delay_ms / 1000.0
    woken(admission, FakeFleetView(), later, 3)
    assert admission.open(*asking(101), full(), later) is None


def test_a_burst_is_told_to_come_back_one_after_the_other() -> None:
    admission = gate(max_waiting=9)
    for session in range(8):  # the ninth place is kept for LOW ones
        admission.open(*asking(session), full(), 0.0)
    for turn in range(4):
        assert len(woken(admission, FakeFleetView(), 1.0 + turn, 1)) == 1
        admission.open(*asking(100 + turn), full(), 1.0 + turn)
    delays = []
    for session in range(200, 204):
        with pytest.raises(OverloadedError) as caught:
            admission.open(*asking(session), full(), 4.0)
        delays.append(caught.value.retry_delay_ms)
    assert delays == pytest.approx([1000, 2000, 3000, 4000], abs=2)


def test_what_a_tenant_may_not_is_refused_and_leaves_nothing_behind() -> None:
    admission = gate(TenantPolicy("acme", max_sessions=1, tokens_per_minute=200))
    assert admission.open(*asking(1, tenant="acme"), FakeFleetView(), 0.0)
    with pytest.raises(OverloadedError):
        admission.open(*asking(2, tenant="acme"), FakeFleetView(), 0.0)
    admission.close(1, 90, 0.0)
    with pytest.raises(OverloadedError):
        admission.open(*asking(3, tenant="acme", max_tokens=150), FakeFleetView(), 0.0)
    with pytest.raises(InvalidRequestError):
        admission.open(*asking(4, tenant="acme", max_tokens=250), FakeFleetView(), 0.0)
    assert admission.open(*asking(5, tenant="acme"), FakeFleetView(), 0.0)
    assert len(admission) == 1
    stats = admission.stats.take()
    assert stats.refused == {
        ("MEDIUM", "tenant_sessions", ""): 1,
        ("MEDIUM", "tenant_tokens", ""): 1,
    }
    assert stats.sessions == {("acme", "admitted"): 2, ("acme", "refused"): 2}
    assert stats.tokens == {("acme",): 100}


def test_a_session_refused_by_the_queue_gives_its_tokens_back() -> None:
    admission = gate(TenantPolicy("acme", tokens_per_minute=100), max_waiting=1)
    admission.open(*asking(1), full(), 0.0)
    with pytest.raises(OverloadedError) as caught:
        admission.open(*asking(2, tenant="acme"), full(), 0.0)
    assert caught.value.metadata == {"cause": "queue"}
    assert admission.open(*asking(3, HIGH, tenant="acme"), FakeFleetView(), 0.0)


def test_without_any_replica_there_is_nothing_to_wait_for() -> None:
    admission, fleet_view = gate(), full()
    admission.open(*asking(1), fleet_view, 0.0)
    fleet_view.fleet["us"].is_down = True
    with pytest.raises(NoReplicaError):
        admission.open(*asking(2, model="other"), fleet_view, 0.0)
    (turn,) = admission.dequeue(fleet_view, 1.0)
    assert turn.session_id == 1 and isinstance(turn.outcome, NoReplicaError)
    admission.close(1, 0, 1.0)
    assert len(admission) == 0


def test_the_caller_places_one_before_the_next_is_chosen() -> None:
    admission, fleet_view = gate(), full()
    for session in range(3):
        admission.open(*asking(session), fleet_view, 0.0)
    fleet_view.fleet["us"].is_full = False
    for _ in admission.dequeue(fleet_view, 1.0):
        fleet_view.fleet["us"].is_full = True
    assert sum(admission.num_waiting().values()) == 2


def test_what_was_not_computed_is_given_back() -> None:
    admission = gate(TenantPolicy("*", tokens_per_minute=300))
    assert admission.open(*asking(1, tenant="a"), FakeFleetView(), 0.0)
    assert admission.open(*asking(2, tenant="a"), full(), 0.0) is None
    resumed = asking(3, tenant="a", prompt_tokens=5, num_committed=5)
    assert admission.open(*resumed, FakeFleetView(), 0.0)
    for session in (1, 2, 3):
        admission.close(session, 25, 0.0)
    # 10 of the prompt and 25; nothing; 10, which include 5 that came along, and 20 more.
    assert admission.stats.take().tokens == {("*",): 35 + 30}
    with pytest.raises(OverloadedError):
        admission.open(*asking(4, tenant="a", max_tokens=290 - 65 + 1), FakeFleetView(), 0.0)
    assert admission.open(*asking(4, tenant="a", max_tokens=290 - 65), FakeFleetView(), 0.0)
