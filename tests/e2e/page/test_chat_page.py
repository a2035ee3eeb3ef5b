"""The chat page in Chromium, before a mesh of real processes with the real model."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local import development_key
from outrider.cli.local.state import running_mesh
from outrider.client.protocol import HTTP_PATH
from services.edge.session.ahead_plan import AheadPolicy
from services.edge.telemetry.edge import SEALED_TOKENS
from tools.browsing import PATIENCE_MS, PHONE, Watched, axe, chromium, opened

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(1200)]

MAX_AHEAD_TOKENS = AheadPolicy().max_tokens
SETTINGS = (
    # So that it is known how many are begun.
    f"edge.ahead.min_tokens={MAX_AHEAD_TOKENS}",
    # Few sizes of calls, so that it starts in seconds; they change no text.
    "inference.max_fixed_rows=4",
    "inference.warm_up_rows=16",
    # Whatever the drafter guesses is shown, so that there is something to correct.
    "edge.display.threshold=0.05",
    "edge.display.first_threshold=0.05",
    "edge.display.max_risk=20",
    "edge.display.rewrite_interval_ms=0",
    "edge.display.caution=0",
)
LONG = "Tell me all that you know about the history of bread."
LASTING = 300
"""Tokens of a reply that is not over before something happens to it, on a fast CPU and where drafts
know its beginning from earlier tests."""
SHOWN = """
window.shown = [];
new MutationObserver(() => {
  const text = [...document.querySelectorAll(".reply.live .prose")].at(-1)?.textContent;
  if (text?.trim()) window.shown.push(text);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Notes each text that stands in the newest reply."""
WHY = "Why is the sky blue?"
SHORT = "What is the capital of France?"
CODE_AND_TABLE = "```\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"


@dataclass(frozen=True, slots=True)
class Edge:
    mesh: LocalMesh
    origin: str
    key: str

    def kill(self, role: str, name: str = "") -> None:
        """Kill a service, by now perhaps another process than at first."""
        os.kill(self.up(role, name)["pid"], signal.SIGKILL)

    def up(self, role: str, name: str = "") -> dict[str, Any]:
        """What the mesh records of a service, once that is up."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            state = running_mesh(self.mesh.state_dir)
            assert state is not None
            rows = [it for it in state.services if it["role"] == role]
            (row,) = [it for it in rows if it["name"].startswith(name)]
            if row["is_up"]:
                return row
            assert time.monotonic() < deadline, f"{role} {name} does not come back"
            time.sleep(0.1)

    def text_of(self, messages: list[dict[str, str]], seed: int, max_tokens: int) -> str:
        """What the API says without drafts, to the same seed."""
        body = {"messages": messages, "seed": seed, "max_tokens": max_tokens, "speculation": "off"}
        request = urllib.request.Request(
            f"{self.origin}/v1/chat/completions",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {self.key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    with local_mesh(settings=SETTINGS, http=True) as mesh:
        port = mesh.state.service("edge")["http_port"]
        yield Edge(mesh, f"http://127.0.0.1:{port}", development_key.read(mesh.state_dir))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as running:
        yield running


@pytest.fixture
def chat(browser: Browser, edge: Edge) -> Iterator[Watched]:
    with opened(browser, edge.origin) as watched:
        enter_key(watched.page, edge)
        yield watched
        watched.check()


def enter_key(page: Page, edge: Edge) -> None:
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", edge.key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#model option", state="attached")


def limit(page: Page, max_tokens: int) -> None:
    page.click("#open-settings")
    page.fill("#max_tokens", str(max_tokens))
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_hidden()


def send(page: Page, text: str) -> None:
    page.fill("#draft", text)
    page.press("#draft", "Enter")


def ended(page: Page) -> None:
    page.wait_for_selector("#send:not([hidden])")


def begun(page: Page, num_chars: int = 40) -> None:
    """Wait until more of the newest reply is shown, final or not."""
    page.wait_for_function(
        "n => [...document.querySelectorAll('.reply.live .prose')].at(-1)?.textContent.length > n",
        arg=num_chars,
    )


def has_final_text(page: Page) -> None:
    """Wait until some of the newest reply, behind which a guess may stand, is final."""
    page.wait_for_function(
        """() => {
          const prose = [...document.querySelectorAll('.reply.live .prose')].at(-1);
          const guesses = [...(prose?.querySelectorAll('.guess') ?? [])];
          const shown = prose?.textContent.length ?? 0;
          return shown > guesses.reduce((sum, it) => sum + it.textContent.length, 0);
        }"""
    )


def stored(page: Page) -> dict[str, Any]:
    """The newest conversation, as IndexedDB has it."""
    found = page.evaluate(
        """() => new Promise((resolve) => {
          const opening = indexedDB.open("outrider", 1);
          opening.onsuccess = () => {
            const store = opening.result.transaction("conversations").objectStore("conversations");
            const asked = store.getAll();
            asked.onsuccess = () => {
              resolve(asked.result.sort((a, b) => b.updatedAt - a.updatedAt)[0]);
            };
          };
        })"""
    )
    assert isinstance(found, dict)
    return found


def store(page: Page, conversation: dict[str, Any]) -> None:
    """Keep it in IndexedDB and load the page anew."""
    page.evaluate(
        """(conversation) => new Promise((resolve) => {
          const opening = indexedDB.open("outrider", 1);
          opening.onsuccess = () => {
            const transaction = opening.result.transaction("conversations", "readwrite");
            transaction.objectStore("conversations").put(conversation);
            transaction.oncomplete = () => resolve();
          };
        })""",
        conversation,
    )
    page.reload()


def last_reply(page: Page) -> dict[str, Any]:
    """The newest reply, once it was kept as ended."""
    for _ in range(600):
        kept = stored(page)
        node: dict[str, Any] = kept["nodes"][kept["leaf"]]
        if "pending" not in node:
            return node
        page.wait_for_timeout(100)
    raise AssertionError("the reply is not kept")


def check_exact(edge: Edge, page: Page, question: str, max_tokens: int) -> dict[str, Any]:
    reply = last_reply(page)
    said = [{"role": "user", "content": question}]
    assert reply["content"] == edge.text_of(said, reply["seed"], max_tokens)
    return reply


def test_a_reply_is_the_models_own_and_its_guesses_are_corrected_in_place(
    chat: Watched, edge: Edge
) -> None:
    page = chat.page
    limit(page, 80)
    send(page, LONG)
    expect(page.locator(".user .said")).to_have_text(LONG)
    ended(page)
    reply = check_exact(edge, page, LONG, 80)
    for _ in range(10):
        # It is chance which guesses are wrong.
        if reply["brought"]["earlyShare"] > 0 and reply["brought"]["erasedShare"] > 0:
            break
        page.get_by_role("button", name="Retry").click()
        page.wait_for_selector("#stop:not([hidden])")
        ended(page)
        reply = check_exact(edge, page, LONG, 80)
    else:
        raise AssertionError("no guess was right, or none was wrong")
    assert page.evaluate("window.guesses.length") > 0, "some of it was shown before it was final"
    assert page.locator(".guess").count() == 0, "nothing is left of what was wrong"
    early = "".join(page.locator(".prose .early").all_text_contents())
    assert early
    panel = page.locator("#panel")
    expect(panel).to_contain_text("Region alone")
    expect(panel.locator("svg.path")).to_contain_text(
        "us-east" if "us" in reply["brought"]["region"] else "eu-west"
    )
    assert re.search(r"\d+ ms", panel.inner_text())
    expect(page.locator("#status")).to_contain_text(reply["content"][:40])


def test_stop_keeps_what_was_written_and_retry_writes_another(chat: Watched) -> None:
    page = chat.page
    send(page, LONG)
    has_final_text(page)
    page.keyboard.press("Escape")
    ended(page)
    expect(page.locator(".note-line")).to_have_text("You stopped it here.")
    assert last_reply(page)["content"]
    limit(page, 12)
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".branches")).to_have_text("2 of 2")
    ended(page)
    second = last_reply(page)["content"]
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator(".branches")).to_have_text("1 of 2")
    page.get_by_role("button", name="Later version").click()
    expect(page.locator(".reply .prose")).to_contain_text(second.split("\n")[0][:20].strip())


def test_an_edited_message_begins_another_branch(chat: Watched) -> None:
    page = chat.page
    limit(page, 16)
    send(page, SHORT)
    ended(page)
    page.press("#draft", "ArrowUp")
    page.keyboard.press("Control+A")
    page.keyboard.type("What is the capital of Spain?")
    page.keyboard.press("Enter")
    expect(page.locator(".user .said")).to_have_text("What is the capital of Spain?")
    ended(page)
    page.locator(".user").hover()
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator(".user .said")).to_have_text(SHORT)


def test_conversations_are_kept_and_exported(chat: Watched, edge: Edge) -> None:
    page = chat.page
    limit(page, 16)
    send(page, SHORT)
    ended(page)
    content = last_reply(page)["content"]
    page.reload()
    page.get_by_role("button", name=SHORT, exact=True).click()
    expect(page.locator(".reply .prose")).to_contain_text(content.split("\n")[0][:20].strip())
    for item, ending in (("Markdown, as shown", "md"), ("JSON, with all branches", "json")):
        page.click("#export")
        with page.expect_download() as downloading:
            page.get_by_role("menuitem", name=item).click()
        assert downloading.value.suggested_filename == f"what-is-the-capital-of-france.{ending}"
        text = Path(downloading.value.path()).read_text(encoding="utf-8")
        assert SHORT in text
        if ending == "json":
            assert content in [it["content"] for it in json.loads(text)["nodes"].values()]
        else:
            assert text.startswith(f"# {SHORT}\n\n## You") and content in text
    page.get_by_role("button", name=f"Delete “{SHORT}”").click()
    expect(page.locator("#conversations li")).to_have_count(0)
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    expect(page.locator("#conversations li")).to_have_count(0)


def test_a_reply_goes_on_after_the_page_was_loaded_again(chat: Watched, edge: Edge) -> None:
    page = chat.page
    limit(page, LASTING)
    send(page, LONG)
    begun(page)
    page.wait_for_timeout(1500)  # what is kept is at most a second old
    page.reload()
    begun(page)
    ended(page)
    check_exact(edge, page, LONG, LASTING)


def test_a_killed_replica_costs_a_line_and_no_word(chat: Watched, edge: Edge) -> None:
    page = chat.page
    limit(page, 60)
    send(page, LONG)
    begun(page)
    # Whichever region has the chat.
    for row in edge.mesh.services("inference")[:1]:
        edge.kill("inference", row["name"])
    ended(page)
    reply = check_exact(edge, page, LONG, 60)
    if reply["brought"]["moves"]:
        expect(page.locator(".note-line")).to_contain_text("A server was lost")


@pytest.mark.parametrize("transport", ["webtransport", "fetch"])
def test_a_killed_edge_costs_a_line_and_no_word(transport: str, chat: Watched, edge: Edge) -> None:
    chat.may_lose = True
    page = chat.page
    if transport == "fetch":
        page.add_init_script("delete globalThis.WebTransport")
        page.reload()
        page.wait_for_selector("#model option", state="attached")
    by_fetch: list[str] = []
    page.on("request", lambda it: by_fetch.append(it.url) if it.url.endswith(HTTP_PATH) else None)
    limit(page, LASTING)
    edge.up("edge")  # again, after the test before: it is to be killed at once
    send(page, LONG)
    begun(page)
    assert bool(by_fetch) == (transport == "fetch")
    edge.kill("edge")
    expect(page.locator(".note-line")).to_contain_text("The connection was lost; trying again.")
    ended(page)
    expect(page.locator(".note-line")).to_contain_text("Nothing is missing.")
    check_exact(edge, page, LONG, LASTING)


def answered_ahead(page: Page, edge: Edge, text: str) -> None:
    """Type it, and wait until the beginning of its reply is at the edge."""
    page.locator("#draft").press_sequentially(text, delay=40)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while edge.mesh.metric("edge", SEALED_TOKENS) < MAX_AHEAD_TOKENS:
        assert time.monotonic() < deadline, "nothing is begun before Enter"
        page.wait_for_timeout(50)


def letters(text: str) -> str:
    """Without what Markdown and a page do to spaces."""
    return "".join(text.split())


def test_what_was_begun_before_enter_is_the_first_that_is_shown(chat: Watched, edge: Edge) -> None:
    page = chat.page
    limit(page, 40)
    page.check("#ahead")
    answered_ahead(page, edge, WHY)
    assert page.locator(".turn").count() == 0, "nothing of it is shown"
    page.evaluate(SHOWN)
    page.press("#draft", "Enter")
    ended(page)
    reply = check_exact(edge, page, WHY, 40)
    assert reply["brought"]["aheadTokens"] == MAX_AHEAD_TOKENS
    begun_with = edge.text_of([{"role": "user", "content": WHY}], reply["seed"], MAX_AHEAD_TOKENS)
    first = page.evaluate("window.shown")[0]
    assert letters(first).startswith(letters(begun_with)), "all that was ready came at once"
    expect(page.locator("#panel .gains")).to_contain_text(
        re.compile(r"Before Enter\s*(\d.* sooner|12 tokens ready)")
    )


def test_nothing_that_was_begun_is_shown_for_an_edited_text(chat: Watched, edge: Edge) -> None:
    page = chat.page
    limit(page, 24)
    page.click("#open-settings")
    page.uncheck("#provisional")
    page.get_by_role("button", name="Done").click()
    page.check("#ahead")
    answered_ahead(page, edge, WHY)
    page.evaluate(SHOWN)
    other = WHY.replace("sky", "sea")
    page.fill("#draft", other)
    page.press("#draft", "Enter")
    ended(page)
    reply = check_exact(edge, page, other, 24)
    final = letters(page.locator(".reply .prose").inner_text())
    shown = [letters(it) for it in page.evaluate("window.shown")]
    assert shown and all(final.startswith(it) for it in shown)
    assert letters(reply["content"])[:8] in final

    # What was typed and not sent is thrown away with the switch, and nothing more is told.
    answered_ahead(page, edge, LONG)
    page.uncheck("#ahead")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while edge.mesh.metric("edge", SEALED_TOKENS):
        assert time.monotonic() < deadline, "what nobody asked for is kept"
        page.wait_for_timeout(50)
    told: list[Request] = []
    page.on("request", lambda it: told.append(it))
    page.locator("#draft").press_sequentially(" And of salt?", delay=5)
    page.wait_for_timeout(500)
    assert told == []


def test_everything_is_done_by_the_keyboard(browser: Browser, edge: Edge) -> None:
    with opened(browser, edge.origin) as watched:
        page = watched.page
        press = page.keyboard.press
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type(edge.key)
        press("Enter")
        page.wait_for_selector("#model option", state="attached")
        expect(page.locator("#draft")).to_be_focused()
        press("Alt+k")
        expect(page.locator("#keys")).to_be_visible()
        press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.type("One")
        press("Shift+Enter")
        page.keyboard.type("two")
        assert page.input_value("#draft") == "One\ntwo"
        press("Enter")
        begun(page, 5)
        press("Escape")
        ended(page)
        expect(page.locator("#draft")).to_be_focused()
        press("ArrowUp")
        expect(page.locator(".editor textarea")).to_be_focused()
        press("Escape")
        press("Alt+r")
        expect(page.locator(".branches")).to_have_text("2 of 2")
        press("Escape")
        ended(page)
        press("Alt+n")
        expect(page.locator(".turn")).to_have_count(0)
        press("Alt+i")
        expect(page.locator("#panel")).to_be_hidden()
        names = []
        for _ in range(40):
            press("Tab")
            names.append(
                page.evaluate("document.activeElement.ariaLabel || document.activeElement.id")
            )
        assert {"New conversation", "model", "ahead", "draft"} <= set(names)
        watched.check()


def test_nothing_is_sent_while_one_types_unless_one_agreed(chat: Watched) -> None:
    page = chat.page
    sent: list[Request] = []
    page.on("request", lambda it: sent.append(it))
    page.locator("#draft").press_sequentially("Is anybody reading this?", delay=5)
    page.wait_for_timeout(500)
    assert sent == []
    assert not page.is_checked("#ahead")
    page.click("#ahead-why")
    expect(page.locator("#ahead-dialog")).to_contain_text("even if you never send it")
    page.keyboard.press("Escape")


def test_a_wrong_key_is_told(browser: Browser, edge: Edge) -> None:
    with opened(browser, edge.origin) as watched:
        page = watched.page
        page.fill("#key", "or_nobody")
        page.keyboard.press("Enter")
        expect(page.locator("#key-problem")).to_contain_text("does not take that key")
        assert [it for it in watched.errors if "401" not in it] == []
        assert page.evaluate("window.violations") == []


def test_a_key_stays_in_its_tab_unless_one_says_otherwise(chat: Watched, edge: Edge) -> None:
    page = chat.page
    kept = "JSON.stringify([{...localStorage}, document.cookie])"
    assert edge.key not in page.evaluate(kept)
    page.click("#open-settings")
    page.click("#change-key")
    page.fill("#key", edge.key)
    page.check("#key-remember")
    page.keyboard.press("Enter")
    assert edge.key in page.evaluate(kept)


@pytest.mark.packages
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(
    browser: Browser, edge: Edge, scheme: str, device: dict[str, Any]
) -> None:
    with opened(browser, edge.origin, color_scheme=scheme, **device) as watched:
        page = watched.page
        assert axe(page) == [], "the key's dialog"
        enter_key(page, edge)
        assert axe(page) == [], "an empty conversation"
        send(page, "Write a short list, a table and a line of Python code.")
        begun(page, 20)
        assert axe(page) == [], "while a reply is written"
        page.keyboard.press("Escape")
        ended(page)
        assert axe(page) == [], "a reply"
        last_reply(page)
        conversation = stored(page)
        conversation["nodes"][conversation["leaf"]]["content"] = 2 * CODE_AND_TABLE
        store(page, conversation)
        if device:
            page.click("#toggle-side")
        page.click("#conversations li")
        expect(page.locator(".reply .code, .reply .table")).to_have_count(4)
        assert axe(page) == [], "a reply with several codes and tables"
        if device:
            page.click("#toggle-panel")
            assert axe(page) == [], "the panel over the page"
            page.keyboard.press("Escape")
            page.click("#toggle-side")
            assert axe(page) == [], "the conversations over the page"
        page.click("#open-settings")
        assert axe(page) == [], "settings"
        watched.check()


def test_a_phone_has_no_sideways_scrolling(browser: Browser, edge: Edge) -> None:
    with opened(browser, edge.origin, **PHONE) as watched:
        page = watched.page
        enter_key(page, edge)
        send(page, "x" * 300)
        begun(page, 1)
        page.click("#stop")
        ended(page)
        for width in (320, 390):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
            assert page.evaluate("document.querySelector('#scroll').scrollWidth") <= width
        watched.check()
