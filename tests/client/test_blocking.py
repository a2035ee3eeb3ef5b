"""The client for programs without a loop, left while others wait for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from outrider.client.blocking import _LoopThread
from outrider.errors import UnavailableError


def test_who_waits_when_the_client_is_left_is_told() -> None:
    thread = _LoopThread()
    begun = threading.Event()
    errors: list[BaseException] = []

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.wait(never())
        except UnavailableError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(30)
    thread.close()
    waiting.join(30)
    assert not waiting.is_alive() and len(errors) == 1
    with pytest.raises(UnavailableError, match="connect again"):
        thread.wait(asyncio.sleep(0))


def test_what_many_threads_ask_while_it_is_left_is_answered() -> None:
    thread = _LoopThread()
    outcomes: list[str] = []

    def ask() -> None:
        for _ in range(200):
            try:
                thread.wait(asyncio.sleep(0))
                outcomes.append("done")
            except UnavailableError:
                outcomes.append("left")

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for asker in askers:
        asker.start()
    thread.close()
    for asker in askers:
        asker.join(30)
    assert len(outcomes) == 800
