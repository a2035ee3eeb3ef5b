"""A stream of numbered requests: order of completion, bounds, and leaving early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from outrider.testing import eventually, leak_check
from services.tokenizer.service import AnswerStream


class Script:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.cancelled: list[int] = []

    async def requests(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            self.gates[number] = asyncio.Event()
            yield number

    async def answer(self, number: int) -> int:
        self.asked.append(number)
        try:
            await self.gates[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return number


async def test_answers_come_in_the_order_of_completion() -> None:
    script = Script()
    async with leak_check():
        answers = AnswerStream(
            script.requests(3), script.answer, max_in_flight=8, number=int
        ).answers()
        first = asyncio.ensure_future(anext(answers))
        await eventually(lambda: script.asked == [0, 1, 2])
        script.gates[2].set()
        assert await first == 2
        script.gates[0].set()
        assert await anext(answers) == 0
        script.gates[1].set()
        assert await anext(answers) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


async def test_no_more_are_read_than_may_be_in_flight() -> None:
    script = Script()
    async with leak_check():
        answers = AnswerStream(
            script.requests(10), script.answer, max_in_flight=3, number=int
        ).answers()
        first = asyncio.ensure_future(anext(answers))
        await eventually(lambda: script.asked == [0, 1, 2])
        for gate in script.gates.values():
            gate.set()
        await first
        await asyncio.sleep(0)
        assert len(script.asked) == 3, "an answer that was not yet written still counts"
        assert await anext(answers) == 1
        await eventually(lambda: len(script.asked) == 4)
        async with aclosing(answers):
            pass
        assert script.cancelled == []


async def test_leaving_early_cancels_what_is_under_way() -> None:
    script = Script()
    async with leak_check():
        answers = AnswerStream(
            script.requests(4), script.answer, max_in_flight=8, number=int
        ).answers()
        async with aclosing(answers):
            first = asyncio.ensure_future(anext(answers))
            await eventually(lambda: len(script.asked) == 4)
            script.gates[3].set()
            assert await first == 3
        await eventually(lambda: sorted(script.cancelled) == [0, 1, 2])


async def test_a_failing_request_stream_fails_the_answers() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ConnectionError("gone")

    async def answer(number: int) -> int:
        return number

    async with leak_check():
        got: list[int] = []
        with pytest.raises(ConnectionError):
            async for number in AnswerStream(
                broken(), answer, max_in_flight=2, number=int
            ).answers():
                got.append(number)  # noqa: PERF401 - the error comes after the answers
        assert got == [1]
