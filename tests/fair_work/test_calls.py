"""The thread pool: bounded, off the loop, cancellable while queued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from functools import partial

import pytest

from outrider.errors import InvalidRequestError, OutriderError, OverloadedError
from outrider.fair_work.calls import FairThreads
from outrider.fair_work.job_queue import SLICE_SIZE
from outrider.fair_work.turns import Requester
from outrider.testing import eventually

ONE, OTHER = Requester("one"), Requester("other")


@pytest.fixture
def workers() -> Iterator[FairThreads]:
    workers = FairThreads(1, 3, 1000, name="tokenize", what="the tokenizer")
    yield workers
    workers.close()


class PanicException(BaseException):
    """What a Rust package raises that panics."""


async def test_a_request_at_which_the_tokenizer_panics_fails_alone(
    workers: FairThreads,
) -> None:
    def panic(_: None) -> None:
        raise PanicException("secret words of a user")

    for _ in range(2):
        with pytest.raises(OutriderError, match="the tokenizer failed: PanicException"):
            await workers.run(partial(panic, None), ONE)
    assert await workers.run(partial(len, "abc"), ONE) == 3


async def test_work_runs_on_another_thread_and_raises_through(workers: FairThreads) -> None:
    def name(_: None) -> str:
        return threading.current_thread().name

    def fail(_: None) -> None:
        raise InvalidRequestError("no")

    assert (await workers.run(partial(name, None), ONE)).startswith("tokenize")
    with pytest.raises(InvalidRequestError):
        await workers.run(partial(fail, None), ONE)
    assert workers.num_pending == 0


async def test_a_full_queue_is_overload_and_a_cancelled_request_never_starts(
    workers: FairThreads,
) -> None:
    release, started = threading.Event(), list[int]()

    def work(number: int) -> int:
        started.append(number)
        release.wait(10)
        return number

    running = [asyncio.create_task(workers.run(partial(work, number), ONE)) for number in range(3)]
    await eventually(lambda: started == [0] and workers.num_pending == 3)
    with pytest.raises(OverloadedError) as caught:
        await workers.run(partial(work, 9), ONE)
    assert caught.value.retry_delay_ms > 0
    running[1].cancel()
    await asyncio.wait([running[1]])
    release.set()
    assert await running[0] == 0
    assert await running[2] == 2
    assert started == [0, 2]
    assert workers.num_pending == 0


async def test_what_is_pending_is_bounded_in_bytes(workers: FairThreads) -> None:
    release = threading.Event()

    def work(number: int) -> int:
        release.wait(10)
        return number

    first = asyncio.create_task(workers.run(partial(work, 1), ONE, num_bytes=5000))
    await eventually(lambda: workers.num_pending == 1)
    with pytest.raises(OverloadedError, match="already wait") as caught:
        await workers.run(partial(work, 2), ONE, num_bytes=1)
    assert caught.value.retry_delay_ms > 0
    release.set()
    assert await first == 1
    both = [workers.run(partial(work, number), ONE, num_bytes=500) for number in (3, 4)]
    assert await asyncio.gather(*both) == [3, 4]


async def test_who_is_answered_may_ask_for_as_much_again_at_once(workers: FairThreads) -> None:
    for number in range(300):
        assert await workers.run(partial(str, number), ONE, num_bytes=600) == str(number)


async def test_long_texts_leave_a_thread_to_short_ones() -> None:
    workers = FairThreads(2, 10, 10 * SLICE_SIZE)
    release = threading.Event()
    longs = [
        asyncio.create_task(workers.run(lambda: release.wait(10), ONE, num_bytes=SLICE_SIZE))
        for n in range(3)
    ]
    assert await workers.run(partial(str, 7), ONE) == "7"
    assert not any(long.done() for long in longs)
    release.set()
    assert await asyncio.gather(*longs) == [True] * 3
    workers.close()


async def test_draining_waits_for_what_runs_within_the_limit(workers: FairThreads) -> None:
    await workers.drain(10.0)
    release = threading.Event()
    running = asyncio.create_task(workers.run(lambda: release.wait(10), ONE))
    await eventually(lambda: workers.num_pending == 1)
    await workers.drain(0.01)
    assert workers.num_pending == 1
    draining = asyncio.create_task(workers.drain(10.0))
    release.set()
    await draining
    assert workers.num_pending == 0
    assert await running


async def test_long_work_leaves_its_thread_to_others_after_each_slice(
    workers: FairThreads,
) -> None:
    order, may_go_on = list[str](), threading.Event()

    def slices(name: str) -> Generator[int, None, str]:
        for number in range(3):
            if number:
                yield number
            order.append(f"{name} {number}")
            assert may_go_on.wait(30)
        return name

    long = asyncio.create_task(workers.run_slices(slices("long"), ONE))
    await eventually(lambda: order == ["long 0"])
    other = asyncio.create_task(workers.run(partial(order.append, "short"), OTHER))
    await eventually(lambda: workers.num_pending == 2)
    may_go_on.set()
    await other
    assert await long == "long"
    assert order.index("short") < order.index("long 2") == 3


async def test_work_that_nobody_wants_ends_after_its_slice(workers: FairThreads) -> None:
    order, may_go_on = list[int](), threading.Semaphore(0)

    def slices() -> Generator[int, None, None]:
        for number in range(1000):
            order.append(number)
            assert may_go_on.acquire(timeout=30)
            yield number

    running = asyncio.create_task(workers.run_slices(slices(), ONE))
    may_go_on.release()
    await eventually(lambda: order == [0, 1])
    running.cancel()
    await asyncio.wait([running])
    may_go_on.release(1000)
    assert await workers.run(partial(len, "next"), ONE) == 4
    assert order == [0, 1] and not workers.num_pending
