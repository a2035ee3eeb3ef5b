"""Connections and edges lost in the middle of a chat: it goes on, nothing is lost or twice."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.client import (
    Accepted,
    Client,
    Done,
    Event,
    Interrupted,
    Message,
    Resumed,
    SamplingParams,
    wire,
)
from outrider.client.protocol import CloseCode
from outrider.client.streams import Connection
from outrider.codec.frames import encode_frame
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, RawStream, cut, quic, raw, said, start, whole
from tests.mesh import EdgeUnderTest

MAX_UNSENT_BYTES = 64 << 10
LONG = SamplingParams(max_tokens=5000, num_logprobs=2)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def counted_tokens(mesh: Running) -> list[float]:
    """Tokens of replies, as the edge counts them itself and under the name of the conventions."""
    labels = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "outrider",
        "gen_ai_request_model": "small",
        "gen_ai_token_type": "output",
    }
    usage = mesh.sample("gen_ai_client_token_usage_sum", **labels)
    return [mesh.of_model("outrider_edge_tokens_total"), usage]


async def test_a_chat_whose_request_filled_a_frame_goes_on_by_its_token(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    sizes: list[int] = []
    made = wire.request_frame

    def noted(*given: Any) -> bytes:
        frame = made(*given)
        sizes.append(len(frame))
        return frame

    monkeypatch.setattr(wire, "request_frame", noted)
    mesh.region.hold(6)
    chat = client.chat([Message("user", "hello there " * 100)])
    await chat.__aenter__()
    while not chat._transcript.ids:
        await anext(chat)
    sent_bytes = sizes[-1]
    monkeypatch.setattr(wire, "DEFAULT_MAX_FRAME_BYTES", sent_bytes)
    cut(client)
    await eventually(lambda: mesh.sample("outrider_edge_resumed_chats_total", how="attached") > 0)
    mesh.region.gate.set()
    await whole(chat)
    assert sizes[-1] < sent_bytes
    assert len(mesh.region.opened) == 1


@pytest.mark.parametrize("provisional", [True, False])
async def test_a_lost_connection_is_replaced_and_the_chat_goes_on(
    provisional: bool, mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client, provisional=provisional)
    began = time.monotonic()
    cut(client)
    await eventually(lambda: mesh.sample("outrider_edge_resumed_chats_total", how="attached") > 0)
    mesh.region.gate.set()
    events = await whole(chat)
    assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
    (resumed,) = (event for event in events if isinstance(event, Resumed))
    assert resumed.edge == "edge"
    assert 0 < resumed.pause_ms < (time.monotonic() - began) * 1e3
    assert len(mesh.region.opened) == 1, "the edge had kept the chat going"
    assert mesh.region.cancelled == []


async def test_a_connection_lost_as_soon_as_it_is_there_is_one_more_try(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    usable, handed_out = client._link.usable, []

    async def lost_meanwhile() -> Connection:
        handed_out.append(await usable())
        if len(handed_out) == 1:
            cut(client)
        return handed_out[-1]

    monkeypatch.setattr(client._link, "usable", lost_meanwhile)
    cut(client)
    await eventually(lambda: len(handed_out) == 2)
    mesh.region.gate.set()
    events = await whole(chat)
    assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
    assert len(mesh.region.opened) == 1


async def test_a_chat_cut_off_before_the_edge_answered_runs_once(
    mesh: Running, client: Client
) -> None:
    async with client.chat(ASK) as chat:
        cut(client)
        events = await whole(chat)
    assert kinds(events).count(Accepted) == 1
    assert kinds(events)[-1] is Done
    assert len(mesh.region.opened) == 1


async def test_a_reply_that_ended_while_nobody_listened_is_told_again(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    connection = quic(client)
    connection._transport.close()  # type: ignore[union-attr]  # it hears no more
    mesh.region.gate.set()
    await eventually(lambda: bool(mesh.region.finished))
    cut(client)
    await whole(chat)
    assert mesh.sample("outrider_edge_resumed_chats_total", how="replayed") == 1
    assert len(mesh.region.opened) == 1
    for served in mesh.edge.listener.connections:
        served.close()  # the silent one


@pytest.mark.edge(reply=REPLY * 30, max_unsent_bytes=MAX_UNSENT_BYTES)
async def test_a_chat_that_its_client_was_away_from_for_long_is_caught_up_with(
    mesh: Running,
) -> None:
    """More came meanwhile than a client may leave unread. While it runs, and once it has ended."""
    reply = REPLY * 30
    asked = edge_pb2.ChatRequest(idempotency_key="k")
    asked.messages.add(role="user", content="hello")
    asked.credential.client_secret = b"s" * 16
    asked.sampling.num_logprobs = 20
    asked.sampling.max_tokens = 5000
    ask = encode_frame(edge_pb2.ClientFrame(chat=asked).SerializeToString())
    mesh.region.hold(6)
    async with raw(mesh) as connection:
        first = RawStream(connection, ask)
        await eventually(partial(_has_begun, first))
        connection.shut(CloseCode.COMING_BACK)
    await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
    mesh.region.hold_at = len(reply) - 100
    mesh.region.gate.set()
    mesh.region.gate.clear()
    (session,) = mesh.region.live.values()
    await eventually(lambda: session.committed >= mesh.region.hold_at)
    async with raw(mesh) as connection:
        for _ in range(2):
            again = RawStream(connection, ask)
            await eventually(partial(_has_begun, again))
            mesh.region.gate.set()
            await asyncio.wait_for(again.ended.wait(), 30)
            assert again.frames[-1].WhichOneof("kind") == "done"
            assert "".join(it.commit.text for it in again.frames) == reply
            assert sum(len(it.commit.logprobs) for it in again.frames) == len(reply) + 1
            assert sum(it.ByteSize() for it in again.frames) > 2 * MAX_UNSENT_BYTES
    assert len(mesh.region.opened) == 1


def _has_begun(stream: RawStream) -> bool:
    return len(stream.frames) > 1


@pytest.mark.edge(cache_salt_key="key")  # the next edge knows whose chat it is
async def test_an_edge_that_restarts_runs_on_from_what_the_client_has(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    await mesh.restart()
    had = len(chat._transcript.ids)
    before = counted_tokens(mesh)
    mesh.region.gate.set()
    cut(client)
    events = await whole(chat)
    assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
    first, second = mesh.region.opened
    assert first.request_id == second.request_id
    assert second.resume.count == had > 0, "nothing is computed twice"
    await mesh.settled()
    new = len(chat._transcript.ids) - had
    assert counted_tokens(mesh) == [count + new for count in before], "nor counted twice"


async def test_an_edge_that_is_stopped_in_order_hands_its_chats_on(
    mesh: Running, client: Client
) -> None:
    mesh.region.gate.clear()
    async with client.chat(ASK) as chat:
        assert isinstance(await anext(chat), Accepted)
        await mesh.restart(in_order=True)
        mesh.region.gate.set()
        events = await whole(chat)
    assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1


async def test_a_chat_goes_to_another_edge_while_its_own_finishes_what_it_has(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        running(words, tmp_path / "a", REPLY, drain_s=60.0) as old,
        running(words, tmp_path / "b", REPLY) as new,
        old.client(insecure=True, others=[f"quic://127.0.0.1:{new.ports.main}"]) as client,
    ):
        old.region.hold(6)
        under_way = await start(client)
        stopping = asyncio.create_task(old.edge.stop())
        await eventually(lambda: old.edge.listener.is_draining)
        async with client.chat(ASK) as chat:
            await whole(chat)
        assert len(new.region.opened) == 1
        old.region.gate.set()
        await whole(under_way)
        assert len(old.region.opened) == 1, "it ended where it was"
        await stopping
        await new.settled()


async def test_a_router_that_is_lost_mid_reply_is_the_edges_affair(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    mesh.region.break_streams()
    mesh.region.gate.set()
    events = await whole(chat)
    assert Interrupted not in kinds(events)
    assert mesh.region.opened[-1].resume.count >= 3


async def test_another_edge_goes_on_with_a_chat_it_never_saw(mesh: Running) -> None:
    dying = EdgeUnderTest(mesh.config, mesh.load)
    await dying.start()
    others = (f"quic://127.0.0.1:{mesh.ports.main}",)
    async with mesh.client(dying.ports.main, others=others) as client:
        mesh.region.hold(6)
        chat = await start(client)
        dying.fall_silent()
        await dying.stop()
        mesh.region.gate.set()
        events = await whole(chat)
        assert kinds(events).count(Interrupted) == kinds(events).count(Resumed) == 1
        assert mesh.region.opened[-1].resume.count >= 3
        assert await said(client.chat(ASK)) == REPLY


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.edge(reply=REPLY * 12)
async def test_random_cuts_never_change_the_text(seed: int, mesh: Running, client: Client) -> None:
    """Cuts of the connection, restarts of the edge, losses of the router, at random events."""
    rng, reply = random.Random(seed), REPLY * 12
    mesh.region.block_tokens = 1
    done = False
    async with client.chat(ASK, sampling=LONG, provisional=bool(seed % 2)) as chat:
        async for event in chat:
            done = isinstance(event, Done)
            if chat._transcript.ids and rng.random() < 0.03:
                await trouble(rng, mesh, client)
    assert done
    result = await chat.result()
    assert result.text == reply
    known = [at.chosen.id for at in result.logprobs if at is not None]
    assert known == list(result.ids), "the client lacks none of what it saw"


async def trouble(rng: random.Random, mesh: Running, client: Client) -> None:
    match rng.choice(["cut", "cut", "restart", "router"]):
        case "cut":
            cut(client)
        case "restart":
            await mesh.restart()
            cut(client)
        case "router":
            mesh.region.break_streams()
