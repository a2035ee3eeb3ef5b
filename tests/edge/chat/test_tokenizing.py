"""Requests that wait for a model that is not loaded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.fair_work.turns import Requester
from outrider.load_table import LoadLimits, LoadTable
from services.edge.access.identity import UNIDENTIFIED
from services.edge.chat.tokenizing import _wait_for
from services.edge.models.keys import ModelKey

BUSY, WANTED = ModelKey("busy", "1"), ModelKey("wanted", "2")


class Waits:
    """A table of models with one place, which is taken."""

    def __init__(self) -> None:
        self.table: LoadTable[ModelKey, Any] = LoadTable(1, LoadLimits())
        self.table.define([BUSY, WANTED], 0.0)
        self.table.preload("busy")
        self.table.loaded(BUSY, 0.0)
        self.table.use("busy")
        self.asked: list[Any] = []
        self.released: list[object] = []
        models = SimpleNamespace(
            ask=self._ask, leave=lambda it: self.table.leave(it, 0.0), release=self.released.append
        )
        self.context: Any = SimpleNamespace(models=models)

    def _ask(self, name: str, waiting: Any, patience_s: float | None, requester: Requester) -> None:
        self.asked.append(waiting)
        self.table.ask(name, waiting, 0.0, patience_s, requester)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_leaves_waits_no_longer() -> None:
    it = Waits()
    for _ in range(3):
        task = asyncio.create_task(_wait_for("wanted", it.context, UNIDENTIFIED))
        await asyncio.sleep(0)
        assert it.table.num_waiting == 1
        await cancelled(task)
        assert it.table.num_waiting == 0
    assert it.released == []


async def test_a_model_that_came_in_the_last_moment_is_given_back() -> None:
    it = Waits()
    task = asyncio.create_task(_wait_for("wanted", it.context, UNIDENTIFIED))
    await asyncio.sleep(0)
    model: Any = object()
    it.asked[0].granted(model)
    await cancelled(task)
    assert it.released == [model]
    it.asked[0].granted(model)
    assert it.released == [model, model], "or after it"
