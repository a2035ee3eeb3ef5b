"""The numbers of a chat's runs, as they reach the region."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from httpx2 import AsyncClient

from outrider.client import Client
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.access.config import AccessConfig
from services.edge.chat import opening
from services.edge.http.config import HttpConfig
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import CHAT
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import cut, start, whole
from tests.mesh import EdgeUnderTest, running_mesh

A_DAY_S = 24 * 3600


def runs(mesh: Running) -> list[int]:
    return [opening.run for opening in mesh.region.opened]


async def test_a_session_that_its_edge_opens_again_is_the_same_run(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    mesh.region.break_streams()
    mesh.region.gate.set()
    await whole(chat)
    first, *others = runs(mesh)
    assert others and set(others) == {first}
    assert abs(first - time.time()) < A_DAY_S


async def test_a_client_that_goes_to_another_edge_is_a_later_run_there(mesh: Running) -> None:
    dying = EdgeUnderTest(mesh.config, mesh.load)
    await dying.start()
    others = (f"quic://127.0.0.1:{mesh.ports.main}",)
    async with mesh.client(dying.ports.main, others=others) as client:
        mesh.region.hold(6)
        chat = await start(client)
        dying.fall_silent()
        await dying.stop()
        mesh.region.gate.set()
        await whole(chat)
    first, *later = runs(mesh)
    assert later and max(later) > first


async def test_a_client_that_comes_back_makes_the_running_session_a_later_run(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    chat = await start(client)
    cut(client)
    await eventually(lambda: mesh.sample("outrider_edge_resumed_chats_total", how="attached") == 1)
    assert len(runs(mesh)) == 1, "it went on where it was"
    mesh.region.break_streams()
    mesh.region.gate.set()
    await whole(chat)
    first, *others = runs(mesh)
    assert others and min(others) > first


@pytest.mark.parametrize("has_key", [False, True])
async def test_an_edge_numbers_the_runs_of_clients_that_do_not(
    has_key: bool, words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        headers = {"Idempotency-Key": "k"} if has_key else {}
        answer = await client.post(CHAT.path, json=CHAT.streamed, headers=headers)
        assert CHAT.text_of(answer.content) == REPLY
        (run,) = runs(mesh)
    assert abs(run - time.time()) < A_DAY_S


CALL_MS = 20.0
"""A reply takes seconds: it is under way when its client comes back."""
ASKED = CHAT.streamed | {
    "max_tokens": 200,
    "ignore_eos": True,
    "temperature": 0,
    "speculation": "off",
}


async def test_an_edge_whose_clock_is_behind_serves_the_client_that_came_to_it(
    monkeypatch: pytest.MonkeyPatch, words: Vocabulary, tmp_path: Path
) -> None:
    options = FakeOptions(vocabulary_size=words.size, min_rows=2, call_ms=CALL_MS)
    settings = {
        "http": HttpConfig(port=0),
        "access": AccessConfig(http_anonymous=True),
        "cache_salt_key": "a secret of both edges, thirty-two characters",
    }
    async with running_mesh(
        words, tmp_path, edges=2, edge=settings, engine=lambda: FakeEngine(options)
    ) as mesh:
        first, second = mesh.edges
        headers = {"x-outrider-client": "ab" * 16, "Idempotency-Key": "k"}

        def client(edge: EdgeUnderTest) -> AsyncClient:
            base_url = f"http://127.0.0.1:{edge.ports.http}"
            return AsyncClient(base_url=base_url, headers=headers, timeout=60)

        async with client(first) as one, client(second) as two:
            had = b""
            async with one.stream("POST", CHAT.path, json=ASKED) as stream:
                async for piece in stream.aiter_bytes():
                    had += piece
                    if len([it for it in events_of(had) if "id" in it]) > 3:
                        break
            had = had[: had.rindex(b"\n\n") + 2]
            last = [it["id"] for it in events_of(had) if "id" in it][-1]
            behind = SimpleNamespace(time=lambda: time.time() - 3600)
            monkeypatch.setattr(opening, "time", behind)
            rest = await two.post(CHAT.path, json=ASKED, headers={"Last-Event-ID": last})
            assert rest.status_code == 200, rest.text
            other = await two.post(CHAT.path, json=ASKED, headers={"Idempotency-Key": "other"})
        whole_text = CHAT.text_of(had) + CHAT.text_of(rest.content)
        assert whole_text and whole_text == CHAT.text_of(other.content)
        assert first.of_model("outrider_edge_chats_total", outcome="DUPLICATE_SESSION") == 1
        assert second.sample("outrider_edge_resumed_chats_total", how="reopened") == 1
