"""Chats that go on alone, for how long, and who may take them up."""

from __future__ import annotations

import pytest

from outrider.client import Accepted, Client, SamplingParams
from outrider.client.protocol import CloseCode
from outrider.errors import UnknownChatError, UnknownModelError
from outrider.testing import eventually
from services.edge.chat.resumption_table import ResumeLimits
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import ASK, cut, quic, said, start, whole

LONG = SamplingParams(max_tokens=5000)


@pytest.mark.edge(resumption=ResumeLimits(window_s=1.0))
async def test_nobody_comes_back(mesh: Running) -> None:
    mesh.region.stop_after = 4
    async with mesh.client(reconnect=None) as client:
        await start(client)
        quic(client).shut(CloseCode.COMING_BACK)
        await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
        assert mesh.region.cancelled == [], "it goes on for a while"
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
    await mesh.settled()
    assert mesh.sample("outrider_edge_detached_chats") == 0


@pytest.mark.edge(resumption=ResumeLimits(window_s=0.0))
async def test_an_edge_that_keeps_nothing_cancels_at_once(mesh: Running) -> None:
    mesh.region.stop_after = 4
    async with mesh.client(reconnect=None) as client:
        await start(client)
        quic(client).shut(CloseCode.COMING_BACK)
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"])


@pytest.mark.edge(resumption=ResumeLimits(max_detached=2))
async def test_only_so_many_go_on_alone(mesh: Running) -> None:
    mesh.region.stop_after = 4
    async with mesh.client(reconnect=None) as client:
        for _ in range(3):
            await start(client)
        quic(client).shut(CloseCode.COMING_BACK)
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
        await eventually(lambda: mesh.edge.telemetry.num_chats == 2)
    await mesh.edge.stop()


async def test_a_client_takes_a_chat_up_by_its_latest_token_after_a_restart(mesh: Running) -> None:
    mesh.region.hold(6)
    async with mesh.client(reconnect=None) as client:
        chat = client.chat(ASK)
        await chat.__aenter__()
        accepted = await anext(chat)
        assert isinstance(accepted, Accepted)
        quic(client).shut(CloseCode.COMING_BACK)
    async with mesh.client(client_secret=client.secret) as later:
        async with later.resume(accepted.resume_token) as resumed:
            table = mesh.edge.listener.context.resumable._table
            await eventually(lambda: resumed.resume_token not in ("", accepted.resume_token))
            await eventually(lambda: len(table._by_token) == 1)  # it has acknowledged
            mesh.region.gate.set()
            await whole(resumed)
        async with later.resume(resumed.resume_token) as again:
            await whole(again)
        for used_up in (accepted.resume_token, "no such token"):
            with pytest.raises(UnknownChatError, match="whole request"):
                await said(later.resume(used_up))
    assert len(mesh.region.opened) == 1


async def test_another_model_does_not_go_on_with_a_reply(mesh: Running, client: Client) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    await mesh.restart(model="another")
    cut(client)
    with pytest.raises(UnknownModelError, match="small"):
        await chat.result()
    mesh.region.gate.set()
    assert len(mesh.region.opened) == 1
