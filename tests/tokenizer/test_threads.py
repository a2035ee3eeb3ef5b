"""The thread pool: bounded, off the loop, cancellable while queued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from outrider.errors import InvalidRequestError, OutriderError, OverloadedError
from outrider.testing import eventually
from outrider.tokenization.pool.job_queue import JobClass
from services.tokenizer.threads import RequestThreads


@pytest.fixture
def workers() -> Iterator[RequestThreads]:
    workers = RequestThreads(threads=1, max_pending=3, max_pending_bytes=1000)
    yield workers
    workers.close()


class PanicException(BaseException):
    """What a Rust package raises that panics."""


async def test_a_request_at_which_the_tokenizer_panics_fails_alone(
    workers: RequestThreads,
) -> None:
    def panic(_: None) -> None:
        raise PanicException("secret words of a user")

    for _ in range(2):
        with pytest.raises(OutriderError, match="the tokenizer failed: PanicException"):
            await workers.run(panic, None)
    assert await workers.run(len, "abc") == 3


async def test_work_runs_on_another_thread_and_raises_through(workers: RequestThreads) -> None:
    def name(_: None) -> str:
        return threading.current_thread().name

    def fail(_: None) -> None:
        raise InvalidRequestError("no")

    assert (await workers.run(name, None)).startswith("tokenize")
    with pytest.raises(InvalidRequestError):
        await workers.run(fail, None)
    assert workers.num_pending == 0


async def test_a_full_queue_is_overload_and_a_cancelled_request_never_starts(
    workers: RequestThreads,
) -> None:
    release, started = threading.Event(), list[int]()

    def work(number: int) -> int:
        started.append(number)
        release.wait(10)
        return number

    running = [asyncio.create_task(workers.run(work, number)) for number in range(3)]
    await eventually(lambda: started == [0] and workers.num_pending == 3)
    with pytest.raises(OverloadedError) as caught:
        await workers.run(work, 9)
    assert caught.value.retry_delay_ms > 0
    running[1].cancel()
    await asyncio.wait([running[1]])
    release.set()
    assert await running[0] == 0
    assert await running[2] == 2
    assert started == [0, 2]
    assert workers.num_pending == 0


async def test_what_is_pending_is_bounded_in_bytes(workers: RequestThreads) -> None:
    release = threading.Event()

    def work(number: int) -> int:
        release.wait(10)
        return number

    first = asyncio.create_task(workers.run(work, 1, num_bytes=5000))
    await eventually(lambda: workers.num_pending == 1)
    with pytest.raises(OverloadedError, match="already wait") as caught:
        await workers.run(work, 2, num_bytes=1)
    assert caught.value.retry_delay_ms > 0
    release.set()
    assert await first == 1
    both = [workers.run(work, number, num_bytes=500) for number in (3, 4)]
    assert await asyncio.gather(*both) == [3, 4]


async def test_long_texts_leave_a_thread_to_short_ones() -> None:
    workers = RequestThreads(threads=2, max_pending=10, max_pending_bytes=1000)
    release = threading.Event()
    longs = [
        asyncio.create_task(workers.run(lambda _: release.wait(10), n, JobClass.LONG))
        for n in range(3)
    ]
    assert await workers.run(str, 7) == "7"
    assert not any(long.done() for long in longs)
    release.set()
    assert await asyncio.gather(*longs) == [True] * 3
    workers.close()


async def test_draining_waits_for_what_runs_within_the_limit(workers: RequestThreads) -> None:
    await workers.drain(10.0)
    release = threading.Event()
    running = asyncio.create_task(workers.run(lambda _: release.wait(10), None))
    await eventually(lambda: workers.num_pending == 1)
    await workers.drain(0.01)
    assert workers.num_pending == 1
    draining = asyncio.create_task(workers.drain(10.0))
    release.set()
    await draining
    assert workers.num_pending == 0
    assert await running
