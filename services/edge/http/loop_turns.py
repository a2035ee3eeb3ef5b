"""TCP connections take turns at the event loop: their cost is charged to their address prefix, and
a fair queue decides when their next bytes are parsed."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from services.edge.limits.fair_queue import ENTRY_BYTES, FairQueue, LoopUses

TURN_S: Final = 0.0003
"""Most time for connections in one pass of the event loop; a chat needs several passes until its
first token is sent, and in each its datagrams may take as long again."""
_MAX_PER_PASS: Final = 4
"""Most connections that continue in one pass. Each takes at most 0.3 ms on average; after a pass in
which they took more than TURN_S, only one continues in the next."""


class Meter:
    """Loop time of one connection that was not charged to its prefix yet."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.unbilled_s = 0.0

    def add(self, seconds: float) -> None:
        """It took so much more."""
        self.unbilled_s += seconds


class LoopTurns:
    """All TCP connections of an edge."""

    def __init__(self, uses: LoopUses, max_connections: int) -> None:
        """`uses` is shared with the QUIC listener. Each connection waits once at a time."""
        self._uses = uses
        # Each address may fill a quarter of the queue: room for all connections, and three times
        # as many that gave up waiting and were not passed over yet.
        self._queue = FairQueue[asyncio.Future[None]](
            ENTRY_BYTES, 16 * ENTRY_BYTES * max_connections, uses
        )
        self._is_scheduled = False
        self._num_passed = 0
        """In this pass."""
        self._used_s = 0.0
        """Billed in this pass."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether any connection waits for its turn."""
        return self._queue.num_bytes > 0

    def bill(self, meter: Meter) -> None:
        """Charge the prefix for the meter's time."""
        if meter.unbilled_s:
            self._uses.spend(meter.prefix, meter.unbilled_s, time.perf_counter())
            self._used_s += meter.unbilled_s
            meter.unbilled_s = 0.0

    async def take(self, meter: Meter) -> None:
        """Return when it is the connection's turn: at once if no other waits."""
        self.bill(meter)
        has_room = self._num_passed < _MAX_PER_PASS and self._used_s < TURN_S
        if has_room and self._queue.may_pass(meter.prefix, time.perf_counter()):
            self._num_passed += 1
            self._schedule()
            return
        turn = asyncio.get_running_loop().create_future()
        if not self._queue.put(meter.prefix, turn, b""):
            return  # not reached while each connection waits once
        self._schedule()
        await turn

    def close(self) -> None:
        """Stop the timer; no connection waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._is_scheduled = False
        most = _MAX_PER_PASS if self._used_s < TURN_S else 1
        self._num_passed, self._used_s = 0, 0.0
        now = time.perf_counter()
        while self._num_passed < most and (taken := self._queue.take(now)) is not None:
            _, turn, _ = taken
            if not turn.done():  # its connection may have gone
                turn.set_result(None)
                self._num_passed += 1
        if self._num_passed:
            self._schedule()
        else:
            self._await_release(now)

    def _await_release(self, now: float) -> None:
        """Sleep until a prefix that is held back is released."""
        self.close()
        at = self._queue.next_release()
        if at is not None:
            wait_s = max(0.0, at - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._released)

    def _released(self) -> None:
        self._timer = None
        self._schedule()
