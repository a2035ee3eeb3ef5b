"""Jobs and workers in virtual time: every loss, order, bounds, turns."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from outrider.errors import InvalidRequestError, OverloadedError, PoisonousRequestError
from outrider.fair_work.turns import Requester
from services.tokenizer.long_texts.jobs import DispatcherLimits, PartDispatcher, PartId

LIMITS = DispatcherLimits(
    max_jobs=3, window_parts=4, worker_timeout_s=5.0, hedge_delay_s=2.0, max_worker_deaths=3
)


def dispatcher(limits: DispatcherLimits = LIMITS) -> PartDispatcher[str, str]:
    return PartDispatcher(limits)


def part_of(core: PartDispatcher[str, str], worker: Hashable, now: float = 0.0) -> PartId | None:
    task = core.pull(worker, now)
    return task.part if task else None


def test_a_text_in_order_however_its_parts_get_done() -> None:
    core = dispatcher()
    number = core.open()
    job = core.job(number)
    assert [job.add(text) for text in "abc"] == [0, 1, 2]
    job.is_complete = True
    core.join("w", 3, 0.0)
    tasks = [core.pull("w", 0.0) for _ in range(4)]
    assert [task and task.payload for task in tasks] == ["a", "b", "c", None]
    assert core.finish("w", PartId(number, 2), "C")
    assert job.take() == []
    assert core.finish("w", PartId(number, 0), "A")
    assert job.take() == ["A"]
    assert core.finish("w", PartId(number, 1), "B")
    assert not job.is_done
    assert job.take() == ["B", "C"]
    assert job.is_done


def test_the_window_counts_what_was_not_taken() -> None:
    core = dispatcher()
    job = core.job(number := core.open())
    core.join("w", 9, 0.0)
    for text in "abcd":
        job.add(text)
    assert not job.has_room
    with pytest.raises(ValueError, match="has_room"):
        job.add("e")
    for _ in range(4):
        part_of(core, "w")
        assert not job.has_room
    for sequence in (1, 2, 3):
        core.finish("w", PartId(number, sequence), "x")
        assert not job.has_room
    core.finish("w", PartId(number, 0), "x")
    assert not job.has_room
    assert len(job.take()) == 4
    assert job.has_room


def test_jobs_take_turns() -> None:
    core = dispatcher()
    first, second = core.open(), core.open()
    for text in "abcd":
        core.job(first).add(text)
    core.job(second).add("z")
    core.join("w", 9, 0.0)
    got = [part_of(core, "w") for _ in range(5)]
    assert got[:2] == [(first, 0), (second, 0)]
    assert got[2:] == [(first, 1), (first, 2), (first, 3)]


def test_turns_are_shared_between_those_who_ask_however_many_texts_they_have() -> None:
    core = dispatcher(replace(LIMITS, max_jobs=9))
    flood = [core.open(Requester("tenant", "one")) for _ in range(3)]
    same, other = core.open(Requester("tenant", "two")), core.open(Requester("other"))
    for number in (*flood, same, other):
        for text in "abcd":
            core.job(number).add(text)
    core.join("w", 99, 0.0)
    got = [part.job for _ in range(16) if (part := part_of(core, "w"))]
    assert got[:8].count(other) == 4
    assert [number for number in got if number != other][:8].count(same) == 4
    assert {got.count(number) for number in flood} == {2, 3}


def test_a_part_that_a_worker_has_already_holds_up_no_other_text() -> None:
    core = dispatcher()
    slow = core.open()
    core.job(slow).add("slow")
    core.join("w", 9, 0.0)
    assert part_of(core, "w") == (slow, 0)
    core.heard("w", 3.0)
    core.tick(3.0)  # it may have another worker too
    other = core.open()
    core.job(other).add("other")
    assert part_of(core, "w", 3.0) == (other, 0) and part_of(core, "w", 3.0) is None
    core.join("v", 9, 3.0)
    assert part_of(core, "v", 3.0) == (slow, 0)


def test_the_parts_of_a_dead_worker_go_first() -> None:
    core = dispatcher()
    number = core.open()
    for text in "abcd":
        core.job(number).add(text)
    core.join("w", 2, 0.0)
    core.join("v", 9, 0.0)
    assert [part_of(core, "w") for _ in range(3)] == [(number, 0), (number, 1), None]
    core.leave("w")
    assert [part_of(core, "v") for _ in range(4)] == [(number, n) for n in range(4)]
    assert core.stats.num_reassigned == 2
    # It was not dead after all: too late.
    assert not core.finish("w", PartId(number, 0), "late")
    assert core.finish("v", PartId(number, 0), "A")
    assert core.job(number).take() == ["A"]


def test_a_silent_worker_is_named_and_a_heartbeat_keeps_it() -> None:
    core = dispatcher()
    core.join("w", 1, 0.0)
    core.join("v", 1, 0.0)
    core.heard("v", 3.0)
    core.heard("nobody", 3.0)
    assert core.tick(4.9) == []
    assert core.tick(5.0) == ["w"]
    core.leave("w")
    assert core.tick(7.9) == []
    assert core.tick(8.0) == ["v"]


def test_a_slow_part_goes_to_another_worker_and_the_first_result_counts() -> None:
    core = dispatcher()
    number = core.open()
    core.job(number).add("a")
    core.join("slow", 2, 0.0)
    assert part_of(core, "slow") == (number, 0)
    core.tick(1.9)
    core.join("fast", 1, 1.9)
    assert part_of(core, "fast", 1.9) is None
    core.tick(2.0)
    core.tick(2.1)
    assert part_of(core, "slow", 2.1) is None, "it has it already"
    assert part_of(core, "fast", 2.1) == (number, 0)
    assert core.finish("fast", PartId(number, 0), "A")
    assert core.stats.num_assigned == 1, "the slow one is still at it"
    assert not core.finish("slow", PartId(number, 0), "A")
    assert core.job(number).take() == ["A"]
    assert (core.stats.num_assigned, core.stats.num_duplicates) == (0, 1)


def test_a_part_goes_to_a_third_worker_only_when_the_second_is_slow_too() -> None:
    core = dispatcher()
    number = core.open()
    core.job(number).add("a")
    for name in ("one", "two", "three"):
        core.join(name, 1, 0.0)
    assert part_of(core, "one", 0.0) == (number, 0)
    core.tick(2.0)
    assert part_of(core, "two", 2.0) == (number, 0)
    core.tick(3.9)
    assert part_of(core, "three", 3.9) is None
    core.tick(4.0)
    assert part_of(core, "three", 4.0) == (number, 0)


def test_a_part_that_kills_is_given_up() -> None:
    core = dispatcher()
    number = core.open()
    core.job(number).add("poison")
    core.job(number).add("good")
    for name in range(3):
        core.join(name, 2, 0.0)
        assert [part_of(core, name), part_of(core, name)] == [(number, 0), (number, 1)]
        assert core.job(number).error is None
        core.leave(name)
    error = core.job(number).error
    assert isinstance(error, PoisonousRequestError)
    assert "part 0" in error.message
    assert core.stats.num_queued == 0


def test_only_the_part_that_a_worker_was_at_is_blamed_for_its_death() -> None:
    """Parts wait at a worker in the order they were given; it died at the first of them."""
    core = dispatcher()
    poisonous, good = core.open(), core.open()
    core.job(poisonous).add("poison")
    core.job(good).add("good")
    for name in range(LIMITS.max_worker_deaths):
        core.join(name, 2, 0.0)
        assert [part_of(core, name), part_of(core, name)] == [(poisonous, 0), (good, 0)]
        core.leave(name)
    assert isinstance(core.job(poisonous).error, PoisonousRequestError)
    assert core.job(good).error is None
    core.join("last", 1, 0.0)
    assert part_of(core, "last") == (good, 0)


def test_workers_that_end_in_order_poison_nothing() -> None:
    core = dispatcher()
    number = core.open()
    core.job(number).add("a")
    for name in range(9):
        core.join(name, 2, 0.0)
        assert part_of(core, name) == (number, 0)
        core.leave(name, died=False)
    assert core.job(number).error is None


def test_a_failed_part_fails_its_job_alone() -> None:
    core = dispatcher()
    bad, good = core.open(), core.open()
    core.job(bad).add("a")
    core.job(good).add("a")
    core.join("w", 2, 0.0)
    part_of(core, "w")
    part_of(core, "w")
    core.fail("w", PartId(bad, 0), InvalidRequestError("no"))
    assert isinstance(core.job(bad).error, InvalidRequestError)
    assert core.finish("w", PartId(good, 0), "A")
    assert core.job(good).error is None


def test_closing_frees_everything() -> None:
    core = dispatcher()
    number = core.open()
    for text in "abc":
        core.job(number).add(text)
    core.join("w", 1, 0.0)
    part = part_of(core, "w")
    assert part is not None
    core.close(number)
    core.close(number)
    assert core.stats.num_jobs == core.stats.num_queued == 0
    assert core.pull("w", 0.0) is None
    assert not core.finish("w", part, "late")
    assert core.stats.num_assigned == 0
    core.fail("w", part, InvalidRequestError("late too"))


def test_too_many_jobs_are_refused() -> None:
    core = dispatcher()
    numbers = [core.open() for _ in range(3)]
    with pytest.raises(OverloadedError):
        core.open()
    core.close(numbers[0])
    assert core.open() not in numbers


def test_whoever_has_most_texts_loses_one_to_others() -> None:
    core = dispatcher()
    numbers = [core.open(Requester("flood")) for _ in range(3)]
    core.job(numbers[2]).add("x")
    other = core.open(Requester("other"))
    lost = core.job(numbers[2])
    assert isinstance(lost.error, OverloadedError) and lost.is_given_up
    assert core.job(other).error is None and core.job(numbers[1]).error is None
    with pytest.raises(OverloadedError):
        core.open(Requester("flood"))
    core.close(numbers[2])
    core.close(numbers[1])
    assert core.job(core.open(Requester("flood"))).error is None
