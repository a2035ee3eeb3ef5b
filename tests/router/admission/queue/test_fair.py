"""The queue of one class."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.queue import fair
from services.router.admission.queue.fair import FairQueue
from services.router.admission.ticket import Ticket
from tests.router.admission.people import ticket


def served(queue: FairQueue, count: int | None = None) -> list[Ticket]:
    """The next sessions in order."""
    order = []
    for _ in range(len(queue) if count is None else count):
        head = queue.peek()
        assert head is not None
        queue.serve(head)
        order.append(head)
    return order


def test_the_earliest_deadline_goes_first_and_equal_ones_in_order() -> None:
    queue = FairQueue()
    for session, until in enumerate([5.0, 3.0, 9.0, 3.0, 4.0]):
        queue.push(ticket(session, until=until))
    assert [entry.session for entry in served(queue)] == [1, 3, 4, 0, 2]
    assert queue.peek() is None


def test_a_burst_of_one_tenant_does_not_delay_another() -> None:
    queue = FairQueue()
    for session in range(100):
        queue.push(ticket(session, "burst"))
    served(queue, 10)
    queue.push(ticket(1000, "modest"))
    assert "modest" in [entry.tenant for entry in served(queue, 2)]


def test_weight_is_the_share() -> None:
    queue = FairQueue()
    for session in range(200):
        queue.push(ticket(session, "heavy", weight=3.0))
        queue.push(ticket(1000 + session, "light"))
    first = [entry.tenant for entry in served(queue, 80)]
    assert first.count("heavy") == pytest.approx(60, abs=1)


def test_who_waited_for_nothing_saves_nothing_up() -> None:
    """A tenant that was away is not owed the time."""
    queue = FairQueue()
    queue.push(ticket(1, "away"))
    for session in range(2, 60):
        queue.push(ticket(session, "there"))
    served(queue, 40)
    for session in range(100, 120):
        queue.push(ticket(session, "away"))
    tenants = [entry.tenant for entry in served(queue, 20)]
    assert tenants.count("away") == pytest.approx(10, abs=1)


def test_who_queues_one_at_a_time_gets_no_more_than_its_share() -> None:
    """A tenant with nothing waiting is charged all the same: its next session starts where its last
    one finished."""
    queue = FairQueue()
    for session in range(40):
        queue.push(ticket(session, "many"))
    queue.push(ticket(100, "single"))
    order = []
    for session in range(101, 121):
        (head,) = served(queue, 1)
        order.append(head.tenant)
        if head.tenant == "single":
            queue.push(ticket(session, "single"))
    assert order.count("single") == pytest.approx(10, abs=1)


def test_who_leaves_without_a_turn_is_not_charged() -> None:
    queue = FairQueue()
    gone = [ticket(session, "a", cost=1000) for session in range(5)]
    for entry in gone:
        queue.push(entry)
    for session in range(10, 15):
        queue.push(ticket(session, "a"))
        queue.push(ticket(100 + session, "b"))
    for entry in gone:
        queue.remove(entry)
    assert len(queue) == 10
    tenants = [entry.tenant for entry in served(queue, 4)]
    assert sorted(tenants) == ["a", "a", "b", "b"]


def test_room_is_made_by_the_tenant_with_most_waiting() -> None:
    queue = FairQueue()
    assert queue.last_of_longest() is None
    for session in range(3):
        queue.push(ticket(session, "many", until=10.0 + session))
    queue.push(ticket(10, "few", until=99.0))
    last = queue.last_of_longest()
    assert last is not None and last.session == 2


SERVED, AND_BACK = "", "and back"
Events = list[tuple[str, int]]
"""A tenant's session of that cost arrives; or one is SERVED; or its tenant comes back at once with
the next one, AND_BACK."""

events = st.lists(
    st.tuples(st.sampled_from([SERVED, AND_BACK, AND_BACK, "a", "b", "c"]), st.integers(1, 50)),
    max_size=120,
)
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.5}


@given(events)
def test_nobody_gets_more_than_who_waits_but_for_one_session_of_each(events: Events) -> None:
    """Theorem 1 of the paper, for every interval in which one tenant was waiting throughout; the
    other one may come and go."""
    queue = FairQueue()
    got: list[dict[str, float]] = [dict.fromkeys(WEIGHTS, 0.0)]
    waiting_since: dict[str, int] = {}
    for number, (tenant, cost) in enumerate(events):
        if tenant in WEIGHTS:
            queue.push(ticket(number, tenant, cost=cost, weight=WEIGHTS[tenant]))
        elif (head := queue.peek()) is not None:
            queue.serve(head)
            share = dict(got[-1])
            share[head.tenant] += head.cost_tokens / head.weight
            got.append(share)
            if not len(queue):
                waiting_since.clear()
            if tenant == AND_BACK:
                queue.push(ticket(number, head.tenant, cost=cost, weight=head.weight))
        for one in WEIGHTS:
            if queue.length(one):
                waiting_since.setdefault(one, len(got) - 1)
            else:
                waiting_since.pop(one, None)
        for one, other in permutations(WEIGHTS, 2):
            bound = 50 / WEIGHTS[one] + 50 / WEIGHTS[other]
            for start in range(waiting_since.get(one, len(got)), len(got)):
                gained, others = (got[-1][t] - got[start][t] for t in (one, other))
                assert others - gained <= bound + 1e-9


@given(events, st.data())
def test_the_books_agree_whatever_happens(events: Events, data: st.DataObject) -> None:
    queue = FairQueue()
    there: list[Ticket] = []
    for number, (tenant, cost) in enumerate(events):
        gives_up = data.draw(st.booleans())
        if tenant in WEIGHTS:
            there.append(ticket(number, tenant, cost=cost, until=float(cost)))
            queue.push(there[-1])
        elif there and gives_up:
            queue.remove(there.pop(data.draw(st.integers(0, len(there) - 1))))
        elif there:
            head = queue.peek()
            assert head is not None
            own = [entry for entry in there if entry.tenant == head.tenant]
            assert head.expires_at == min(entry.expires_at for entry in own)
            queue.serve(head)
            there.remove(head)
        assert len(queue) == len(there)
        assert queue.oldest() is (there[0] if there else None)
        assert queue.num_shares == len({entry.share for entry in there})


def test_tenants_that_come_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "MAX_IDLE_FLOWS", 8)
    queue = FairQueue()
    for session in range(500):
        queue.push(ticket(session, f"t{session}"))
        if session >= 4:
            served(queue, 1)
        assert len(queue._flows) <= 8 + 4 + 2
