"""Chats of the edge's page in headless Firefox: both ways to carry them, no text ever differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from tests.edge.browser.browsing import (
    LONG,
    SHORT,
    SLOW_MS,
    address,
    ask,
    begin,
    kinds,
    load,
    reference,
    relayed,
    serving_pages,
    told,
)
from tests.firefox import ENTER, running_firefox

pytestmark = pytest.mark.timeout(300)


async def test_chats_by_both_ways_are_the_reference_and_can_be_stopped(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        serving_pages(words, tmp_path, call_ms=SLOW_MS) as mesh,
        running_firefox(tmp_path) as page,
    ):
        text = await reference(mesh, SHORT)
        (edge,) = mesh.edges
        await load(page, edge)
        for name in ("webtransport", "fetch"):
            chat = await ask(page, **SHORT)
            assert (chat["name"], chat["text"], chat["error"]) == (name, text, None)
            assert chat["events"][-1]["finishReason"] == "length"
            await begin(page, name, sampling={"max_tokens": 1500})
            assert edge.num_region_sessions == 1
            await page.evaluate(f"running[{name!r}].stop()")
            stopped = await told(page, name)
            assert stopped["events"][-1]["finishReason"] == "cancelled"
            await eventually(lambda: edge.num_region_sessions == 0)
            await page.evaluate("delete globalThis.WebTransport")
        assert page.errors == []


async def test_udp_that_is_cut_in_the_middle_of_a_reply_costs_no_word(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        serving_pages(words, tmp_path, call_ms=SLOW_MS) as mesh,
        relayed(mesh.edges[0]) as relay,
        running_firefox(tmp_path) as page,
    ):
        await load(page, mesh.edges[0])
        await begin(page, "chat", **LONG)
        relay.is_cut = True
        chat = await told(page, "chat")
        assert chat["opened"] == ["webtransport", ""] and chat["name"] == "fetch"
        assert {"interrupted", "resumed"} <= set(kinds(chat))
        assert (chat["text"], chat["error"]) == (await reference(mesh, LONG), None)


async def test_a_person_asks_on_the_page(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_pages(words, tmp_path) as mesh, running_firefox(tmp_path) as page:
        await page.goto(address(mesh.edges[0]))
        await page.until("document.querySelector('#model option')")
        await page.evaluate("void document.querySelector('#draft').focus()")
        await page.type("Say it.", ENTER)
        shown = "document.querySelector('.reply:not(.live) .prose')?.textContent"
        assert await page.until(shown)
        assert page.errors == []
