"""How the web pages and their files are served, through every door of HTTP."""

from __future__ import annotations

import re

import pytest

from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from services.edge.ui.assets import assets
from tests.api_keys import key_of, text_of
from tests.edge.integration.access_matrix import DOORS, as_bearer
from tests.edge.integration.chat_routes import CHAT
from tests.edge.integration.http_client import plain
from tests.edge.integration.running import REPLY, Running

pytestmark = [
    pytest.mark.edge(
        access=AccessConfig(),
        anonymous=False,
        keys=(key_of("acme"), key_of("bolt")),
        http=HttpConfig(port=0),
    ),
]
over_all_doors = pytest.mark.parametrize("door", DOORS)
LINK = re.compile(r'(?:src|href)="(ui/static/[^"]+)"')


@over_all_doors
async def test_the_chat_page_and_all_its_files_are_public_and_kept(
    door: str, mesh: Running
) -> None:
    async with DOORS[door](mesh) as ask:
        page = await ask("GET", "/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["cache-control"] == "no-cache"
        assert (await ask("GET", "/ui")).body == page.body
        links = LINK.findall(page.body.decode())
        assert len(links) >= 4
        for link in links:
            file = await ask("GET", f"/{link}")
            assert file.status == 200 and file.body == assets().files[link.split("/")[-1]].body
            assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert file.headers["x-content-type-options"] == "nosniff"
            known = {"if-none-match": file.headers["etag"]}
            same = await ask("GET", f"/{link}", headers=known)
            assert (same.status, same.body) == (304, b"")
        again = await ask("GET", "/", headers={"if-none-match": f'"x", W/{page.headers["etag"]}'})
        assert (again.status, again.body) == (304, b"")
        head = await ask("HEAD", "/ui")
        assert (head.status, head.body) == (200, b"")
    assert mesh.region.opened == []


@over_all_doors
async def test_a_page_runs_nothing_but_the_edges_own_files(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        page = await ask("GET", "/")
        policy = dict(
            part.strip().split(" ", 1)
            for part in page.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["img-src"] == "'self'"
        assert policy["connect-src"].split()[0] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["trusted-types"] == "'none'"
        for name in ("base-uri", "form-action", "frame-ancestors"):
            assert policy[name] == "'none'"
        assert page.headers["referrer-policy"] == "no-referrer"
        text = page.body.decode()
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|https?://", text)


def test_no_file_of_the_pages_names_another_host_or_makes_markup_of_text() -> None:
    for name, asset in assets().files.items():
        text = asset.body.decode()
        hosts = set(re.findall(r"https?://([\w.-]+)", text)) - {"www.w3.org"}
        assert not hosts, name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (name, word)
        assert not re.search(r"\bnew Function\b|@import|url\(", text), name


async def test_files_of_another_release_are_served_but_not_kept(mesh: Running) -> None:
    async with plain(mesh, key="") as client:
        file = await client.get("/ui/static/0123456789abcdef/base.css")
        assert file.status_code == 200 and file.headers["cache-control"] == "no-cache"
        for name in ("nothing.js", "chat.html", "..%2f__init__.py", "a/b.js"):
            refused = await client.get(f"/ui/static/{assets().digest}/{name}")
            assert refused.status_code == 404, name


@pytest.mark.edge(http=HttpConfig(port=0, chat_page=False))
async def test_an_edge_may_serve_no_pages(mesh: Running) -> None:
    async with plain(mesh, key="") as client:
        assert "<script" not in (await client.get("/")).text
        for path in ("/ui", f"/ui/static/{assets().digest}/chat.js"):
            refused = await client.get(path)
            assert refused.status_code == 404
            assert "edge.http.chat_page" in refused.json()["error"]["message"]


@pytest.mark.edge(http=HttpConfig(port=0), access=AccessConfig(http_anonymous=True), anonymous=True)
async def test_a_page_knows_whether_a_key_is_needed(mesh: Running) -> None:
    async with plain(mesh, key="") as client:
        assert 'data-key="optional"' in (await client.get("/")).text


# Replies that are given up.


async def test_a_kept_reply_ends_when_its_own_client_gives_it_up(mesh: Running) -> None:
    mesh.region.hold(2)
    mine = as_bearer(text_of("acme")) | {"idempotency-key": "k"}
    others = as_bearer(text_of("bolt")) | {"idempotency-key": "k"}
    async with plain(mesh, key="") as client:
        body = {**CHAT.body, "stream": True}
        async with client.stream("POST", CHAT.path, json=body, headers=mine) as answer:
            await anext(answer.aiter_lines())
        for headers, count in ((others, 0), (mine, 1), (mine, 0)):
            told = await client.delete(CHAT.path, headers=headers)
            assert (told.status_code, told.json()) == (200, {"num_cancelled": count})
        await mesh.settled()
        mesh.region.gate.set()
        whole = await client.post(CHAT.path, json=CHAT.body, headers=mine)
        assert CHAT.text(whole.json()) == REPLY
        assert len(mesh.region.opened) == 2, "what was given up is computed anew"
        without = await client.delete(CHAT.path, headers=as_bearer(text_of("acme")))
        assert without.status_code == 400 and "Idempotency-Key" in without.text
    await mesh.settled()
