"""Chat templates that show today's date: one date for each chat, wherever it goes on."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest

from outrider.client import Message
from outrider.today import today
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import CHAT, MESSAGE, RESPONSE, ChatRoute
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.region import TEMPLATE, small_vocabulary
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, cut, start, whole

DATED = "{{ strftime_now('%d %B %Y') }}\n" + TEMPLATE


def shown(mesh: Running, opened: int) -> str:
    """The first line of a prompt."""
    prompt = mesh.region.prompt(mesh.region.opened[opened])
    return small_vocabulary(template=DATED).decode(prompt).split("\n")[0]


async def test_a_chat_that_goes_on_after_midnight_keeps_its_date(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    days = ["2026-11-29"]
    monkeypatch.setattr("services.edge.chat.opening.today", lambda: days[-1])
    vocabulary = small_vocabulary(template=DATED)
    async with running(vocabulary, tmp_path, REPLY) as mesh, mesh.client() as client:
        mesh.region.hold(6)
        chat = await start(client)
        assert shown(mesh, 0) == "29 November 2026"
        days.append("2026-11-30")
        await mesh.restart()
        mesh.region.gate.set()
        cut(client)
        await whole(chat)
        assert mesh.region.opened[1].resume.count > 0
        assert mesh.region.prompt(mesh.region.opened[1]) == mesh.region.prompt(
            mesh.region.opened[0]
        )
        async with client.chat(ASK) as later:
            await later.result()
        assert shown(mesh, 2) == "30 November 2026"
        await mesh.settled()


@pytest.mark.parametrize("route", [CHAT, MESSAGE, RESPONSE], ids=str)
async def test_a_stream_that_another_edge_goes_on_with_keeps_its_date(
    route: ChatRoute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    days = ["2026-11-29"]
    monkeypatch.setattr("services.edge.chat.opening.today", lambda: days[-1])
    vocabulary, headers = small_vocabulary(template=DATED), {"Idempotency-Key": "k"}
    async with serving_http(vocabulary, tmp_path) as mesh, plain(mesh) as client:
        answer = await client.post(route.path, json=route.streamed, headers=headers)
        ids = [it["id"] for it in events_of(answer.content) if "id" in it]
        assert shown(mesh, 0) == "29 November 2026"
        await mesh.settled()
    days.append("2026-11-30")
    async with serving_http(vocabulary, tmp_path) as mesh, plain(mesh) as client:
        had = ids[len(ids) // 2]
        back = headers | {"Last-Event-ID": had}
        rest = await client.post(route.path, json=route.streamed, headers=back)
        assert rest.status_code == 200, rest.text
        assert shown(mesh, 0) == "29 November 2026"
        rest_ids = [it["id"] for it in events_of(rest.content) if "id" in it]
        assert rest_ids[-1] == ids[-1]
        wrong = headers | {"Last-Event-ID": had.partition("@")[0] + "@2026-13-01"}
        refused = await client.post(
            route.path, json=route.streamed, headers=wrong | {"Idempotency-Key": "other"}
        )
        assert refused.status_code == 400
        await mesh.settled()


async def test_a_client_sets_the_date(tmp_path: Path) -> None:
    vocabulary = small_vocabulary(template=DATED)
    async with serving_http(vocabulary, tmp_path) as mesh, plain(mesh) as client:
        given = {"chat_template_kwargs": {"strftime_now": "2024-07-26"}}
        answer = await client.post(CHAT.path, json={**CHAT.body, **given})
        assert answer.status_code == 200, answer.text
        assert shown(mesh, 0) == "26 July 2024"
        before = today()
        await client.post(CHAT.path, json=CHAT.body)
        told = await client.post("/tokenize", json={"messages": CHAT.body["messages"]})
        assert told.status_code == 200, told.text
        days = {datetime.date.fromisoformat(day) for day in (before, today())}
        assert shown(mesh, 1) in {f"{day:%d %B %Y}" for day in days}
        bad = {"chat_template_kwargs": {"strftime_now": "yesterday"}}
        refused = await client.post(CHAT.path, json={**CHAT.body, **bad})
        assert refused.status_code == 400
        assert "is not written YYYY-MM-DD" in refused.json()["error"]["message"]
        await mesh.settled()


async def test_a_thin_chat_takes_its_date_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("services.edge.chat.opening.today", lambda: "2026-11-29")
    vocabulary = small_vocabulary(template=DATED)
    async with running(vocabulary, tmp_path, REPLY) as mesh, mesh.client() as client:
        async with client.chat([Message("user", "hi")], thin=True) as chat:
            await asyncio.wait_for(chat.result(), 60)
        (opened,) = mesh.region.opened
        assert opened.messages.template_variables == '{"strftime_now":"2026-11-29"}'
        await mesh.settled()
