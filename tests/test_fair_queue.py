"""Fair between flows, by the theorem of its paper; in order of deadlines within each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import fair_queue
from outrider.fair_queue import FairQueue


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    flow: str
    number: int = 0
    cost: float = 1.0
    rank: float = 0.0


def served(queue: FairQueue[Item], count: int | None = None) -> list[Item]:
    """The next items in order."""
    order = []
    for _ in range(len(queue) if count is None else count):
        head = queue.peek()
        assert head is not None
        queue.pop(head)
        order.append(head)
    return order


def test_the_earliest_deadline_goes_first_and_equal_ones_in_order() -> None:
    queue = FairQueue[Item]()
    for number, until in enumerate([5.0, 3.0, 9.0, 3.0, 4.0]):
        queue.push(Item("", number, rank=until))
    assert [entry.number for entry in served(queue)] == [1, 3, 4, 0, 2]
    assert queue.peek() is None


def test_weight_is_the_share() -> None:
    queue = FairQueue[Item]()
    for _ in range(200):
        queue.push(Item("heavy", cost=1 / 3))
        queue.push(Item("light"))
    first = [entry.flow for entry in served(queue, 80)]
    assert first.count("heavy") == pytest.approx(60, abs=1)


def test_who_waited_for_nothing_saves_nothing_up() -> None:
    """A flow that was away is not owed the time."""
    queue = FairQueue[Item]()
    queue.push(Item("away"))
    for _ in range(58):
        queue.push(Item("there"))
    served(queue, 40)
    for _ in range(20):
        queue.push(Item("away"))
    flows = [entry.flow for entry in served(queue, 20)]
    assert flows.count("away") == pytest.approx(10, abs=1)


def test_who_queues_one_at_a_time_gets_no_more_than_its_share() -> None:
    """A flow with nothing waiting is charged all the same: its next item starts where its last one
    finished."""
    queue = FairQueue[Item]()
    for _ in range(40):
        queue.push(Item("many"))
    queue.push(Item("single"))
    order = []
    for _ in range(20):
        (head,) = served(queue, 1)
        order.append(head.flow)
        if head.flow == "single":
            queue.push(Item("single"))
    assert order.count("single") == pytest.approx(10, abs=1)


def test_who_leaves_without_a_turn_is_not_charged() -> None:
    queue = FairQueue[Item]()
    gone = [Item("a", cost=1000) for _ in range(5)]
    for entry in gone:
        queue.push(entry)
    for _ in range(5):
        queue.push(Item("a"))
        queue.push(Item("b"))
    for entry in gone:
        queue.remove(entry)
    assert len(queue) == 10
    flows = [entry.flow for entry in served(queue, 4)]
    assert sorted(flows) == ["a", "a", "b", "b"]


SERVED, AND_BACK = "", "and back"
Events = list[tuple[str, int]]
"""An item of a flow arrives, of that cost; or one is SERVED; or its flow comes back at once with
the next one, AND_BACK."""

events = st.lists(
    st.tuples(st.sampled_from([SERVED, AND_BACK, AND_BACK, "a", "b", "c"]), st.integers(1, 50)),
    max_size=120,
)
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.5}


class Shares:
    """What each flow got by its weight, and since when it has been waiting throughout."""

    def __init__(self) -> None:
        self.got: list[dict[str, float]] = [dict.fromkeys(WEIGHTS, 0.0)]
        self.waiting_since: dict[str, int] = {}

    def served(self, flow: str, cost: float) -> None:
        share = dict(self.got[-1])
        share[flow] += cost
        self.got.append(share)

    def check(self, waiting: Collection[str]) -> None:
        """Theorem 1 of the paper, for every interval in which one flow was waiting throughout;
        the other one may come and go."""
        got, self.waiting_since = (
            self.got,
            {one: self.waiting_since.get(one, len(self.got) - 1) for one in waiting},
        )
        for one, other in permutations(WEIGHTS, 2):
            bound = 50 / WEIGHTS[one] + 50 / WEIGHTS[other]
            for start in range(self.waiting_since.get(one, len(got)), len(got)):
                gained, others = (got[-1][t] - got[start][t] for t in (one, other))
                assert others - gained <= bound + 1e-9


@given(events)
def test_nobody_gets_more_than_who_waits_but_for_one_item_of_each(events: Events) -> None:
    queue, shares = FairQueue[Item](), Shares()
    for flow, cost in events:
        if flow in WEIGHTS:
            queue.push(Item(flow, cost=cost / WEIGHTS[flow]))
        elif (head := queue.peek()) is not None:
            queue.pop(head)
            shares.served(head.flow, head.cost)
            if not len(queue):
                shares.waiting_since.clear()
            if flow == AND_BACK:
                queue.push(Item(head.flow, cost=cost / WEIGHTS[head.flow]))
        shares.check([one for one in WEIGHTS if queue.length(one)])


@given(events, st.data())
def test_the_books_agree_whatever_happens(events: Events, data: st.DataObject) -> None:
    queue = FairQueue[Item]()
    there: list[Item] = []
    for flow, cost in events:
        gives_up = data.draw(st.booleans())
        if flow in WEIGHTS:
            there.append(Item(flow, cost=cost, rank=float(cost)))
            queue.push(there[-1])
        elif there and gives_up:
            queue.remove(there.pop(data.draw(st.integers(0, len(there) - 1))))
        elif there:
            head = queue.peek()
            assert head is not None
            own = [entry for entry in there if entry.flow == head.flow]
            assert head.rank == min(entry.rank for entry in own)
            queue.pop(head)
            there.remove(head)
        assert len(queue) == len(there)
        assert queue.oldest() is (there[0] if there else None)
        assert queue.num_flows == len({entry.flow for entry in there})


def test_flows_that_come_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MAX_IDLE_FLOWS", 8)
    queue = FairQueue[Item]()
    for number in range(500):
        queue.push(Item(f"t{number}"))
        if number >= 4:
            served(queue, 1)
        assert len(queue._clock) <= 8 + 4 + 2
