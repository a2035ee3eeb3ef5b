"""Watches one connection for signs of life, by a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from outrider.client.liveness import LinkAction, Liveness, LivenessLimits

LIMITS: Final = LivenessLimits()


class LifeSigns:
    """The `Liveness` of a connection, asked whenever a check of it is due."""

    def __init__(self, is_busy: Callable[[], bool], act: Callable[[LinkAction], None]) -> None:
        """`is_busy`: whether chats wait for something; `act` does what a check asks for."""
        self._loop = asyncio.get_running_loop()
        self._is_busy = is_busy
        self._act = act
        self._timer: asyncio.TimerHandle | None = None
        self.liveness = Liveness(LIMITS, self._loop.time())

    def heard(self) -> None:
        """Something came that only the edge can have sent."""
        self.liveness.heard(self._loop.time())

    def moved(self) -> None:
        """The connection has another path."""
        self.liveness.moved(self._loop.time())

    def watch(self) -> None:
        """Set the timer for the next check: the connection is made, or what is due has changed."""
        at = self.liveness.next_check(self._is_busy())
        self.stop()
        if at is not None:
            self._timer = self._loop.call_at(at, self._check, max(at, self._loop.time()))

    def stop(self) -> None:
        """Check nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, due: float) -> None:
        now = self._loop.time()
        self._timer = None
        action = self.liveness.check(now, self._is_busy(), now - due)
        self.watch()
        self._act(action)
