"""The bounded queue of frames towards one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

FrameT = TypeVar("FrameT")


class Outlet(Generic[FrameT]):
    """Offers never wait. One reader iterates with `take`.

    Frames that end a session may use a reserve on top of the capacity, so that a full queue can
    still say why. A peer that exhausts even the reserve is hopeless: the outlet breaks, drops
    what it holds, and `take` returns None at once.
    """

    def __init__(self, capacity: int, reserve: int) -> None:
        self._capacity = capacity
        self._limit = capacity + reserve
        self._frames: deque[FrameT] = deque()
        self._wakeup = asyncio.Event()
        self._is_closed = False
        self.is_broken = False

    def __len__(self) -> int:
        return len(self._frames)

    def offer(self, frame: FrameT, *, last: bool = False) -> bool:
        """Queue a frame; False if it was not. `last` marks one that ends a session."""
        if self._is_closed:
            return False
        if len(self._frames) >= (self._limit if last else self._capacity):
            if last:
                self._break()
            return False
        self._frames.append(frame)
        self._wakeup.set()
        return True

    def close(self) -> None:
        """Take nothing more; the reader gets what is queued and then None."""
        self._is_closed = True
        self._wakeup.set()

    async def take(self) -> FrameT | None:
        """The next frame, waiting for it; None once the outlet is closed and empty."""
        while not self._frames:
            if self._is_closed:
                return None
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._frames.popleft()

    def _break(self) -> None:
        self.is_broken = True
        self._frames.clear()
        self.close()
