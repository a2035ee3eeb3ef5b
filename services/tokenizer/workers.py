"""The threads that tokenize, so that no event loop ever does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from outrider.errors import OverloadedError

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Workers:
    """A thread pool with a bounded queue."""

    def __init__(self, threads: int, max_pending: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")
        self._max_pending = max_pending
        self.num_pending = 0
        """Requests queued or running."""
        self._idle = asyncio.Event()

    async def run(self, work: Callable[[RequestT], AnswerT], request: RequestT) -> AnswerT:
        """Run `work(request)` in a thread; cancelled while queued, it never starts.

        Raises OverloadedError when the queue is full, and what `work` raises.
        """
        if self.num_pending >= self._max_pending:
            raise OverloadedError(
                f"{self.num_pending} requests are being tokenized: try again in a moment.",
                retry_delay_ms=100,
            )
        self.num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, request)
        finally:
            self.num_pending -= 1
            if not self.num_pending:
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Until nothing is queued or running, at most for `timeout_s`."""
        if not self.num_pending:
            return
        self._idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def close(self) -> None:
        """Drop what is queued and end the threads after what they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)
