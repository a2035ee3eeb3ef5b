"""Connections and edges lost in the middle of a chat: it goes on, nothing is lost or twice."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.client import (
    Accepted,
    Client,
    Done,
    Event,
    Interrupted,
    Resumed,
    SamplingParams,
)
from outrider.client.chat import Chat
from outrider.client.protocol import CloseCode
from outrider.errors import UnknownChatError, UnknownModelError
from outrider.models.vocabulary import Vocabulary
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.edge.app import Edge
from tests.edge.live.running import Mute, Running, running
from tests.edge.live.trouble import ASK, REPLY, cut, start

LONG = SamplingParams(max_tokens=5000)


async def whole(chat: Chat, reply: str = REPLY) -> list[Event]:
    """All events still to come; the reply has to be whole."""
    events = [event async for event in chat]
    result = await chat.result()
    assert result.text == reply
    assert len(result.ids) == len(reply) + 1, "a byte a token, and the end"
    return events


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


@pytest.mark.parametrize("provisional", [True, False])
async def test_a_lost_connection_is_replaced_and_the_chat_goes_on(
    provisional: bool, words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        chat = await start(client, provisional=provisional)
        began = time.monotonic()
        cut(client)
        await eventually(
            lambda: mesh.sample("outrider_edge_resumed_chats_total", how="attached") > 0
        )
        mesh.region.gate.set()
        events = await whole(chat)
        assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
        (resumed,) = (event for event in events if isinstance(event, Resumed))
        assert resumed.edge == "edge"
        assert 0 < resumed.pause_ms < (time.monotonic() - began) * 1e3
        assert len(mesh.region.opened) == 1, "the edge had kept the chat going"
        assert mesh.region.cancelled == []
        await mesh.settled()


async def test_a_chat_cut_off_before_the_edge_answered_runs_once(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        async with client.chat(ASK) as chat:
            cut(client)
            events = await whole(chat)
        assert kinds(events).count(Accepted) == 1
        assert kinds(events)[-1] is Done
        assert len(mesh.region.opened) == 1
        await mesh.settled()


async def test_a_reply_that_ended_while_nobody_listened_is_told_again(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        chat = await start(client)
        connection = client._link.connection
        connection._transport.close()  # type: ignore[union-attr]  # it hears no more
        mesh.region.gate.set()
        await eventually(lambda: bool(mesh.region.finished))
        cut(client)
        await whole(chat)
        assert mesh.sample("outrider_edge_resumed_chats_total", how="replayed") == 1
        assert len(mesh.region.opened) == 1
        for served in mesh.edge.listener._connections:
            served.close()  # the silent one


async def test_an_edge_that_restarts_runs_on_from_what_the_client_has(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        chat = await start(client)
        await mesh.restart()
        had = len(chat._transcript.ids)
        mesh.region.gate.set()
        cut(client)
        events = await whole(chat)
        assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
        first, second = mesh.region.opened
        assert first.request_id == second.request_id
        assert second.resume.count == had > 0, "nothing is computed twice"
        await mesh.settled()


async def test_an_edge_that_is_stopped_in_order_hands_its_chats_on(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.gate.clear()
        async with client.chat(ASK) as chat:
            assert isinstance(await anext(chat), Accepted)
            await mesh.restart(in_order=True)
            mesh.region.gate.set()
            events = await whole(chat)
        assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
        await mesh.settled()


async def test_a_chat_goes_to_another_edge_while_its_own_finishes_what_it_has(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        running(words, tmp_path / "a", REPLY, drain_s=60.0) as old,
        running(words, tmp_path / "b", REPLY) as new,
        old.client(insecure=True) as client,
    ):
        old.region.hold_at = 6
        old.region.gate.clear()
        under_way = await start(client)
        stopping = asyncio.create_task(old.edge.stop())
        await eventually(lambda: old.edge.listener.draining)
        (first,) = client._link._addresses
        client._link._addresses = (replace(first, port=new.ports.main),)
        async with client.chat(ASK) as chat:
            await whole(chat)
        assert len(new.region.opened) == 1
        old.region.gate.set()
        await whole(under_way)
        assert len(old.region.opened) == 1, "it ended where it was"
        await stopping
        await new.settled()


async def test_a_router_that_is_lost_mid_reply_is_the_edges_affair(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        chat = await start(client)
        mesh.region.break_streams()
        mesh.region.gate.set()
        events = await whole(chat)
        assert Interrupted not in kinds(events)
        assert mesh.region.opened[-1].resume.count >= 3
        await mesh.settled()


async def test_another_edge_goes_on_with_a_chat_it_never_saw(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh:
        first = mesh.edge
        metrics = Metrics("edge")
        mesh.edge = Edge(replace(first._config, port=0), "small", words, metrics)
        ports = await mesh.edge.start()
        await eventually(lambda: mesh.edge.upstream.ready)
        async with mesh.client(others=(f"quic://127.0.0.1:{ports.main}",)) as client:
            mesh.region.hold_at = 6
            mesh.region.gate.clear()
            chat = await start(client)
            for connection in first.listener._connections:
                connection._transport = Mute()  # type: ignore[assignment]
            await first.stop()
            mesh.region.gate.set()
            events = await whole(chat)
            assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
            assert mesh.region.opened[-1].resume.count >= 3
            async with client.chat(ASK) as again:
                assert (await again.result()).text == REPLY
        await mesh.settled()
    metrics.close()


@pytest.mark.parametrize("seed", range(6))
async def test_random_cuts_never_change_the_text(
    seed: int, words: Vocabulary, tmp_path: Path
) -> None:
    """Cuts of the connection, restarts of the edge, losses of the router, at random events."""
    rng, reply = random.Random(seed), REPLY * 12
    async with running(words, tmp_path, reply) as mesh, mesh.client() as client:
        mesh.region.block_tokens = 1
        done = False
        async with client.chat(ASK, sampling=LONG, provisional=bool(seed % 2)) as chat:
            async for event in chat:
                done = isinstance(event, Done)
                if chat._transcript.ids and rng.random() < 0.03:
                    await trouble(rng, mesh, client)
        assert done
        assert (await chat.result()).text == reply
        await mesh.settled()


async def trouble(rng: random.Random, mesh: Running, client: Client) -> None:
    match rng.choice(["cut", "cut", "restart", "router"]):
        case "cut":
            cut(client)
        case "restart":
            await mesh.restart()
            cut(client)
        case "router":
            mesh.region.break_streams()


async def test_nobody_comes_back(words: Vocabulary, tmp_path: Path) -> None:
    async with running(words, tmp_path, REPLY, resume_window_s=1.0) as mesh:
        mesh.region.stop_after = 4
        async with mesh.client(reconnect=None) as client:
            await start(client)
            client._link.connection.shut(CloseCode.COMING_BACK)
            await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
            assert mesh.region.cancelled == [], "it goes on for a while"
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
        await mesh.settled()
        assert mesh.sample("outrider_edge_detached_chats") == 0


async def test_an_edge_that_keeps_nothing_cancels_at_once(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY, resume_window_s=0.0) as mesh:
        mesh.region.stop_after = 4
        async with mesh.client(reconnect=None) as client:
            await start(client)
            client._link.connection.shut(CloseCode.COMING_BACK)
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
        await mesh.settled()


async def test_only_so_many_go_on_alone(words: Vocabulary, tmp_path: Path) -> None:
    async with running(words, tmp_path, REPLY, max_detached_chats=2) as mesh:
        mesh.region.stop_after = 4
        async with mesh.client(reconnect=None) as client:
            for _ in range(3):
                await start(client)
            client._link.connection.shut(CloseCode.COMING_BACK)
            await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
            await eventually(lambda: mesh.edge.telemetry.num_chats == 2)
        await mesh.edge.stop()
        await mesh.settled()


async def test_another_client_takes_a_chat_up_by_its_token(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path, REPLY) as mesh:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        async with mesh.client(reconnect=None) as client:
            chat = client.chat(ASK)
            await chat.__aenter__()
            accepted = await anext(chat)
            assert isinstance(accepted, Accepted)
            client._link.connection.shut(CloseCode.COMING_BACK)
        async with mesh.client() as other, other.resume(accepted.resume_token) as resumed:
            mesh.region.gate.set()
            await whole(resumed)
        async with mesh.client() as third:
            async with third.resume(accepted.resume_token) as again:
                await whole(again)
            with pytest.raises(UnknownChatError, match="whole request"):
                async with third.resume("no such token") as nothing:
                    await nothing.result()
        assert len(mesh.region.opened) == 1


async def test_another_model_does_not_go_on_with_a_reply(words: Vocabulary, tmp_path: Path) -> None:
    async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        chat = await start(client)
        await mesh.restart(model="another")
        cut(client)
        with pytest.raises(UnknownModelError, match="small"):
            await chat.result()
        mesh.region.gate.set()
        assert len(mesh.region.opened) == 1
        await mesh.settled()
