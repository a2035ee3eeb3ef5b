"""Gives an engine's prefix events to all who watch them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from outrider.engines.turn.base import BlocksCleared, PrefixEvent

MAX_EVENTS: Final = 4096
"""Events that wait for one watcher."""


class PrefixHub:
    """One source, any number of watchers. A watcher that falls MAX_EVENTS behind loses what waits
    for it, and is told that nothing is cached any more. Used in one event loop."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[PrefixEvent | None]] = set()
        self._is_closed = False

    def tell(self, event: PrefixEvent) -> None:
        """Give an event to every watcher."""
        for queue in self._watchers:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(BlocksCleared())
            queue.put_nowait(event)

    async def watch(self) -> AsyncIterator[PrefixEvent]:
        """Events from now on, until `close`."""
        if self._is_closed:
            return
        # One place more than events, for the end.
        queue: asyncio.Queue[PrefixEvent | None] = asyncio.Queue(MAX_EVENTS + 1)
        self._watchers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End all watchers."""
        self._is_closed = True
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
