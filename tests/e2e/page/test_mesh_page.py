"""The operators' page, the distance slider and the comparison with plain streaming in Chromium,
before a mesh of real processes. The fake engine is enough: what is looked at is what the pages
show."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local import development_key
from outrider.cli.local.mesh import KEYS_FILE
from outrider.cli.local.state import running_mesh
from tools.browsing import PATIENCE_MS, PHONE, Watched, axe, chromium, opened

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SETTINGS = (
    "edge.added_distance=true",
    # So that replies last.
    "inference.fake_call_ms=20",
)


@dataclass(frozen=True, slots=True)
class Edge:
    mesh: LocalMesh
    origin: str
    key: str

    def kill_replica(self, region: str) -> None:
        """Kill the replica of a region."""
        state = running_mesh(self.mesh.state_dir)
        assert state is not None
        rows = [it for it in state.services if it["role"] == "inference"]
        (row,) = [it for it in rows if it["name"].startswith(region)]
        os.kill(row["pid"], signal.SIGKILL)

    def new_key(self, name: str, scope: str) -> str:
        """Another key, once this edge knows it: it looks at its file now and then."""
        keys = str(self.mesh.state_dir / KEYS_FILE)
        made = outrider("keys", "create", name, "--scope", scope, "--keys-file", keys)
        found = re.search(r"or_[0-9a-f]{12}_[0-9a-f]{64}", made.stdout)
        assert found is not None, made.stdout
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self._knows(found[0]):
            assert time.monotonic() < deadline, "the edge does not read its keys again"
        return found[0]

    def _knows(self, key: str) -> bool:
        asked = urllib.request.Request(
            f"{self.origin}/v1/models", headers={"authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=60):
                return True
        except urllib.error.HTTPError as refused:
            return refused.code != 401

    def chat(self) -> None:
        """Have one chat answered, whatever it says."""
        request = urllib.request.Request(
            f"{self.origin}/v1/chat/completions",
            b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}',
            {"authorization": f"Bearer {self.key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    with local_mesh(engine="fake", settings=SETTINGS, http=True) as mesh:
        port = mesh.state.service("edge")["http_port"]
        yield Edge(mesh, f"http://127.0.0.1:{port}", development_key.read(mesh.state_dir))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as running:
        yield running


@pytest.fixture
def operators(browser: Browser, edge: Edge) -> Iterator[Watched]:
    with opened(browser, edge.origin, "/ui/mesh") as watched:
        watched.may_lose = True  # the answer without a key is a 401
        enter_key(watched.page, edge.key)
        expect(watched.page.locator(".mesh-region")).to_have_count(2)
        yield watched
        watched.errors = [it for it in watched.errors if "401" not in it and "403" not in it]
        watched.check()


@pytest.fixture
def chat(browser: Browser, edge: Edge) -> Iterator[Watched]:
    with opened(browser, edge.origin) as watched:
        enter_key(watched.page, edge.key)
        watched.page.wait_for_selector("#model option", state="attached")
        watched.page.click("#open-settings")
        watched.page.fill("#max_tokens", "40")
        watched.page.keyboard.press("Enter")
        expect(watched.page.locator("#settings")).to_be_hidden()
        yield watched
        watched.check()


def enter_key(page: Page, key: str) -> None:
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", key)
    page.keyboard.press("Enter")
    expect(page.locator("#key-dialog")).to_be_hidden()


def test_regions_and_replicas_are_shown_as_they_are(operators: Watched, edge: Edge) -> None:
    page = operators.page
    expect(page.locator("#state")).to_contain_text("Live")
    expect(page.locator(".mesh-totals dd").first).to_have_text("2 of 2")
    names = page.locator(".mesh-table tbody th").all_inner_texts()
    assert {it.split("-")[0] for it in names} == {"us", "eu"}
    expect(page.locator(".mesh-table tbody tr").first).to_contain_text("ready")
    edge.chat()
    first = page.locator(".mesh-chart .mesh-value").first
    expect(page.get_by_text(re.compile(r"p95 [\d.]+ ms")).first).to_be_visible()
    assert first.inner_text() != ""


def test_a_replica_that_dies_and_the_chat_that_moved_are_shown(
    operators: Watched, edge: Edge
) -> None:
    page = operators.page
    expect(page.locator(".mesh-moves")).to_contain_text("No chat had to continue")
    chats = [threading.Thread(target=edge.chat) for _ in range(2)]
    for it in chats:
        it.start()
    busy = page.locator(".mesh-table tbody tr", has_text=re.compile(r"[12] of \d"))
    expect(busy.first).to_be_visible()
    edge.kill_replica(busy.first.locator("th").inner_text().split("-small")[0])
    # It may be back before the next second.
    expect(page.locator("#said")).to_have_text(re.compile(r"is (down|connecting|silent|ready)$"))
    for it in chats:
        it.join()
    expect(page.locator(".mesh-moves li").first).to_contain_text("→")
    expect(page.locator(".mesh-moves li").first).to_contain_text("without a token")
    expect(page.locator(".mesh-totals dd").first).to_have_text("2 of 2")


def test_a_paused_page_watches_no_more_and_goes_on(operators: Watched) -> None:
    page = operators.page
    page.click("#pause")
    expect(page.locator("#state")).to_have_text("Paused")
    page.click("#pause")
    expect(page.locator("#state")).to_contain_text("Live")


@pytest.mark.parametrize("scope", ["chat", ""])
def test_who_may_not_see_it_is_asked_for_another_key(
    scope: str, browser: Browser, edge: Edge
) -> None:
    key = edge.new_key("nobody", scope) if scope else "or_000000000000_" + "0" * 64
    with opened(browser, edge.origin, "/ui/mesh") as watched:
        page = watched.page
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", key)
        page.keyboard.press("Enter")
        # It may be back before anybody sees that it was gone.
        expect(page.locator("#key-why")).to_contain_text("scope" if scope else "key is not known")
        expect(page.locator("#key-dialog")).to_be_visible()
        expect(page.locator(".mesh-region")).to_have_count(0)
        page.fill("#key", edge.new_key(f"operator-{scope or 'nobody'}", "mesh"))
        page.keyboard.press("Enter")
        expect(page.locator(".mesh-region")).to_have_count(2)
        assert page.evaluate("window.violations") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_axe_finds_nothing_on_the_operators_page(
    device: str, scheme: str, browser: Browser, edge: Edge
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme} | (PHONE if device == "phone" else {})
    with opened(browser, edge.origin, "/ui/mesh", **options) as watched:
        assert axe(watched.page) == [], "with the dialog"
        enter_key(watched.page, edge.key)
        expect(watched.page.locator(".mesh-region")).to_have_count(2)
        assert axe(watched.page) == []
        wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "nothing is cut off at the side"


# The chat page.


def test_the_distance_is_added_to_ones_own_chats(chat: Watched) -> None:
    page = chat.page
    slider = page.locator("#distance input")
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#distance")).to_contain_text("+20 ms")
    page.keyboard.press("End")
    expect(page.locator("#distance")).to_contain_text("+300 ms")
    page.fill("#draft", "hello")
    page.press("#draft", "Enter")
    expect(page.locator("#panel")).to_contain_text(re.compile(r"3\d\d ms round trip"))


def test_plain_streaming_beside_it_says_the_same(chat: Watched) -> None:
    page = chat.page
    page.fill("#draft", "Say something.")
    page.click("#compare")
    expect(page.locator("#split")).to_be_visible()
    expect(page.locator("#split-verdict")).to_contain_text("Both texts are equal")
    expect(page.locator("#split-verdict")).to_contain_text("than with plain streaming")
    texts = page.locator(".split-text").all_inner_texts()
    assert texts[0] == texts[1] != ""
    for each in page.locator(".split-first, .split-whole").all_inner_texts():
        assert re.fullmatch(r"[\d.]+ m?s", each)
    assert axe(page) == []
    page.fill("#split-distance input", "300")
    page.click("#split-again")
    expect(page.locator("#split-verdict")).to_be_empty()
    expect(page.locator("#split-verdict")).to_contain_text("Both texts are equal")
    plain = page.locator(".split-first").nth(1).inner_text()
    assert plain.endswith(" s") or int(plain.removesuffix(" ms")) >= 300, "by the distance as it is"
    page.keyboard.press("Escape")
    expect(page.locator("#split")).to_be_hidden()
    assert page.input_value("#draft") == "Say something.", "nothing was sent into the conversation"


def test_without_the_setting_there_is_no_slider(browser: Browser) -> None:
    """And a chat that asks for a distance is refused."""
    with local_mesh(engine="fake", http=True, regions="us") as mesh:
        port = mesh.state.service("edge")["http_port"]
        own = Edge(mesh, f"http://127.0.0.1:{port}", development_key.read(mesh.state_dir))
        with opened(browser, own.origin) as watched:
            enter_key(watched.page, own.key)
            watched.page.wait_for_selector("#model option", state="attached")
            expect(watched.page.locator("#distance")).to_be_hidden()
            watched.check()
        request = urllib.request.Request(
            f"{own.origin}/v1/chat/completions",
            b'{"messages": [{"role": "user", "content": "hi"}], "added_rtt_ms": 50}',
            {"authorization": f"Bearer {own.key}", "content-type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 403
        assert "edge.added_distance" in refused.value.read().decode()
