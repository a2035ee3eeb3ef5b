"""Calls that are shared by all who ask for the same result at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from outrider.lru_map import LruMap

KeyT = TypeVar("KeyT")
ResultT = TypeVar("ResultT")


class SharedCalls(Generic[KeyT, ResultT]):
    """At most one call per key at a time, as in Go's singleflight; the last `max_kept` results are
    kept. Belongs to one event loop."""

    def __init__(self, max_kept: float = 0, *, for_nobody: bool = True) -> None:
        """0: who asks after a call has ended begins another one. Failures are never kept.
        `for_nobody`: whether a call goes on when nobody waits for it any more; otherwise it is
        cancelled."""
        self._kept: LruMap[KeyT, tuple[ResultT]] = LruMap(max_kept)
        self._for_nobody = for_nobody
        self._waiting: Counter[KeyT] = Counter()
        self.running: dict[KeyT, asyncio.Future[ResultT]] = {}
        """The calls under way; read-only."""

    async def result(self, key: KeyT, begin: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result for a key, of a call that `begin` begins unless one is under way or was kept.
        Raises what the call raises, and then nothing is kept. Whoever is cancelled leaves the call
        to the others."""
        if (kept := self._kept.get(key)) is not None:
            return kept[0]
        call = self.running.get(key)
        if call is None:
            call = self.running[key] = asyncio.ensure_future(begin())
            call.add_done_callback(partial(self._ended, key))
        self._waiting[key] += 1
        try:
            return await asyncio.shield(call)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                if not self._for_nobody and self.running.get(key) is call:
                    del self.running[key]
                    call.cancel()

    def forget(self, key: KeyT) -> None:
        """Keep the result no longer."""
        self._kept.pop(key)

    def _ended(self, key: KeyT, call: asyncio.Future[ResultT]) -> None:
        if self.running.get(key) is call:
            del self.running[key]
        if not call.cancelled() and call.exception() is None:
            self._kept.put(key, (call.result(),))
