"""Places for what is under way elsewhere, shared fairly between those who ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import OverloadedError
from outrider.fair_work.turns import Requester, Turns


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits for a place."""

    requester: Requester
    granted: asyncio.Future[None]
    rank: float = 0.0
    cost: float = 1.0

    @property
    def flow(self) -> str:
        return self.requester.origin


@dataclass(slots=True)
class _Origin:
    """Calls of one origin."""

    turns: Turns[_Call] = field(default_factory=Turns)
    """Those that wait since others of it are under way."""
    num_admitted: int = 0
    """Those under way, and those that wait for a place among everybody's."""
    num_asking: int = 0
    """All of them."""


_BUSY_RETRY_MS: Final = 1000


class FairPlaces:
    """Places for calls to another service. An origin's calls beyond `most_each` wait for its own
    earlier ones; beyond `most_in_all` origins take turns, and the clients of each."""

    def __init__(self, most_each: int, most_in_all: int, most_asking: int | None = None) -> None:
        """`most_asking`: how many may be under way and wait in all, shared evenly by the origins
        that have some; None: whoever lets requests in bounds how many wait."""
        self._most_asking = most_asking
        self._num_asking = 0
        self._most_each = most_each
        self._num_free = most_in_all
        self._turns: Turns[_Call] = Turns()
        self._origins: dict[str, _Origin] = {}
        """Those with calls."""

    def __len__(self) -> int:
        """Number of origins with calls."""
        return len(self._origins)

    @asynccontextmanager
    async def held(self, requester: Requester) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the context lasts. Raises OverloadedError if too many
        of the origin wait."""
        self._check(requester.origin)
        call = _Call(requester, asyncio.get_running_loop().create_future())
        origin = self._origins.setdefault(requester.origin, _Origin())
        origin.num_asking += 1
        self._num_asking += 1
        origin.turns.push(call)
        self._grant(origin)
        try:
            await call.granted
            yield
        finally:
            self._left(call, origin)

    def _check(self, name: str) -> None:
        if self._most_asking is None or self._num_asking < self._most_asking:
            return
        origin = self._origins.get(name)
        num_origins = len(self._origins) + (origin is None)
        if origin is not None and origin.num_asking * num_origins >= self._most_asking:
            raise OverloadedError(
                f"{origin.num_asking} requests of yours are under way or wait here already; send "
                "fewer at once, or try again in a moment",
                retry_delay_ms=_BUSY_RETRY_MS,
            )

    def _left(self, call: _Call, origin: _Origin) -> None:
        if call in origin.turns:
            origin.turns.remove(call)
        else:
            origin.num_admitted -= 1
            if call in self._turns:
                self._turns.remove(call)
            else:
                self._num_free += 1
        origin.num_asking -= 1
        self._num_asking -= 1
        if not origin.num_asking:
            del self._origins[call.requester.origin]
        self._grant(origin)

    def _grant(self, origin: _Origin) -> None:
        """Give places to calls whose turn it is, once those of `origin` have changed."""
        while origin.num_admitted < self._most_each and (call := origin.turns.peek()):
            origin.turns.pop(call)
            origin.num_admitted += 1
            self._turns.push(call)
        while self._num_free and (call := self._turns.peek()):
            self._turns.pop(call)
            self._num_free -= 1
            if not call.granted.done():
                call.granted.set_result(None)
