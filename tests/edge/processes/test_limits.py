"""Limits of a tenant over two processes: no more than over one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from services.edge.access.limits import Limited, TenantLimits
from services.edge.access.shared_limits import SharedAnswer, SharedAsk
from services.edge.processes.limits import HostLimits
from services.edge.processes.usage import SharedUsage, make_memory

SECRET = bytes(32)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usages() -> Iterator[list[SharedUsage]]:
    descriptor = make_memory(2, 32)
    yield [SharedUsage(descriptor, process, 2, 32) for process in range(2)]
    os.close(descriptor)


@pytest.fixture
def two(usages: list[SharedUsage], clock: Clock) -> list[HostLimits]:
    return [HostLimits(usage, SECRET, clock) for usage in usages]


def asked(limits: HostLimits, ask: SharedAsk) -> SharedAnswer:
    answers: list[SharedAnswer | None] = []
    limits.ask(ask, answers.append)
    (answer,) = answers
    assert answer is not None
    return answer


def chat(limits: TenantLimits, sessions: int = 1, tokens: int = 0) -> SharedAsk:
    return SharedAsk("acme", limits, sessions, 1, tokens)


def test_requests_of_both_count_and_fill_with_time(two: list[HostLimits], clock: Clock) -> None:
    limits = TenantLimits(requests_per_minute=3)
    assert [asked(two[it % 2], chat(limits)).refused for it in range(4)] == [
        None,
        None,
        None,
        Limited.REQUESTS,
    ]
    assert asked(two[0], chat(limits)).wait_s == pytest.approx(20.0)
    clock.now += 20.0
    assert asked(two[1], chat(limits)).refused is None


def test_what_is_refused_takes_nothing(two: list[HostLimits]) -> None:
    limits = TenantLimits(requests_per_minute=2, input_tokens_per_minute=100)
    assert asked(two[0], chat(limits, tokens=80)).refused is None
    for _ in range(5):
        assert asked(two[1], chat(limits, tokens=80)).refused is Limited.INPUT
    answer = asked(two[1], chat(limits, tokens=20))
    assert answer.refused is None
    assert answer.levels == {Limited.REQUESTS: 0.0, Limited.INPUT: 0.0}


def test_replies_are_charged_to_both_and_may_go_below_zero(
    two: list[HostLimits], clock: Clock
) -> None:
    limits = TenantLimits(output_tokens_per_minute=60)
    assert asked(two[0], chat(limits)).levels == {Limited.OUTPUT: 60.0}
    two[0].charge("acme", limits, 0, 90)
    assert asked(two[1], chat(limits)).refused is Limited.OUTPUT
    clock.now += 31.0
    assert asked(two[1], chat(limits)).refused is None


def test_sessions_of_both_count_until_they_end_or_their_process_does(
    two: list[HostLimits], usages: list[SharedUsage]
) -> None:
    limits = TenantLimits(max_sessions=2)
    assert asked(two[0], chat(limits, sessions=1)).refused is None
    assert asked(two[1], chat(limits, sessions=1)).refused is None
    assert asked(two[0], chat(limits, sessions=2)).refused is Limited.SESSIONS
    two[1].sessions("acme", limits, 0)
    assert asked(two[0], chat(limits, sessions=2)).refused is None
    assert asked(two[1], chat(limits, sessions=1)).refused is Limited.SESSIONS
    usages[1].clear(0)  # as the parent of one that was killed does
    assert asked(two[1], chat(limits, sessions=1)).refused is None
