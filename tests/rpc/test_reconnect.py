"""When a lost peer is tried again."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from itertools import pairwise
from random import Random
from typing import Any, NoReturn

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


class _SkippingTime(asyncio.SelectorEventLoop):
    """A loop whose time passes at once, and only while there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__(_Skipping(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Skipping(selectors.SelectSelector):
    def __init__(self, loop: _SkippingTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout is not None:
            self._loop.now += timeout
        return ready


def _in_skipping_time(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_SkippingTime) as runner:
        runner.run(test)


class _LongestPauses(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


async def _stop(task: asyncio.Task[NoReturn]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_pauses_double_up_to_the_longest_and_begin_anew_once_it_works() -> None:
    async def test() -> None:
        peer = _Peer()
        reconnector = Reconnector(max_backoff_s=0.2, rng=_LongestPauses())
        trying = asyncio.create_task(reconnector.run(peer.connect, peer.lost))
        tried_at = await peer.attempts(4)
        reconnector.reset()
        tried_at += await peer.attempts(2)
        await _stop(trying)
        pauses_s = [b - a for a, b in pairwise(tried_at)]
        assert pauses_s == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.1])
        assert peer.losses == ["nobody listens"] * 6

    _in_skipping_time(test())


@pytest.mark.parametrize(("needed_after_s", "pause_s"), [(0.15, 0.15), (0.05, 0.4), (9.0, 0.4)])
def test_who_needs_the_peer_cuts_the_pause_short(needed_after_s: float, pause_s: float) -> None:
    """To no less than the shortest pause: what was asked for earlier counts for nothing."""

    async def test() -> None:
        peer = _Peer()
        reconnector = Reconnector(max_backoff_s=60.0, rng=_LongestPauses())
        trying = asyncio.create_task(reconnector.run(peer.connect, peer.lost))
        tried_at = await peer.attempts(3)  # the next pause is one of 0.4 s
        asyncio.get_running_loop().call_later(needed_after_s, reconnector.hasten)
        tried_at += await peer.attempts(1)
        await _stop(trying)
        assert tried_at[3] - tried_at[2] == pytest.approx(pause_s)

    _in_skipping_time(test())


async def test_a_defect_is_no_loss() -> None:
    async def connect() -> NoReturn:
        raise KeyError("a defect")

    reconnector = Reconnector(max_backoff_s=0.1, rng=Random(1))
    with pytest.raises(KeyError):
        await reconnector.run(connect, lambda _: None)
