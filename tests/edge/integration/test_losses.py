"""What goes wrong around a chat: clients that leave or stall, regions that refuse, err or break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from outrider import errors
from outrider.client import Client, SamplingParams
from outrider.client.connection import ClientConnection
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.encoder import CachingEncoder
from outrider.v1 import common_pb2, inference_pb2
from services.edge.chat.chat import Chat
from services.edge.quic.streams import EdgeStream
from services.edge.session.events import CancelAsked
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, RawStream, bystander, chat_frame, raw, said, start


async def test_a_client_gone_mid_stream_is_cancelled_upstream(
    mesh: Running, client: Client
) -> None:
    mesh.region.stop_after = 4
    async with mesh.client() as leaving:
        await start(leaving)
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
    await mesh.settled()
    mesh.region.stop_after = None
    assert await said(client.chat(ASK)) == REPLY


@pytest.mark.parametrize("give_up", [QuicConnection.reset_stream, QuicConnection.stop_stream])
async def test_a_stream_given_up_in_one_direction_ends_in_both(
    give_up: Callable[[QuicConnection, int, int], None], words: Vocabulary, tmp_path: Path
) -> None:
    # As many as a connection may have: none of them may be left to count.
    limit = 2
    async with running(words, tmp_path, REPLY, max_chats_per_connection=limit) as mesh:
        mesh.region.stop_after = 4
        async with raw(mesh) as connection:
            for _ in range(limit + 1):
                stream = await _under_way(connection)
                give_up(connection._quic, stream.stream_id, 0)
                connection.transmit()
                await mesh.settled()
            assert mesh.region.cancelled == ["the client is gone"] * (limit + 1)
            (served,) = mesh.edge.listener.connections
            await eventually(lambda: not served.native._streams and not _open_streams(served._quic))


async def _under_way(connection: ClientConnection) -> RawStream:
    stream = RawStream(connection, chat_frame())
    await eventually(lambda: len(stream.frames) > 1)
    return stream


def _open_streams(quic: QuicConnection) -> set[int]:
    """Streams of which the transport still keeps something."""
    return set(quic._streams)


class StalledQuic(QuicConnection):
    """Takes 100 bytes of a stream and never grants more: what a stalled reader looks like."""

    def __init__(self, *, configuration: QuicConfiguration, **handlers: Any) -> None:
        super().__init__(configuration=replace(configuration, max_stream_data=100), **handlers)

    def _write_stream_limits(self, *args: object, **kwargs: object) -> None:
        """Grants nothing."""


@pytest.mark.edge(reply="x" * 3000, max_unsent_bytes=2000)
async def test_a_client_that_does_not_read_loses_the_chat(
    monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(mesh.client())
        monkeypatch.setattr("outrider.client.dialling.QuicConnection", StalledQuic)
        connection = await stack.enter_async_context(raw(mesh))
        mesh.region.block_tokens = 20
        stream = RawStream(connection, chat_frame(max_tokens=5000))
        await asyncio.wait_for(stream.ended.wait(), 30)
        assert isinstance(stream.cut_off, errors.OverloadedError)
        await eventually(lambda: mesh.region.cancelled == ["OVERLOADED"])
        # All of a shorter reply may be under way before a client that reads says so.
        mesh.region.reply = mesh.region.reply[-401:]
        assert await said(client.chat(ASK, sampling=SamplingParams(max_tokens=5000))) == "x" * 400


async def test_a_region_that_refuses(mesh: Running, client: Client) -> None:
    async with bystander(mesh, client):
        mesh.region.error = errors.NoReplicaError("none is ready", retry_delay_ms=70)
        with pytest.raises(errors.NoReplicaError, match="none is ready") as caught:
            await said(client.chat(ASK))
        assert caught.value.retry_delay_ms == 70


def bad_checksum(frame: inference_pb2.SessionDown) -> None:
    if frame.WhichOneof("kind") == "done":
        frame.done.checksum ^= 1


def no_ids(frame: inference_pb2.SessionDown) -> None:
    if frame.WhichOneof("kind") == "commit":
        frame.commit.ids = b"\xff"


def no_details(frame: inference_pb2.SessionDown) -> None:
    if frame.WhichOneof("kind") == "commit":
        frame.commit.details = b"\xff"


def no_kind(frame: inference_pb2.SessionDown) -> None:
    frame.ClearField("opened")


def too_many_accepted(frame: inference_pb2.SessionDown) -> None:
    if frame.WhichOneof("kind") == "commit":
        frame.commit.accepted += 100


def wrong_reason(frame: inference_pb2.SessionDown) -> None:
    if frame.WhichOneof("kind") == "done":
        frame.done.finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED


@pytest.mark.parametrize(
    "mangle",
    [bad_checksum, no_ids, no_details, no_kind, too_many_accepted, wrong_reason],
    ids=lambda value: value.__name__,
)
async def test_a_region_that_breaks_the_protocol(
    mangle: Callable[[inference_pb2.SessionDown], None], mesh: Running, client: Client
) -> None:
    """Of which the client is not to blame."""
    mesh.region.mangle = mangle
    with pytest.raises(errors.PeerFaultError):
        await said(client.chat(ASK))
    mesh.region.mangle = lambda frame: None
    assert await said(client.chat(ASK)) == REPLY


async def test_chats_whose_router_stays_away_end_in_time(words: Vocabulary, tmp_path: Path) -> None:
    patient = running(words, tmp_path, REPLY, reopen_s=0.3)
    async with patient as mesh, mesh.client(reconnect=None) as client:
        mesh.region.stop_after = 4
        chat = await start(client)
        mesh.region.error = errors.UnavailableError("no replica is left")
        mesh.region.break_streams()
        with pytest.raises(errors.UnavailableError):
            await chat.result()
        await mesh.settled()


async def test_a_defect_of_the_edge_ends_one_chat_only(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    async with bystander(mesh, client):
        with monkeypatch.context() as patch:
            patch.setattr(CachingEncoder, "begin", lambda *_, **__: 1 // 0)
            with pytest.raises(OutriderError, match="ZeroDivisionError"):
                await said(client.chat(ASK))


async def test_a_defect_in_the_last_frame_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("outrider.session.client_wire._done_to_proto", lambda done: 1 // 0)
        with pytest.raises(OutriderError, match="ZeroDivisionError"):
            await said(client.chat(ASK))
    await mesh.settled()
    assert await said(client.chat(ASK)) == REPLY


@pytest.mark.edge(reopen_s=0.3)
async def test_a_defect_beside_the_chats_costs_the_stream_not_the_router(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Chat, "region_frame", lambda self, frame: 1 // 0)
        with pytest.raises(errors.UnavailableError):
            await said(client.chat(ASK))
    await eventually(lambda: mesh.edge.upstream.ready)
    assert await said(client.chat(ASK)) == REPLY


@pytest.mark.edge(max_queued_frames=4)
async def test_a_cancel_gets_past_a_full_queue_and_drafts_are_dropped(
    mesh: Running, client: Client
) -> None:
    mesh.region.stop_after = 4
    chat = await start(client)
    await eventually(lambda: mesh.num_region_sessions == 1)
    (link,) = mesh.edge.upstream.links
    outbox = link._outbox
    assert outbox is not None
    await eventually(lambda: not len(outbox))
    # Without a pause nothing is written: the queue fills up as for a router that does not read.
    foreign = [link.draft(1000, inference_pb2.SessionUp()) for _ in range(6)]
    assert foreign == [True] * 4 + [False] * 2
    (stream,) = _streams(mesh)
    stream.handler.feed(CancelAsked())
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])
    assert (await chat.result()).finish_reason == "cancelled"


def _streams(mesh: Running) -> list[EdgeStream]:
    connections = mesh.edge.listener.connections
    return [stream for connection in connections for stream in connection.native._streams.values()]
