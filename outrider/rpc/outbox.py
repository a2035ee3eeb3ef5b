"""The bounded outbound queue of one stream, between its producers and the one loop that writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from outrider.errors import CancelledError, OutriderError, OverloadedError

T = TypeVar("T")


class Outbox(AsyncIterator[T]):
    """Many producers, one consumer, one event loop.

    At most `max_items` wait, and on top of them at most `max_last_items` that end a session each,
    so that the reason of an end still fits into a full queue. A peer that leaves even those unread
    is given up: the outbox is overrun, drops what it holds and closes.

    Iterating yields the items in order, and ends after `close()` once all are taken; if `close` was
    given an error, it raises that. `batches` yields all that waits.
    """

    def __init__(self, max_items: int = 1024, max_last_items: int | None = None) -> None:
        """Without `max_last_items` the last item of a session always fits: for streams whose number
        of sessions is bounded elsewhere."""
        if max_items < 1:
            raise ValueError(f"an outbox holds at least one item, not {max_items}")
        self._max_items = max_items
        self._limit = None if max_last_items is None else max_items + max_last_items
        self._items: deque[T] = deque()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._closed = False
        self._error: OutriderError | None = None
        self.is_overrun = False
        """Whether it was closed because its peer did not read."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether nothing more can be put."""
        return self._closed

    def offer(self, item: T, *, last: bool = False) -> bool:
        """Queue one item; False if it was not, because the outbox is full or closed. `last` marks
        one that ends a session."""
        if self._closed:
            return False
        if len(self._items) >= self._max_items:
            if not last:
                return False
            if self._limit is not None and len(self._items) >= self._limit:
                self.is_overrun = True
                self._items.clear()
                self.close()
                return False
        self._items.append(item)
        self._readable.set()
        return True

    def put_nowait(self, item: T, *, last: bool = False) -> None:
        """Like `offer`, but raises OverloadedError when full and CancelledError when closed."""
        self._check_open()
        if not self.offer(item, last=last):
            raise OverloadedError(
                f"the peer does not read: {self._max_items} frames wait for it already"
            )

    async def put(self, item: T) -> None:
        """Queue one item, waiting for room. Raises CancelledError when closed meanwhile."""
        self._check_open()
        while len(self._items) >= self._max_items:
            self._writable.clear()
            await self._writable.wait()
            self._check_open()
        self._items.append(item)
        self._readable.set()

    def close(self, error: OutriderError | None = None) -> None:
        """End the stream behind the queued items, with `error` if given. Later calls do nothing."""
        if self._closed:
            return
        self._closed, self._error = True, error
        self._readable.set()
        self._writable.set()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not await self._filled():
            raise StopAsyncIteration
        self._writable.set()
        return self._items.popleft()

    async def batches(
        self, max_items: int, max_bytes: int, encode: Callable[[T], bytes]
    ) -> AsyncIterator[list[bytes]]:
        """All that waits, encoded, in order, at most `max_items` at a time, and at most `max_bytes`
        together unless one item is larger. Ends and raises as iterating does."""
        while await self._filled():
            batch = self._take(max_items, max_bytes, encode)
            self._writable.set()
            yield batch

    async def _filled(self) -> bool:
        """Wait for an item; False if there will be none. Raises the error given to `close`."""
        while not self._items:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return False
            self._readable.clear()
            await self._readable.wait()
        return True

    def _take(self, max_items: int, max_bytes: int, encode: Callable[[T], bytes]) -> list[bytes]:
        items = self._items
        if len(items) <= max_items:
            batch = list(map(encode, items))
            if sum(map(len, batch)) <= max_bytes or len(batch) == 1:
                items.clear()
                return batch
        batch = [encode(items.popleft())]
        left_bytes = max_bytes - len(batch[0])
        while items and len(batch) < max_items:
            item = encode(items[0])
            left_bytes -= len(item)
            if left_bytes < 0:
                break
            batch.append(item)
            items.popleft()
        return batch

    def _check_open(self) -> None:
        if self._closed:
            raise CancelledError("the stream is closed")
