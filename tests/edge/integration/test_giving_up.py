"""Chats that were cut off and do not come back: who ends them, and how soon."""

from __future__ import annotations

import asyncio

import pytest

from outrider.client import Client, ReconnectPolicy
from outrider.errors import CancelledError, DeadlineError, OutriderError, UnavailableError
from outrider.testing import eventually
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import ASK, cut, start


@pytest.mark.parametrize("why", ["recovery", "deadline", "cancel"])
async def test_a_chat_without_an_edge_is_given_up_in_time(
    why: str, monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    monkeypatch.setattr("outrider.client.chat._CANCEL_LIMIT_S", 0.2)
    give_up_s = 0.5 if why == "recovery" else 60.0
    policy = ReconnectPolicy(give_up_after_s=give_up_s, attempt_timeout_s=0.2)
    errors = {"recovery": UnavailableError, "deadline": DeadlineError, "cancel": CancelledError}
    async with mesh.client(reconnect=policy) as client:
        mesh.region.gate.clear()
        chat = client.chat(ASK, deadline_ms=1500 if why == "deadline" else 0)
        await chat.__aenter__()
        await anext(chat)
        await mesh.edge.stop()
        cut(client)
        loop = asyncio.get_running_loop()
        began = loop.time()
        if why == "cancel":
            await eventually(lambda: chat._limit is not None)
            chat.cancel()
        with pytest.raises(errors[why]):
            await chat.result()
        assert loop.time() - began < 3


async def test_a_client_that_is_closed_while_it_connects_ends_its_chats(
    mesh: Running, client: Client
) -> None:
    mesh.region.stop_after = 4
    chat = await start(client)
    reading = asyncio.create_task(chat.result())
    await mesh.edge.stop()
    cut(client)
    await eventually(lambda: client._link._redialling is not None)
    await asyncio.sleep(0)  # the chat waits for it
    client._link.close()
    with pytest.raises(UnavailableError, match="closed"):
        await asyncio.wait_for(reading, 30)


async def test_a_defect_ends_the_chat_that_meets_it(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    mesh.region.stop_after = 4
    chat = await start(client)
    monkeypatch.setattr("outrider.client.link.dial", fails)
    cut(client)
    with pytest.raises(OutriderError, match="ZeroDivisionError"):
        await asyncio.wait_for(chat.result(), 30)
    await mesh.edge.stop()  # which keeps the chat for a client that may come back


async def test_a_cancel_while_the_chat_is_cut_off_is_heard_later(
    mesh: Running, client: Client
) -> None:
    mesh.region.stop_after = 4
    chat = await start(client)
    cut(client)
    chat.cancel()
    assert (await chat.result()).finish_reason == "cancelled"
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])
