"""Prompts computed while they are typed: as little as has to be, and the chat ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Client, Message
from outrider.client.connection import ClientConnection
from outrider.client.wire import typed_frame
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from services.edge.chat import typeahead
from services.edge.wire.client import TypedText, read_typed_text
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import RawStream, said
from tests.typed_text import type_until

TEXT = "Which of these trains leaves first, and which of them is the fastest?"


async def type_text(client: Client, is_enough: Callable[[], bool] = lambda: True) -> None:
    """Type the text, faster than anybody could, until it is enough."""
    await type_until(is_enough, client.typing([Message("system", "Be brief.")]), TEXT)


def prompt(mesh: Running, opening: inference_pb2.OpenSession) -> str:
    """What a session was opened with, as text."""
    ids = mesh.region.prompt(opening)
    return b"".join(mesh.region.vocabulary.token_bytes(token) for token in ids).decode()


async def test_what_is_typed_is_computed_ahead(mesh: Running, client: Client) -> None:
    await type_text(client, lambda: len(mesh.region.opened) > 0)
    assert await said(client.chat([Message("system", "Be brief."), Message("user", TEXT)])) == REPLY
    *ahead, real = mesh.region.opened
    assert ahead
    for opening in ahead:
        assert opening.sampling.max_tokens == 1
        assert opening.priority == common_pb2.PRIORITY_LOW
        assert opening.speculation == common_pb2.SPECULATION_OFF
        assert prompt(mesh, real).startswith(prompt(mesh, opening))
    assert real.sampling.max_tokens > 1
    lengths = [len(prompt(mesh, opening)) for opening in ahead]
    assert lengths == sorted(lengths)
    assert mesh.of_model("outrider_edge_prefilled_tokens_total") > 0


async def test_of_texts_that_come_together_the_last_one_is_read(
    monkeypatch: pytest.MonkeyPatch, connection: ClientConnection
) -> None:
    read: list[bytes] = []

    def noted(payload: bytes, *args: Any) -> TypedText:
        read.append(payload)
        return read_typed_text(payload, *args)

    monkeypatch.setattr(typeahead, "read_typed_text", noted)
    texts = [typed_frame((), TEXT[: 1 + number % len(TEXT)]) for number in range(690)]
    stream = RawStream(connection, texts[0])
    for text in (*texts[1:], typed_frame((), TEXT)):
        connection._quic.send_stream_data(stream.stream_id, text)
    connection.transmit()
    await eventually(lambda: bool(read) and TEXT.encode() in read[-1])
    assert len(read) < 100, "one in a turn of the loop, and the first"


async def test_the_chat_cancels_what_is_still_computed(mesh: Running, client: Client) -> None:
    mesh.region.gate.clear()  # the region is slow
    await type_text(client, lambda: len(mesh.region.opened) == 1)
    chat = client.chat([Message("user", TEXT)])
    async with chat:
        await eventually(lambda: len(mesh.region.cancelled) == 1)
        mesh.region.gate.set()
        assert (await chat.result()).text == REPLY


async def test_an_earlier_chat_that_is_cancelled_meanwhile_does_not_end_it(
    mesh: Running, client: Client
) -> None:
    mesh.region.gate.clear()
    async with client.chat([Message("user", "hello")]) as earlier:
        await eventually(lambda: len(mesh.region.opened) == 1)
        await type_text(client, lambda: len(mesh.region.opened) == 2)
        earlier.cancel()
        assert (await earlier.result()).finish_reason == "cancelled"
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])
    mesh.region.gate.set()


async def test_a_user_who_leaves_ends_it(mesh: Running) -> None:
    mesh.region.gate.clear()
    async with mesh.client() as client:
        await type_text(client, lambda: len(mesh.region.opened) == 1)
    await eventually(lambda: len(mesh.region.cancelled) == 1)


async def test_an_edge_that_does_not_prefill_says_nothing(
    words: Vocabulary, tmp_path: Path
) -> None:
    for settings in ({"min_prefill_tokens": 0}, {"trust": "chat"}):
        async with running(words, tmp_path, REPLY, **settings) as mesh, mesh.client() as client:
            await type_text(client)
            assert await said(client.chat([Message("user", TEXT)])) == REPLY
            assert len(mesh.region.opened) == 1


async def test_without_a_connection_typing_is_nothing(mesh: Running) -> None:
    async with mesh.client(reconnect=None) as client:
        typing = client.typing()
    typing.update("hello")
    typing.close()
    assert mesh.region.opened == []


@pytest.mark.parametrize(
    ("settings", "reason", "most_ahead"),
    [
        ({"typed_bytes_per_s": 1.0}, "bytes of typed text", 0),
        ({"prefill_tokens_per_s": 1.0}, "tokens computed ahead", 1),
    ],
)
async def test_who_types_more_than_his_share_gets_no_head_start(
    words: Vocabulary, tmp_path: Path, settings: dict[str, float], reason: str, most_ahead: int
) -> None:
    async with running(words, tmp_path, REPLY, **settings) as mesh, mesh.client() as client:
        name = "outrider_edge_refused_total"
        await type_text(client, lambda: mesh.sample(name, reason=reason) >= 1)
        assert (
            await said(client.chat([Message("system", "Be brief."), Message("user", TEXT)]))
            == REPLY
        ), "nobody is told"
        assert len(mesh.region.opened) <= most_ahead + 1
        await mesh.settled()
