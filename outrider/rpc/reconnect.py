"""Keeping one peer connected: connect, and after every loss connect again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, NoReturn

import grpc.aio
from google.protobuf.message import DecodeError

from outrider.backoff import Backoff
from outrider.errors import OutriderError
from outrider.rpc.errors import from_rpc_error

FIRST_BACKOFF_S: Final = 0.1
"""Longest pause after the first loss; each further one doubles it."""

LOSSES: Final = (OutriderError, grpc.aio.AioRpcError, TimeoutError, DecodeError)
"""How a connection can be lost, bytes that are no frame included."""


def loss_reason(loss: Exception) -> OutriderError | Exception:
    """The peer's error if the loss is a gRPC status; otherwise the loss itself."""
    return from_rpc_error(loss) if isinstance(loss, grpc.aio.AioRpcError) else loss


def loss_text(loss: Exception) -> str:
    """A loss in plain words."""
    reason = loss_reason(loss)
    return str(reason) or type(reason).__name__


class Reconnector:
    """Connects to one peer for ever, with jittered exponential backoff between attempts."""

    def __init__(self, *, max_backoff_s: float, rng: Random) -> None:
        self._rng = rng
        self._backoff = Backoff(FIRST_BACKOFF_S, max_backoff_s)
        self._is_needed = asyncio.Event()

    async def run(
        self, connect: Callable[[], Awaitable[NoReturn]], on_loss: Callable[[Exception], object]
    ) -> NoReturn:
        """Reconnect until cancelled. `connect` serves one connection and raises one of `LOSSES` if
        it is lost or cannot be made, which is passed to `on_loss`. Anything else it raises is a
        defect."""
        while True:
            try:
                await connect()
            except LOSSES as loss:
                on_loss(loss)
            await self._pause()

    def reset(self) -> None:
        """The connection is good: the next loss begins with the shortest pause again."""
        self._backoff.reset()

    def hasten(self) -> None:
        """Somebody needs the peer: cut the pause that is under way short, though never below the
        shortest, so that the attempts do not become a load."""
        self._is_needed.set()

    async def _pause(self) -> None:
        pause_s = self._backoff.next_s() * self._rng.uniform(0.5, 1.0)
        least_s = min(pause_s, FIRST_BACKOFF_S)
        await asyncio.sleep(least_s)
        self._is_needed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s - least_s):
                await self._is_needed.wait()
