"""Whatever workers do, every shard is done once or given up, and none is forgotten."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.bulk.plan.assignments import MAX_DEATHS, SLOTS, Assignments
from outrider.bulk.plan.shards import Shard

COUNT = 9
WORKERS = st.integers(0, 2)


class Workers(RuleBasedStateMachine):
    """Workers that take, finish and die in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.assignments = Assignments([Shard(number, (), 1) for number in range(COUNT)], 3)
        self.held: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.settled: list[int] = []
        self.deaths = [0] * COUNT

    @rule(worker=WORKERS)
    def take(self, worker: int) -> None:
        mine = self.held[worker]
        num_waiting = COUNT - len(self.settled) - sum(map(len, self.held.values()))
        shard = self.assignments.take(worker)
        least = 3 * SLOTS if mine else 1
        assert (shard is not None) == (num_waiting >= least and len(mine) < SLOTS)
        if shard is not None:
            mine.append(shard.number)

    @rule(worker=WORKERS)
    def finish(self, worker: int) -> None:
        if self.held[worker]:
            done = self.assignments.done(worker).number
            assert done == self.held[worker].pop(0)
            self.settled.append(done)

    @rule(worker=WORKERS)
    def die(self, worker: int) -> None:
        mine, self.held[worker] = self.held[worker], []
        failed = self.assignments.died(worker)
        if mine:
            self.deaths[mine[0]] += 1
        if failed is not None:
            assert failed.number == mine[0] and self.deaths[mine[0]] >= MAX_DEATHS
            self.settled.append(failed.number)

    @invariant()
    def every_shard_is_somewhere_once(self) -> None:
        held = [number for mine in self.held.values() for number in mine]
        assert len(set(held + self.settled)) == len(held) + len(self.settled)
        is_over = len(self.settled) == COUNT
        assert self.assignments.is_over == is_over
        assert self.assignments.has_waiting == (len(held) + len(self.settled) < COUNT)
        assert all(deaths <= MAX_DEATHS for deaths in self.deaths)

    @precondition(lambda self: not any(self.held.values()))
    @rule()
    def the_rest_can_be_done_in_order(self) -> None:
        """Shards that came back go before those that nobody had."""
        while (shard := self.assignments.take(0)) is not None:
            self.assignments.done(0)
            self.settled.append(shard.number)
        assert self.assignments.is_over


TestWorkers = Workers.TestCase


def test_what_a_worker_had_goes_first_and_in_order() -> None:
    assignments = Assignments([Shard(number, (), 1) for number in range(4)], 1)
    assert [assignments.take(0), assignments.take(0)] == [Shard(0, (), 1), Shard(1, (), 1)]
    assert assignments.died(0) is None
    assert assignments.take(1) == Shard(0, (), 1)
