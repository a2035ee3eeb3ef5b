"""Clients, tenants and users beside each other at one edge, one of whom tries what it can."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import pytest
import structlog
from prometheus_client import generate_latest

from outrider.client import Accepted, Client, Message
from outrider.client.chat import Chat
from outrider.errors import (
    KeyReusedError,
    OutriderError,
    UnauthenticatedError,
    UnknownChatError,
)
from outrider.models.vocabulary import Vocabulary
from outrider.telemetry.logs import configure_logging
from outrider.testing import eventually
from outrider.tokenization.segment_cache import ContentClass
from outrider.v1 import inference_pb2
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.access_matrix import DOORS, as_bearer
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, RawStream, chat_frame, quic, raw, said, start, whole
from tests.typed_text import type_until

TENANTS = (
    TenantConfig("acme", max_priority="high"),
    TenantConfig("clinic", trust="user", max_priority="low"),
)
KEYS = (key_of("acme"), key_of("clinic"))
ACME, CLINIC = text_of("acme"), text_of("clinic")


@asynccontextmanager
async def neighbours(
    mesh: Running, first: dict[str, str], second: dict[str, str]
) -> AsyncIterator[tuple[Client, Client]]:
    async with mesh.client(None, **first) as one, mesh.client(None, **second) as two:
        yield one, two


async def asked(mesh: Running, client: Client, text: str = "hello") -> inference_pb2.OpenSession:
    """How a chat of the client's reaches the region."""
    await said(client.chat([Message("user", text)]))
    return mesh.region.opened[-1]


STRANGERS = [
    ({}, {}),
    ({}, {"key": ACME}),
    ({"key": ACME}, {"key": CLINIC, "user": "ann"}),
    ({"key": CLINIC, "user": "ann"}, {"key": CLINIC, "user": "bob"}),
    ({"key": CLINIC, "user": "ann"}, {"key": CLINIC}),
    ({"key": CLINIC}, {"key": CLINIC}),
]
"""Of two trust groups each."""
FRIENDS = [
    ({"key": ACME}, {"key": ACME, "user": "anybody"}),
    ({"key": CLINIC, "user": "ann"}, {"key": CLINIC, "user": "ann"}),
]


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [*((*pair, False) for pair in STRANGERS), *((*pair, True) for pair in FRIENDS)],
)
@pytest.mark.edge(tenants=TENANTS, keys=KEYS)
async def test_what_two_share(
    first: dict[str, str], second: dict[str, str], is_shared: bool, mesh: Running
) -> None:
    async with neighbours(mesh, first, second) as (one, two):
        secret = "The patient in ward seven is called Miriam."
        mine = await asked(mesh, one, secret)
        lookups = mesh.model.encoder.lookups[ContentClass.USER]
        num_hits = lookups.num_hits
        theirs = await asked(mesh, two, secret)
        assert (lookups.num_hits > num_hits) is is_shared, "ids of texts"
        assert (mine.cache_salt == theirs.cache_salt) is is_shared, "prefixes, phrases, rates"
        assert len(mine.cache_salt) == 16 and mine.request_id != theirs.request_id
        again = await asked(mesh, one, secret)
        assert again.cache_salt == mine.cache_salt, "a client finds its own again"
        typing, before = two.typing(), len(mesh.region.opened)
        await type_until(lambda: len(mesh.region.opened) > before, typing, secret)
        assert mesh.region.opened[-1].cache_salt == theirs.cache_salt, "typed text is its own"
        typing.close()


@pytest.mark.edge(tenants=TENANTS, keys=KEYS)
async def test_ids_of_typed_text_are_cached_for_its_group_alone(mesh: Running) -> None:
    async with mesh.client(key=CLINIC, user="ann") as client:
        typing, text = client.typing(), "The patient in ward seven is called Miriam."
        await type_until(lambda: bool(mesh.region.opened), typing, text)
        typing.close()
    cached = mesh.model.encoder._cache._ids.items()
    scopes = {scope for (scope, segment), _ in cached if "patient" in segment}
    assert scopes == {mesh.region.opened[0].cache_salt}


@pytest.mark.parametrize(("first", "second"), STRANGERS)
@pytest.mark.edge(tenants=TENANTS, keys=KEYS)
async def test_a_stranger_neither_reads_nor_ends_a_chat(
    first: dict[str, str], second: dict[str, str], mesh: Running
) -> None:
    async with neighbours(mesh, first, second) as (owner, stranger):
        mesh.region.hold(6)
        chat = await start(owner, idempotency_key="the same")
        with pytest.raises(UnknownChatError):
            await said(stranger.resume(chat.resume_token))
        others = [
            await start(stranger, idempotency_key="the same"),
            await start(stranger, idempotency_key="another"),
        ]
        stolen = Chat(stranger._link, tuple(ASK), chat._options, stranger._credential)
        stolen._token = chat.resume_token
        with pytest.raises(OutriderError, match="another stream"):
            async with stolen:
                mesh.region.gate.set()
                assert (await stolen.result()).text == REPLY
                await others[0].result()
        await whole(chat)
        assert (await others[1].result()).text == REPLY
        ids = [opening.request_id for opening in mesh.region.opened]
        assert len(ids) == len(set(ids)) == 3, "the stranger's chats are its own"


@pytest.mark.edge(tenants=TENANTS, keys=KEYS)
async def test_a_key_that_is_reused_within_a_group_ends_nobodys_chat(mesh: Running) -> None:
    async with neighbours(mesh, *FRIENDS[0]) as (owner, colleague):
        mesh.region.hold(6)
        chat = await start(owner, idempotency_key="k")
        other = Chat(
            colleague._link,
            (Message("user", "something else"),),
            chat._options,
            colleague._credential,
        )
        other._token = chat.resume_token
        with pytest.raises(KeyReusedError):
            async with other:
                await other.result()
        with pytest.raises(KeyReusedError):
            await said(colleague.chat([Message("user", "?")], idempotency_key="k"))
        mesh.region.gate.set()
        await whole(chat)
        assert len(mesh.region.opened) == 1


async def test_who_says_nothing_of_itself_is_one_connection(mesh: Running) -> None:
    async with raw(mesh) as one, raw(mesh) as two:
        for connection in (one, one, two):
            await RawStream(connection, chat_frame()).ended.wait()
    first, second, third = (opening.cache_salt for opening in mesh.region.opened)
    assert first == second != third


@pytest.mark.edge(trust="chat")
async def test_chats_that_trust_nobody_leave_nothing_to_each_other(
    mesh: Running, client: Client
) -> None:
    encoder = mesh.model.encoder
    salts = [(await asked(mesh, client)).cache_salt for _ in range(2)]
    num_texts = encoder.size[0]
    salts.append((await asked(mesh, client, "a text of its own")).cache_salt)
    assert len(set(salts)) == 3 and encoder.size[0] == num_texts
    mesh.region.hold(6)
    chat = await start(client, idempotency_key="k")
    quic(client)._lose(UnauthenticatedError("cut by the test"))
    mesh.region.gate.set()
    with pytest.raises(UnauthenticatedError):
        await chat.result()
    async with client.resume(chat.resume_token) as resumed:
        await whole(resumed)  # a client's own chats are its own all the same


@pytest.mark.parametrize(
    ("credential", "config", "error"),
    [
        ({"key": "key-nobody"}, {}, UnauthenticatedError),
        ({}, {"anonymous": False}, UnauthenticatedError),
    ],
)
async def test_a_credential_that_is_no_good_costs_nothing(
    credential: dict[str, str],
    config: dict[str, bool],
    error: type[OutriderError],
    words: Vocabulary,
    tmp_path: Path,
) -> None:
    async with running(words, tmp_path, REPLY, tenants=TENANTS, keys=KEYS, **config) as mesh:
        async with mesh.client(None, **credential) as client:
            client.typing().update("some text that is long enough to be worth a prefill")
            with pytest.raises(error):
                await said(client.chat(ASK))
            info = await client.describe()
            assert info.name == "edge", "what it is, it tells everybody"
            assert [model.name for model in info.models] == ["small"] * config.get("anonymous", 1)
        assert mesh.region.opened == []
        assert mesh.model.encoder.size[0] == 0
        assert mesh.sample("outrider_edge_refused_total", reason=error.reason) == 1


@pytest.fixture
def logged() -> Iterator[StringIO]:
    root, stream = logging.getLogger(), StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logging("edge", "debug", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.edge(tenants=TENANTS, keys=KEYS)
async def test_neither_secrets_nor_texts_are_in_logs_and_metrics(
    logged: StringIO, mesh: Running
) -> None:
    text = "The patient in ward seven is called Miriam."
    async with mesh.client(key=CLINIC, user="ann") as client:
        typing = client.typing()
        await type_until(lambda: bool(mesh.region.opened), typing, text)
        typing.close()
        num_before = len(mesh.region.opened)
        ask = [Message("user", text)]
        async with client.chat(ask, priority="low", idempotency_key="my-idempotency") as chat:
            accepted = await anext(chat)
            await chat.result()
        assert isinstance(accepted, Accepted)
        secrets = [CLINIC, "ann", "my-idempotency", chat.resume_token]
    await eventually(lambda: "chat_ended" in logged.getvalue())
    assert accepted.request_id in logged.getvalue(), "the name that everybody may know"
    assert accepted.request_id == mesh.region.opened[num_before].request_id
    told = logged.getvalue(), generate_latest(mesh.metrics.registry).decode()
    for secret in (*secrets, client.secret.hex()):
        assert not any(f'"{secret}"' in page for page in told)
    for words in ("Miriam", REPLY):
        assert not any(words in page for page in told)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.edge(tenants=TENANTS, keys=KEYS, http=HttpConfig(port=0))
async def test_no_key_and_no_text_is_logged_over_http(
    door: str, logged: StringIO, mesh: Running
) -> None:
    """At the level debug, at which libraries would log what they read."""
    body = {"model": mesh.model.limits.model, "messages": [{"role": "user", "content": "Miriam"}]}
    async with DOORS[door](mesh) as ask:
        answer = await ask("POST", "/v1/chat/completions", body, as_bearer(ACME))
    assert answer.status == 200
    await eventually(lambda: "chat_ended" in logged.getvalue())
    told = logged.getvalue()
    for words in (ACME, "Miriam", REPLY):
        assert words not in told
