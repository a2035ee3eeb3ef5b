"""What clients do wrong: a typed error each, nothing left over, and the chat beside it never
notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from outrider import errors
from outrider.client import Client, Message, SamplingParams
from outrider.client.chat import Chat
from outrider.client.connection import ClientConnection
from outrider.codec.frames import encode_frame
from outrider.errors import OutriderError
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from services.edge.chat.chat import Chat as EdgeChat
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.chat.time_slicing import TimeSlicer
from services.edge.limits.quotas import Count
from services.edge.quic.streams import _FRAME_OBJECT_BYTES, EdgeStream, PendingRequest
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import (
    ASK,
    RawStream,
    bystander,
    chat_frame,
    start,
    uncollected,
)

HERE = "127.0.0.1/32"

Refused = Callable[[Client], Chat]
REFUSED: dict[str, tuple[Refused, type[OutriderError]]] = {
    "unknown model": (lambda c: c.chat(ASK, model="gpt-9"), errors.UnknownModelError),
    "no messages": (lambda c: c.chat([]), errors.EmptyPromptError),
    "too many messages": (lambda c: c.chat(ASK * 5000), errors.InvalidRequestError),
    "empty messages": (lambda c: c.chat([Message("user", "")]), errors.EmptyPromptError),
    "unknown role": (lambda c: c.chat([Message("root", "hi")]), errors.InvalidRequestError),
    "over-long prompt": (
        lambda c: c.chat([Message("user", "long " * 200)]),
        errors.PromptTooLongError,
    ),
    "stop id outside the vocabulary": (
        lambda c: c.chat(ASK, sampling=SamplingParams(stop_ids=(100_000,))),
        errors.InvalidSamplingError,
    ),
    "bias outside the vocabulary": (
        lambda c: c.chat(ASK, sampling=SamplingParams(logit_bias={100_000: 1.0})),
        errors.InvalidSamplingError,
    ),
    "absurd idempotency key": (
        lambda c: c.chat(ASK, idempotency_key="\n"),
        errors.InvalidRequestError,
    ),
    "absurd residency": (
        lambda c: c.chat(ASK, residency=("x",) * 100),
        errors.InvalidRequestError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.edge(max_context_tokens=500)
async def test_what_cannot_be_served_is_refused_without_the_region(
    case: str, mesh: Running, client: Client
) -> None:
    ask, error = REFUSED[case]
    async with bystander(mesh, client):
        with pytest.raises(error) as caught:
            async with ask(client) as chat:
                await chat.result()
        assert type(caught.value) is error
    assert len(mesh.region.opened) == 1, "only the bystander"
    await mesh.settled()
    counted = mesh.sample("outrider_edge_refused_total", reason=error.reason)
    counted += mesh.of_model("outrider_edge_chats_total", outcome=error.reason)
    assert counted == 1, "before it was a chat, or as one"


def resuming(**point: Any) -> bytes:
    chat = edge_pb2.ChatRequest(resume=edge_pb2.ResumePoint(**point))
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


def claiming(**credential: Any) -> bytes:
    chat = edge_pb2.ChatRequest(credential=edge_pb2.Credential(**credential))
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


CANCEL = encode_frame(edge_pb2.ClientFrame(cancel=edge_pb2.CancelChat()).SerializeToString())
ACKNOWLEDGE = encode_frame(
    edge_pb2.ClientFrame(acknowledge=edge_pb2.AcknowledgeToken()).SerializeToString()
)
# ClientFrame{chat=ChatRequest{model="\xff"}}, by hand: the encoder would refuse.
NOT_UTF8 = encode_frame(b"\x0a\x03\x0a\x01\xff")
BYTES: dict[str, tuple[bytes, type[OutriderError]]] = {
    "no protobuf": (encode_frame(b"\xff\xff\xff"), errors.MalformedFrameError),
    "invalid UTF-8": (NOT_UTF8, errors.MalformedFrameError),
    "an empty frame": (b"\x00", errors.MalformedFrameError),
    "a length that is no varint": (b"\xff" * 6, errors.FrameTooLargeError),
    "a frame over the limit": (b"\xff\xff\x7f", errors.FrameTooLargeError),
    "a frame of no kind": (encode_frame(b"\x9a\x06\x00"), errors.MalformedFrameError),
    "a cancel before a request": (CANCEL, errors.MalformedFrameError),
    "an acknowledgement before a request": (ACKNOWLEDGE, errors.MalformedFrameError),
    "a secret that can be guessed": (claiming(client_secret=b"1234"), errors.InvalidRequestError),
    "an endless secret": (claiming(client_secret=b"x" * 65), errors.InvalidRequestError),
    "an endless key": (claiming(key="k" * 9000), errors.InvalidRequestError),
    "a second request": (chat_frame() * 2, errors.MalformedFrameError),
    "more frames than a chat has": (chat_frame() + ACKNOWLEDGE * 65, errors.MalformedFrameError),
    "frames without end": (ACKNOWLEDGE * 100_000, errors.MalformedFrameError),
    "resuming without a request": (resuming(upto=3), errors.EmptyPromptError),
    "resuming what is not known": (resuming(resume_token="x"), errors.UnknownChatError),
    "resuming after some of the ids": (resuming(upto=3, ids=[1, 2]), errors.InvalidRequestError),
    "temperature NaN": (chat_frame(temperature=float("nan")), errors.InvalidSamplingError),
}


@pytest.mark.parametrize("case", BYTES)
@pytest.mark.edge(max_frame_bytes=10_000)
async def test_bad_bytes_end_their_stream_only(
    case: str, mesh: Running, client: Client, connection: ClientConnection
) -> None:
    data, error = BYTES[case]
    async with bystander(mesh, client):
        stream = RawStream(connection, data)
        assert type(await stream.error()) is error
    # The connection is still good for another chat.
    again = RawStream(connection, chat_frame())
    await asyncio.wait_for(again.ended.wait(), 30)
    assert again.frames[-1].WhichOneof("kind") == "done"


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", "before a chat request"), (b"\x05ab", "inside a frame")],
    ids=["no request", "half a frame"],
)
async def test_a_stream_that_ends_too_early(
    data: bytes, error: str, connection: ClientConnection
) -> None:
    stream = RawStream(connection, data)
    connection._quic.send_stream_data(stream.stream_id, b"", end_stream=True)
    connection.transmit()
    failure = await stream.error()
    assert isinstance(failure, errors.MalformedFrameError)
    assert error in failure.message


async def test_a_client_may_close_its_direction_after_the_request(
    connection: ClientConnection,
) -> None:
    stream = RawStream(connection, chat_frame())
    connection._quic.send_stream_data(stream.stream_id, b"", end_stream=True)
    connection.transmit()
    await asyncio.wait_for(stream.ended.wait(), 30)
    assert stream.frames[-1].WhichOneof("kind") == "done"


async def test_a_unidirectional_stream_cannot_be_opened(connection: ClientConnection) -> None:
    stream_id = connection._quic.get_next_available_stream_id(is_unidirectional=True)
    connection._quic.send_stream_data(stream_id, b"hello")
    stream = RawStream(connection, chat_frame())
    await asyncio.wait_for(stream.ended.wait(), 30)
    assert stream.frames[-1].WhichOneof("kind") == "done"


@pytest.mark.edge(request_timeout_s=2.0)
async def test_streams_without_a_whole_frame_are_no_chats(
    mesh: Running, connection: ClientConnection
) -> None:
    """They hold their first bytes and a place among their address's streams until they are too
    late."""
    streams = [RawStream(connection, b"\x20abc") for _ in range(20)]
    connection.transmit()
    quotas, listener = mesh.edge.listener.shared.quotas, mesh.edge.listener
    await eventually(lambda: quotas.held(HERE, Count.STREAMS) == 20)
    assert mesh.edge.telemetry.num_chats == 0
    assert listener.shared._received.num_bytes == 20 * len(b"abc")
    for stream in streams:
        error = await stream.error()
        assert isinstance(error, errors.DeadlineError)
    await eventually(lambda: quotas.held(HERE, Count.STREAMS) == 0)
    assert listener.shared._received.num_bytes == 0
    again = RawStream(connection, chat_frame())
    await asyncio.wait_for(again.ended.wait(), 30)
    assert again.frames[-1].WhichOneof("kind") == "done"


@contextmanager
def nobodys_turn(slicer: TimeSlicer) -> Iterator[None]:
    """Whatever is to begin waits until the context ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slicer, "_schedule", lambda: None)
        slicer.defer(lambda: None)
        yield
    slicer._schedule()


async def test_requests_that_wait_for_their_turn_are_counted_and_begin_in_order(
    mesh: Running, connection: ClientConnection
) -> None:
    slicer, listener = mesh.edge.listener.context.time_slicer, mesh.edge.listener
    with nobodys_turn(slicer):
        frame = chat_frame()
        streams = [RawStream(connection, frame) for _ in range(4)]
        connection.transmit()
        payload_bytes = len(frame) - 1 + _FRAME_OBJECT_BYTES
        await eventually(lambda: listener.shared._received.num_bytes == 4 * payload_bytes)
        assert mesh.edge.telemetry.num_chats == 0 and len(slicer) == 5
        connection._quic.reset_stream(streams[0].stream_id, 0)
        connection.transmit()
        await eventually(lambda: listener.shared._received.num_bytes == 3 * payload_bytes)
    for stream in streams[1:]:
        await asyncio.wait_for(stream.ended.wait(), 30)
        assert stream.frames[-1].WhichOneof("kind") == "done"
    assert listener.shared._received.num_bytes == 0 and len(mesh.region.opened) == 3


async def test_too_many_frames_that_waited_with_their_request_end_its_chat(
    mesh: Running, connection: ClientConnection
) -> None:
    received = mesh.edge.listener.shared._received
    with nobodys_turn(mesh.edge.listener.context.time_slicer):
        stream = RawStream(connection, chat_frame() + ACKNOWLEDGE * 65)
        await eventually(lambda: received.num_bytes > 65 * _FRAME_OBJECT_BYTES)
    assert isinstance(await stream.error(), errors.MalformedFrameError)
    await mesh.settled()
    assert mesh.edge.telemetry.num_chats == 0


@pytest.mark.edge(resumption=ResumeLimits(window_s=0.0))
async def test_a_chat_is_freed_when_it_ends(
    mesh: Running, client: Client, connection: ClientConnection
) -> None:
    """However it ends."""
    with uncollected(EdgeStream, EdgeChat, PendingRequest) as alive:
        for data in (chat_frame(), chat_frame(temperature=-1.0), b"\x03abc", b"\x00"):
            stream = RawStream(connection, data)
            await asyncio.wait_for(stream.ended.wait(), 30)
        mesh.region.stop_after = 2
        chat = await start(client)
        await chat.__aexit__(None, None, None)
        await mesh.settled()
        await eventually(lambda: not alive)
