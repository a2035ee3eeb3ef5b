"""The numbers of a chat's runs, as they reach the region."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from outrider.client import Client
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from tests.edge.integration.chat_routes import CHAT
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import cut, start, whole
from tests.mesh import EdgeUnderTest

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
