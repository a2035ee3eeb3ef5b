"""A lane driven by the event loop: what is due leaves through a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from bench.wan.relay.lane import Lane

T = TypeVar("T")

_SLACK_S = 50e-6
"""A timer of the loop fires up to its clock's resolution early."""


class Pump(Generic[T]):
    """Feeds a lane and empties it on time: one timer, armed for the next packet."""

    def __init__(self, deliver: Callable[[T], None], *, seed: int, ordered: bool) -> None:
        self.lane: Lane[T] = Lane(seed, ordered=ordered, slack_s=_SLACK_S)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._closed = False

    def send(self, packet: T, num_bytes: int) -> None:
        """Put a packet on its way; without a delay it is there at once."""
        if not self._closed:
            self.lane.send(packet, num_bytes, self._loop.time())
            self._run()

    def close(self) -> None:
        """What is still under way never arrives."""
        self._closed = True
        self._arm(None)

    def _run(self) -> None:
        for packet in self.lane.due(self._loop.time()):
            self._deliver(packet)
        self._arm(None if self._closed else self.lane.next_due())

    def _arm(self, at: float | None) -> None:
        if at == self._armed_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = at
        self._timer = None if at is None else self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = self._armed_at = None
        self._run()
