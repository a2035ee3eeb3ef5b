"""One timer for many: calls are made at their times, in their order, and cancelled ones are not
kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from services.edge.chat.timers import SharedTimer


def in_loop(
    test: Callable[[SharedTimer, list[Any]], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """A test with a timer on the loop that edges run on, and a list for what was done."""

    async def run() -> None:
        await test(SharedTimer(), [])

    def test_in_loop() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    return test_in_loop


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_loop
async def test_calls_are_made_in_the_order_of_their_times(
    timer: SharedTimer, made: list[Any]
) -> None:
    begin = now()
    for after in (0.03, 0.01, 0.02, 0.01):
        timer.call_at(begin + after, lambda after=after: made.append((after, now())))  # type: ignore[misc]
    assert len(timer) == 4
    await until(lambda: len(made) == 4)
    assert [after for after, _ in made] == [0.01, 0.01, 0.02, 0.03]
    assert all(at >= begin + after - 0.002 for after, at in made)
    assert len(timer) == 0


@in_loop
async def test_a_cancelled_call_is_not_made(timer: SharedTimer, made: list[Any]) -> None:
    call = timer.call_at(now(), lambda: made.append("cancelled"))
    timer.call_at(now(), lambda: made.append("made"))
    call.cancel()
    call.cancel()
    await until(lambda: bool(made))
    await asyncio.sleep(0)
    assert made == ["made"] and len(timer) == 0


@in_loop
async def test_calls_may_make_and_cancel_others(timer: SharedTimer, made: list[Any]) -> None:
    other = timer.call_at(now(), lambda: made.append("cancelled by the first"))

    def first() -> None:
        other.cancel()
        timer.call_at(now() + 0.005, lambda: made.append("second"))

    timer.call_at(now() - 1, first)
    await until(lambda: bool(made))
    assert made == ["second"]


@in_loop
async def test_cancelled_calls_take_bounded_memory(timer: SharedTimer, made: list[Any]) -> None:
    kept = [timer.call_at(now() + 1000, made.clear) for _ in range(100)]
    for _ in range(10_000):
        timer.call_at(now() + 500, made.clear).cancel()
    assert len(timer) == 100 and len(timer._heap) <= 201
    for call in kept:
        call.cancel()
    assert len(timer) == 0 and timer._timer is None and len(timer._heap) <= 65


@in_loop
async def test_a_call_that_fails_holds_up_no_other(timer: SharedTimer, made: list[Any]) -> None:
    reported: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail() -> None:
        raise ValueError("as it is to")

    timer.call_at(now(), fail)
    timer.call_at(now(), lambda: made.append("made"))
    await until(lambda: bool(made))
    assert [str(error) for error in reported] == ["as it is to"]


def test_it_belongs_to_a_loop() -> None:
    with pytest.raises(RuntimeError):
        SharedTimer()
