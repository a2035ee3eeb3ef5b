"""What runs with a key ends when the key is good no longer, at every door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.access.api_keys import ApiKey
from outrider.errors import UnauthenticatedError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of, write_keys
from tests.edge.integration.http_client import CHAT, RawRequest, plain, serving_http
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import start, whole

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


KEYS = (key_of("one", "acme"), key_of("two", "acme"))


def _written(mesh: Running, *keys: ApiKey, revision: int = 2) -> None:
    write_keys(mesh.ca.parent.parent / "keys.json", *keys, revision=revision)


def _gated(mesh: Running) -> None:
    mesh.region.hold(2)


@pytest.mark.parametrize(
    "keys",
    [
        lambda: (key_of("one", "acme", revoked=1.0), KEYS[1]),
        lambda: (key_of("one", "acme", expires=time.time() - 1), KEYS[1]),
        lambda: (KEYS[1],),
    ],
    ids=["revoked", "expired", "removed"],
)
@pytest.mark.edge(keys=KEYS)
async def test_the_chats_of_a_key_end_with_it_and_no_others(
    keys: Callable[[], tuple[ApiKey, ...]], mesh: Running
) -> None:
    _gated(mesh)
    streamed = await RawRequest.chat(mesh, text_of("one"), stream=True)
    await streamed.until(b'"content"')
    other = await RawRequest.chat(mesh, text_of("two"), stream=True)
    await other.until(b'"content"')
    # One whose client is gone and may come back.
    away = await RawRequest.chat(
        mesh, text_of("one"), stream=True, headers={"Idempotency-Key": "k"}
    )
    await away.until(b'"content"')
    away.close()
    await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
    async with (
        plain(mesh, text_of("one")) as client,
        mesh.client(key=text_of("one")) as native,
    ):
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        chat = await start(native)
        await eventually(lambda: len(mesh.region.live) == 5)
        _written(mesh, *keys())
        assert (await waiting).status_code == 401
        with pytest.raises(UnauthenticatedError):
            await whole(chat)
    await streamed.until(b"invalid_api_key")
    await eventually(lambda: len(mesh.region.live) == 1)
    assert mesh.edge.telemetry.num_chats == 1, "the other key's chat goes on"
    mesh.region.gate.set()
    await other.until(b"[DONE]")
    await mesh.settled()
    assert len(mesh.edge._keyed_chats) == 0


async def test_a_key_ends_at_its_time_though_no_file_changes(
    words: Vocabulary, tmp_path: Path
) -> None:
    keys = (key_of("one", "acme", expires=time.time() + 3),)
    async with serving_http(words, tmp_path, keys=keys) as mesh:
        _gated(mesh)
        request = await RawRequest.chat(mesh, text_of("one"), stream=True)
        await request.until(b'"content"')
        await request.until(b"has expired")


@pytest.mark.edge(keys=KEYS)
async def test_a_chat_runs_with_the_key_that_asked_last(mesh: Running) -> None:
    _gated(mesh)
    same = {"Idempotency-Key": "k"}
    first = await RawRequest.chat(mesh, text_of("one"), stream=True, headers=same)
    await first.until(b'"content"')
    second = await RawRequest.chat(mesh, text_of("two"), stream=True, headers=same)
    await second.until(b'"content"')
    _written(mesh, key_of("one", "acme", revoked=1.0), KEYS[1])
    await eventually(lambda: mesh.sample("outrider_edge_keys_revision") == 2)
    mesh.region.gate.set()
    await second.until(b"[DONE]")


@pytest.mark.edge(keys=KEYS)
async def test_text_that_is_typed_is_computed_no_further(mesh: Running) -> None:
    async with mesh.client(key=text_of("one")) as client:
        await whole(await start(client))  # typed text is computed with models that are loaded
        typing = client.typing()
        text = "Which trains leave first, and which are the fastest? "
        typing.update(text)
        await eventually(lambda: len(mesh.edge._keyed_chats) == 1)
        for number in range(1, 6):
            typing.update(text * number)
        await eventually(lambda: len(mesh.region.opened) > 1)
        assert len(mesh.edge._keyed_chats) == 1
        _written(mesh, KEYS[1])
        await eventually(lambda: len(mesh.edge._keyed_chats) == 0)
        ran = len(mesh.region.opened)
        for number in range(6, 12):
            typing.update(text * number)
        with pytest.raises(UnauthenticatedError):
            await whole(await start(client))
        assert len(mesh.region.opened) == ran
