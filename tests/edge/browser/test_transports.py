"""Chats of a page in headless Chromium, by the page's own modules, against a mesh in this process:
what carries them, what becomes of them when that is lost, and that no text ever differs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes

from outrider.client import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from services.edge.quic import certificate
from tests.edge.browser.browsing import (
    ASK,
    LONG,
    SAMPLING,
    SHORT,
    SLOW_MS,
    address,
    ask,
    begin,
    browsing,
    chat_page,
    kinds,
    load,
    reference,
    relayed,
    told,
)
from tests.mesh import EdgeUnderTest

pytestmark = pytest.mark.timeout(300)


async def test_a_chat_in_a_session_and_one_by_fetch_are_the_same(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with browsing(words, tmp_path) as (mesh, browser):
        text = await reference(mesh, SHORT)
        (edge,) = mesh.edges
        page = await chat_page(browser, edge)
        over_session = await ask(page, **SHORT)
        assert (over_session["name"], over_session["why"]) == ("webtransport", "")
        await page.evaluate("delete globalThis.WebTransport")
        over_fetch = await ask(page, **SHORT)
        assert over_fetch["opened"] == ["fetch", "this browser has no WebTransport"]
        for chat in (over_session, over_fetch):
            assert (chat["text"], chat["error"]) == (text, None)
            shown = [kind for kind in kinds(chat) if kind != "provisional"]
            assert shown[0] == "opened" and shown[-2:] == ["usage", "done"]
            opened, done = chat["events"][0], chat["events"][-1]
            assert opened["edge"] == "edge" and opened["seed"] == SAMPLING["seed"]
            assert (done["finishReason"], done["region"]) == ("length", "us")
            assert sum(done["tokens"].values()) == 24
        assert page.errors == []


async def test_udp_that_is_blocked_is_told_of_and_chats_go_by_fetch(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with browsing(words, tmp_path) as (mesh, browser), relayed(mesh.edges[0]) as relay:
        relay.is_cut = True
        page = await chat_page(browser, mesh.edges[0])
        chat = await ask(page, **SHORT)
        assert chat["name"] == "fetch" and "no answer over UDP from 127.0.0.1:" in chat["why"]
        assert chat["text"] == await reference(mesh, SHORT)


async def test_udp_that_is_cut_in_the_middle_of_a_reply_costs_no_word(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        browsing(words, tmp_path, call_ms=SLOW_MS) as (mesh, browser),
        relayed(mesh.edges[0]) as relay,
    ):
        page = await chat_page(browser, mesh.edges[0])
        await begin(page, "chat", **LONG)
        relay.is_cut = True
        chat = await told(page, "chat")
        assert chat["opened"] == ["webtransport", ""] and chat["name"] == "fetch"
        assert "UDP" in chat["why"] and {"interrupted", "resumed"} <= set(kinds(chat))
        assert (chat["text"], chat["error"]) == (await reference(mesh, LONG), None)


async def test_a_network_that_is_lost_and_comes_back(words: Vocabulary, tmp_path: Path) -> None:
    async with (
        browsing(words, tmp_path, call_ms=SLOW_MS) as (mesh, browser),
        relayed(mesh.edges[0]) as relay,
    ):
        page = await chat_page(browser, mesh.edges[0])
        await begin(page, "chat", **LONG)
        relay.is_cut = True
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await page.send("Network.emulateNetworkConditions", offline=True, **network)
        await page.until("running.chat.events.some((it) => it.type === 'interrupted')")
        relay.is_cut = False
        await page.send("Network.emulateNetworkConditions", offline=False, **network)
        chat = await told(page, "chat")
        assert (chat["text"], chat["error"]) == (await reference(mesh, LONG), None)
        assert kinds(chat).count("interrupted") == 1 and "resumed" in kinds(chat)


async def test_an_edge_that_dies_is_replaced_by_another(words: Vocabulary, tmp_path: Path) -> None:
    http = HttpConfig(port=0, allowed_origins=("*",))
    async with browsing(words, tmp_path, call_ms=SLOW_MS, num_edges=2, http=http) as (
        mesh,
        browser,
    ):
        first, second = mesh.edges
        page = await chat_page(browser, first, may_ask_anybody=True)
        await begin(page, "chat", address(first), address(second), **LONG)
        first.fall_silent()
        await first.edge.stop()
        chat = await told(page, "chat")
        assert chat["error"] is None and chat["name"] == "webtransport"
        assert {"interrupted", "resumed"} <= set(kinds(chat))
        async with mesh.client(1) as client:
            sampling = SamplingParams(**LONG["sampling"])
            async with client.chat([Message("user", "Say it.")], sampling=sampling) as again:
                assert chat["text"] == (await again.result()).text


@contextmanager
def silent_edge() -> Iterator[str]:
    """Address of a machine that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


async def test_an_edge_that_says_nothing_is_replaced_by_another(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, allowed_origins=("*",))
    with silent_edge() as silent:
        async with browsing(words, tmp_path, http=http) as (mesh, browser):
            (edge,) = mesh.edges
            page = await chat_page(browser, edge, may_ask_anybody=True)
            await begin(page, "chat", silent, address(edge), **SHORT)
            chat = await told(page, "chat")
            assert (chat["text"], chat["error"]) == (await reference(mesh, SHORT), None)


async def test_a_chat_is_stopped_while_nobody_answers(words: Vocabulary, tmp_path: Path) -> None:
    with silent_edge() as silent:
        async with browsing(words, tmp_path) as (mesh, browser):
            page = await chat_page(browser, mesh.edges[0], may_ask_anybody=True)
            await page.evaluate(f"void ask('chat', {json.dumps({**ASK, **SHORT})}, ['{silent}'])")
            await page.until("running.chat?.opened")
            await page.evaluate("running.chat.stop()")
            chat = await told(page, "chat")
            assert [it["type"] for it in chat["events"]] == ["done"]
            assert chat["events"][0]["finishReason"] == "cancelled"


async def test_a_chat_that_is_stopped_ends_at_the_edge(words: Vocabulary, tmp_path: Path) -> None:
    async with browsing(words, tmp_path, call_ms=SLOW_MS) as (mesh, browser):
        (edge,) = mesh.edges
        page = await chat_page(browser, edge)
        for name in ("webtransport", "fetch"):
            await begin(page, name, sampling={"max_tokens": 1500})
            assert edge.num_region_sessions == 1
            await page.evaluate(f"running[{name!r}].stop()")
            chat = await told(page, name)
            assert chat["name"] == name and chat["events"][-1]["finishReason"] == "cancelled"
            await eventually(lambda: edge.num_region_sessions == 0)
            await page.evaluate("delete globalThis.WebTransport")


async def test_an_expired_certificate_is_told_of(words: Vocabulary, tmp_path: Path) -> None:
    made_at = datetime.now(UTC) - timedelta(days=20)
    chain, key = certificate.ensure(tmp_path / "expired", (), made_at)
    async with browsing(words, tmp_path, certificate=chain, private_key=key) as (mesh, browser):
        page = await chat_page(browser, mesh.edges[0])
        chat = await ask(page, **SHORT)
        assert chat["name"] == "fetch" and "certificate expired at 20" in chat["why"]
        assert chat["error"] is None and len(chat["text"]) > 0


async def test_a_certificate_that_is_replaced_is_known_to_pages_that_ask(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with browsing(words, tmp_path) as (mesh, browser):
        (edge,) = mesh.edges
        page = await chat_page(browser, edge)
        folder = tmp_path / "tls"
        before = (folder / "cert.pem").read_bytes()
        (folder / "cert.pem").unlink()
        http = edge.edge.http
        assert http is not None
        old = http.frontend.sessions.certificates
        await eventually(lambda: http.frontend.sessions.certificates != old)
        await eventually(lambda: _is_used(edge, folder))
        assert (folder / "cert.pem").read_bytes() != before
        chat = await ask(page, **SHORT)
        assert (chat["name"], chat["why"], chat["error"]) == ("webtransport", "", None)


def _is_used(edge: EdgeUnderTest, folder: Path) -> bool:
    configuration = edge.edge.listener._configuration
    assert configuration is not None and configuration.certificate is not None
    used = certificate.PinnedCertificate(
        configuration.certificate.fingerprint(hashes.SHA256()),
        configuration.certificate.not_valid_after_utc,
    )
    return certificate.pinned(folder / "cert.pem", certificate.utc_now())[:1] == (used,)


async def test_an_edge_that_stops_tells_its_pages_to_go_elsewhere(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, allowed_origins=("*",))
    async with browsing(words, tmp_path, call_ms=SLOW_MS, num_edges=2, http=http) as (
        mesh,
        browser,
    ):
        first, second = mesh.edges
        page = await chat_page(browser, first, may_ask_anybody=True)
        await begin(page, "chat", address(first), address(second), **LONG)
        stopping = asyncio.create_task(first.edge.stop())
        chat = await told(page, "chat")
        await stopping
        assert chat["error"] is None and len(chat["text"]) > 0
        assert {"interrupted", "resumed"} <= set(kinds(chat))


async def test_a_chat_goes_on_when_its_page_was_loaded_again(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with browsing(words, tmp_path, call_ms=SLOW_MS) as (mesh, browser):
        (edge,) = mesh.edges
        page = await chat_page(browser, edge)
        request = {**LONG, "idempotencyKey": "5a0c0f5e-0000-4000-8000-000000000001"}
        await begin(page, "chat", **request)
        before = await page.evaluate("told('chat')")
        await load(page, edge)
        chat = await ask(page, **request, lastEventId=before["events"][-1]["eventId"])
        assert before["text"] and chat["events"][0]["type"] == "opened"
        assert (before["text"] + chat["text"], chat["error"]) == (await reference(mesh, LONG), None)


async def test_a_chat_by_the_http_api_is_the_same_too(words: Vocabulary, tmp_path: Path) -> None:
    async with browsing(words, tmp_path) as (mesh, browser):
        page = await chat_page(browser, mesh.edges[0])
        bare = {"sampling": {"seed": 7, "max_tokens": 24}}
        chat = await ask(page, **bare)
        text = await page.evaluate(
            "(async () => { const script = document.querySelector('script[type=module]').src;"
            "const { fetchTransport } = await import(new URL('./fetch-transport.js', script));"
            "const signal = new AbortController().signal; let text = '';"
            "const asked = { messages: [{ role: 'user', content: 'Say it.' }], provisional: true,"
            "  sampling: { seed: 7, max_tokens: 24 }, idempotencyKey: crypto.randomUUID() };"
            "for await (const it of fetchTransport.chat(asked, { signal }))"
            "  if (it.type === 'committed') text += it.text;"
            "return text; })()"
        )
        assert chat["text"] == text and chat["events"][-1]["seed"] == 7
