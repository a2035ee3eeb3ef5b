"""Jobs and workers in virtual time: whatever happens in whatever order."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.long_texts.jobs import DispatcherLimits, PartDispatcher, PartId


class World:
    """Jobs read and written at random while workers work, hang, die and come back."""

    def __init__(self, seed: int, num_jobs: int, num_parts: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.core: PartDispatcher[str, str] = PartDispatcher(
            DispatcherLimits(
                max_jobs=8,
                window_parts=4,
                worker_timeout_s=5.0,
                hedge_delay_s=2.0,
                max_worker_deaths=10_000,
            )
        )
        self.num_parts = num_parts
        self.added = {self.core.open(): 0 for _ in range(num_jobs)}
        self.read: dict[int, list[str]] = {number: [] for number in self.added}
        self.at_work: dict[str, list[tuple[PartId, str]]] = {}
        self.hung: set[str] = set()
        self.num_born = 0

    def step(self) -> None:
        self.now += self.rng.expovariate(5.0)
        for action in self.rng.sample((self.write, self.take, self.work, self.pull, self.fate), 3):
            action()
        for name in self.core.tick(self.now):
            self.bury(str(name))
        self.check()

    def write(self) -> None:
        number = self.rng.choice(list(self.added))
        job = self.core.job(number)
        if job.has_room and self.added[number] < self.num_parts:
            job.add(f"{number}/{self.added[number]}")
            self.added[number] += 1
            job.is_complete = self.added[number] == self.num_parts

    def take(self) -> None:
        number = self.rng.choice(list(self.added))
        self.read[number] += self.core.job(number).take()

    def work(self) -> None:
        for name, tasks in self.at_work.items():
            if name in self.hung:
                continue
            self.core.heard(name, self.now)
            if tasks and self.rng.random() < 0.7:
                part, payload = tasks.pop(0)
                self.core.finish(name, part, payload.upper())

    def pull(self) -> None:
        for name, tasks in self.at_work.items():
            while name not in self.hung and (task := self.core.pull(name, self.now)):
                tasks.append((task.part, task.payload))

    def fate(self) -> None:
        if len(self.at_work) < 3:
            self.num_born += 1
            self.at_work[f"w{self.num_born}"] = []
            self.core.join(f"w{self.num_born}", self.rng.randint(1, 3), self.now)
        name = self.rng.choice(list(self.at_work))
        if self.rng.random() < 0.1:
            self.bury(name)
        elif self.rng.random() < 0.1:
            self.hung ^= {name}

    def bury(self, name: str) -> None:
        self.core.leave(name)
        late = self.at_work.pop(name)
        self.hung.discard(name)
        for part, payload in late:
            assert not self.core.finish(name, part, payload)

    def check(self) -> None:
        stats = self.core.stats
        assert stats.num_queued <= 4 * len(self.added)
        assert stats.num_assigned <= stats.num_slots
        for number, read in self.read.items():
            assert read == [f"{number}/{n}" for n in range(len(read))]
            assert self.added[number] - len(read) <= 4

    @property
    def is_done(self) -> bool:
        return all(self.core.job(number).is_done for number in self.added)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 30))
def test_nothing_is_lost_twice_or_out_of_order_whoever_dies(
    seed: int, num_jobs: int, num_parts: int
) -> None:
    world = World(seed, num_jobs, num_parts)
    for number in world.added:
        world.core.job(number).is_complete = num_parts == 0
    for _ in range(20_000):
        if world.is_done:
            break
        world.step()
    assert world.is_done
    for number, read in world.read.items():
        assert len(read) == num_parts, number
        world.core.close(number)
    for name in list(world.at_work):
        world.bury(name)
    stats = world.core.stats
    assert (stats.num_jobs, stats.num_queued, stats.num_assigned, stats.num_workers) == (0,) * 4
