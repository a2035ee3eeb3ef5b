"""Work of many chats in slices of the loop's turns."""

from __future__ import annotations

import asyncio

import pytest

from outrider.testing import eventually
from services.edge.chat.time_slicing import TimeSlicer


class Turns:
    """Counts turns of the loop while work is done."""

    def __init__(self) -> None:
        self.number = 0
        self.done: list[tuple[int, int]] = []
        """Turn and piece, in the order in which they were done."""
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._loop.call_soon(self._next)

    def piece(self, number: int) -> None:
        """A piece of work."""
        self.done.append((self.number, number))


async def _do(slicer: TimeSlicer, turns: Turns, count: int) -> None:
    for number in range(count):
        slicer.submit(lambda number=number: turns.piece(number))  # type: ignore[misc]
    await eventually(lambda: not len(slicer))


async def test_what_fits_is_done_at_once() -> None:
    slicer, turns = TimeSlicer(slice_s=60.0), Turns()
    slicer.submit(lambda: turns.piece(0))
    slicer.submit(lambda: turns.piece(1))
    assert turns.done == [(0, 0), (0, 1)] and not len(slicer)


async def test_what_does_not_fit_is_done_in_order_a_piece_a_turn_at_least() -> None:
    slicer, turns = TimeSlicer(slice_s=0.0), Turns()
    await _do(slicer, turns, 20)
    assert [number for _, number in turns.done] == list(range(20))
    assert len({turn for turn, _ in turns.done}) == 20, "others had their turn between any two"


async def test_who_comes_while_others_wait_is_behind_them() -> None:
    slicer, turns = TimeSlicer(slice_s=60.0), Turns()
    slicer.defer(lambda: turns.piece(0))
    slicer.submit(lambda: turns.piece(1))
    assert not turns.done
    await eventually(lambda: not len(slicer))
    assert [number for _, number in turns.done] == [0, 1]


async def test_each_turn_has_a_slice_of_its_own() -> None:
    slicer, turns = TimeSlicer(slice_s=1e-9), Turns()
    slicer.submit(lambda: turns.piece(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slicer.submit(lambda: turns.piece(1))
    assert [number for _, number in turns.done] == [0, 1] and not len(slicer)


async def test_a_piece_that_fails_holds_up_nobody() -> None:
    slicer, turns = TimeSlicer(slice_s=0.0), Turns()
    reported: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def poison() -> None:
        raise ValueError("poison")

    slicer.defer(poison)
    slicer.submit(lambda: turns.piece(0))
    await eventually(lambda: not len(slicer))
    assert [number for _, number in turns.done] == [0]
    assert [str(error) for error in reported] == ["poison"]
    with pytest.raises(ValueError, match="poison"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        slicer.submit(poison)
    slicer.submit(lambda: turns.piece(1))
    await eventually(lambda: not len(slicer))
    assert [number for _, number in turns.done] == [0, 1]
