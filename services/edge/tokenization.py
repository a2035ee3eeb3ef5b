"""Chats to prompt ids without holding the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from outrider.errors import OverloadedError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary


class Tokenization:
    """Small chats on the caller's thread, the rest on a bounded pool.

    A thread hop costs more than a few hundred bytes' tokenization. The vocabulary releases the
    GIL while it encodes, so the loop goes on beside the pool.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, inline_bytes: int, num_workers: int, max_queued: int
    ) -> None:
        self._vocabulary = vocabulary
        self._inline_bytes = inline_bytes
        self._max_pending = num_workers + max_queued
        self._num_pending = 0
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")

    def is_small(self, messages: Sequence[Message]) -> bool:
        """Whether `encode` may be called on the loop."""
        num_chars = sum(len(message.content) for message in messages)
        if num_chars >= self._inline_bytes:
            return False
        return sum(len(message.content.encode()) for message in messages) < self._inline_bytes

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt ids, now. Raises what Vocabulary.encode_chat raises."""
        return tuple(self._vocabulary.encode_chat(messages))

    def submit(self, messages: Sequence[Message]) -> asyncio.Future[tuple[int, ...]]:
        """The prompt ids, later. Raises OverloadedError when too many chats wait already."""
        if self._num_pending >= self._max_pending:
            raise OverloadedError(
                f"{self._num_pending} prompts wait for tokenization; try again",
                retry_delay_ms=100,
            )
        self._num_pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, self.encode, messages)
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, future: asyncio.Future[tuple[int, ...]]) -> None:
        self._num_pending -= 1
