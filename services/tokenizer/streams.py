"""One bidi stream of numbered requests, answered as they get done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from outrider.rpc import Outbox, incoming

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class AnswerStream(Generic[RequestT, AnswerT]):
    """Reads requests and yields answers in the order of completion.

    At most `max_in_flight` requests are read whose answers were not yet taken: a caller that does
    not read its answers is not read from, and gRPC's flow control holds it back.
    """

    def __init__(
        self,
        requests: AsyncIterator[RequestT],
        answer: Callable[[RequestT], Awaitable[AnswerT]],
        *,
        max_in_flight: int,
    ) -> None:
        """`answer` reports a request's failure in its answer and does not raise."""
        self._requests = requests
        self._answer = answer
        self._slots = asyncio.Semaphore(max_in_flight)
        self._outbox: Outbox[AnswerT] = Outbox(max_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_read = False

    async def answers(self) -> AsyncGenerator[AnswerT, None]:
        """Answers until the requests end; closing it early cancels what is under way."""
        reader = asyncio.create_task(self._read())
        try:
            async for answer in self._outbox:
                yield answer
                self._slots.release()
            reader.result()
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        try:
            async for request in incoming(self._requests):
                await self._slots.acquire()
                task = asyncio.create_task(self._answer_one(request))
                self._tasks.add(task)
                task.add_done_callback(self._finish)
        finally:
            self._is_read = True
            self._close_if_done()

    async def _answer_one(self, request: RequestT) -> None:
        self._outbox.put_nowait(await self._answer(request))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_read and not self._tasks:
            self._outbox.close()
