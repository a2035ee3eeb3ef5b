"""One call for all who ask, and a bounded number of results."""

from __future__ import annotations

import asyncio

import pytest

from outrider.shared_calls import SharedCalls


class Source:
    """Counts its calls, which end when they are told to."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def call(self) -> int:
        self.num_calls += 1
        return await self.end


async def test_all_who_ask_at_the_same_time_share_a_call_whoever_leaves() -> None:
    calls, source = SharedCalls[str, int](), Source()
    first, *others = [asyncio.create_task(calls.result("a", source.call)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled() and set(calls.running) == {"a"}
    source.end.set_result(7)
    assert await asyncio.gather(*others) == [7, 7] and source.num_calls == 1
    assert await calls.result("a", source.call) == 7 and source.num_calls == 2, "none is kept"
    assert not calls.running


async def test_a_failure_is_told_to_all_and_not_kept() -> None:
    calls, source = SharedCalls[str, int](9), Source()
    source.end.set_exception(ValueError("why"))
    for _ in range(2):
        both = (calls.result("a", source.call), calls.result("a", source.call))
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [str(one) for one in found] == ["why", "why"]
    assert source.num_calls == 2 and not calls.running


async def test_a_call_that_cannot_begin_is_not_under_way() -> None:
    calls = SharedCalls[str, int]()

    def begin() -> asyncio.Future[int]:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await calls.result("a", begin)
    assert not calls.running


async def test_as_many_results_are_kept_as_may_be_and_none_that_was_forgotten() -> None:
    calls, source = SharedCalls[int, int](2), Source()
    source.end.set_result(7)
    for number in (1, 2, 3, 2, 3, 1):
        assert await calls.result(number, source.call) == 7
    assert source.num_calls == 4
    calls.forget(1)
    await calls.result(1, source.call)
    assert source.num_calls == 5


async def test_a_call_that_is_for_somebody_ends_with_the_last_who_waits() -> None:
    calls, source = SharedCalls[str, int](for_nobody=False), Source()
    tasks = [asyncio.create_task(calls.result("a", source.call)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert not source.end.cancelled()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not calls.running
    again = Source()
    later = asyncio.create_task(calls.result("a", again.call))
    await asyncio.sleep(0)
    assert source.end.cancelled() and set(calls.running) == {"a"}
    again.end.set_result(7)
    assert await later == 7 and not calls.running
