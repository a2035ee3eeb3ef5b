"""The draft model pauses while others need the cores, and tries again."""

from __future__ import annotations

import os
from time import monotonic

from services.edge.drafter.contention import (
    ContentionLimits,
    CoreContention,
    CpuTime,
    parse_schedstat,
)
from services.edge.drafter.worker import cpu_time

LIMITS = ContentionLimits(window_ms=50.0, first_pause_s=1.0, max_pause_s=4.0)


class Process:
    """A process on cores of which it gets a share, in virtual time."""

    def __init__(self, limits: ContentionLimits = LIMITS) -> None:
        self.contention = CoreContention(limits)
        self.now = 100.0
        self.ran_ms = self.waited_ms = 0.0

    def work(self, duration_s: float, wait_share: float) -> list[float]:
        """Wants to run all the time; the pauses that began."""
        pauses = []
        for _ in range(round(duration_s / 0.01)):
            self.now += 0.01
            if not self.contention.is_paused(self.now):
                self.waited_ms += 10.0 * wait_share
                self.ran_ms += 10.0 * (1.0 - wait_share)
            total = CpuTime(self.ran_ms, self.waited_ms)
            pauses.append(self.contention.observe(total, self.now))
        return [pause for pause in pauses if pause]


def test_a_process_that_has_its_cores_never_pauses() -> None:
    assert Process().work(20.0, wait_share=0.49) == []


def test_pauses_grow_while_the_cores_are_taken_and_start_over_once_they_are_free() -> None:
    process = Process()
    assert process.work(15.0, wait_share=0.8) == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert process.work(5.0, wait_share=0.2) == []
    assert process.work(1.0, wait_share=0.8) == [1.0]


def test_a_try_is_no_longer_than_a_window() -> None:
    process = Process()
    process.work(60.0, wait_share=0.8)
    tried_ms = process.ran_ms + process.waited_ms
    assert tried_ms <= 16 * 70.0  # first tries, then one in four seconds


def test_one_long_wait_among_others_is_no_reason() -> None:
    process = Process()
    for _ in range(20):
        assert process.work(0.01, wait_share=1.0) == []
        assert process.work(0.04, wait_share=0.0) == []


def test_a_share_of_one_never_pauses() -> None:
    limits = ContentionLimits(max_wait_share=1.0)
    assert Process(limits).work(5.0, wait_share=1.0) == []


def test_a_thread_that_ended_takes_its_time_with_it() -> None:
    process = Process()
    process.work(1.0, wait_share=0.2)
    process.ran_ms = process.waited_ms = 0.0
    assert process.work(1.0, wait_share=0.2) == []
    assert process.work(0.2, wait_share=0.9) == [1.0]


def test_a_kernel_that_counts_nothing_never_pauses() -> None:
    contention = CoreContention(LIMITS)
    for text in ("0 0 0\n", ""):
        for at in range(100):
            assert contention.observe(parse_schedstat(text), 1.0 + at) == 0.0


def test_the_kernel_says_how_long_this_process_ran() -> None:
    assert parse_schedstat("2500000 1500000 12\n") == CpuTime(2.5, 1.5)
    before, until = cpu_time(), monotonic() + 0.05
    while monotonic() < until:
        os.getpid()
    after = cpu_time()
    assert after.ran_ms + after.waited_ms > before.ran_ms + before.waited_ms
