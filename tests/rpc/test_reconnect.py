"""When a lost peer is tried again."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import NoReturn

import pytest

from outrider.errors import UnavailableError
from outrider.rpc import Reconnector, loss_text


class _Peer:
    """A peer that is lost as soon as it is reached."""

    def __init__(self) -> None:
        self._tried_at: asyncio.Queue[float] = asyncio.Queue()
        self.losses: list[str] = []

    async def connect(self) -> NoReturn:
        self._tried_at.put_nowait(asyncio.get_running_loop().time())
        raise UnavailableError("nobody listens")

    def lost(self, loss: Exception) -> None:
        self.losses.append(loss_text(loss))

    async def attempts(self, num: int) -> list[float]:
        """When the next ones were made."""
        return [await self._tried_at.get() for _ in range(num)]


class _LongestPauses(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


async def _stop(task: asyncio.Task[NoReturn]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pauses_double_up_to_the_longest_and_begin_anew_once_it_works() -> None:
    peer = _Peer()
    reconnector = Reconnector(max_backoff_s=0.2, rng=_LongestPauses())
    trying = asyncio.create_task(reconnector.run(peer.connect, peer.lost))
    tried_at = await peer.attempts(4)
    reconnector.reset()
    tried_at += await peer.attempts(2)
    await _stop(trying)
    between = [b - a for a, b in pairwise(tried_at)]
    for pause_s, least_s in zip(between, (0.1, 0.2, 0.2, 0.2, 0.1), strict=True):
        assert pause_s >= 0.99 * least_s
    assert peer.losses == ["nobody listens"] * 6


async def test_who_needs_the_peer_cuts_the_pause_short() -> None:
    peer = _Peer()
    reconnector = Reconnector(max_backoff_s=60.0, rng=_LongestPauses())
    trying = asyncio.create_task(reconnector.run(peer.connect, peer.lost))
    tried_at = await peer.attempts(3)  # the next pause is one of 0.4 s
    await asyncio.sleep(0.15)
    reconnector.hasten()
    tried_at += await peer.attempts(1)
    await _stop(trying)
    assert 0.099 <= tried_at[3] - tried_at[2] < 0.35


async def test_a_defect_is_no_loss() -> None:
    async def connect() -> NoReturn:
        raise KeyError("a defect")

    reconnector = Reconnector(max_backoff_s=0.1, rng=Random(1))
    with pytest.raises(KeyError):
        await reconnector.run(connect, lambda _: None)
