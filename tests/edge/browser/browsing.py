"""A mesh, a browser, and chats that a page of the edge has by its own modules."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from outrider.client import Message
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from tests.chromium import Chromium, Page, running_chromium
from tests.edge.integration.nat import Nat
from tests.mesh import EdgeUnderTest, Mesh, running_mesh

ASK: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Say it."}]}
SLOW_MS = 30.0
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 9007199254740991 - 7}
SHORT = {"sampling": {**SAMPLING, "max_tokens": 24}}
LONG = {"sampling": {**SAMPLING, "max_tokens": 300}}
_LOADED = """(async () => {
  const script = document.querySelector("script[type=module]").src;
  globalThis.native = await import(new URL("./native-transport.js", script));
  globalThis.running = {};
  globalThis.ask = async (name, request, edges) => {
    const mine = (globalThis.running[name] = { events: [], text: "", error: null, isOver: false });
    const stopping = new AbortController();
    mine.stop = () => stopping.abort();
    mine.transport = await globalThis.native.openNative(edges ? { edges } : {});
    mine.opened = [mine.transport.name, mine.transport.why];
    try {
      const asked = { provisional: true, idempotencyKey: crypto.randomUUID(), ...request };
      for await (const event of mine.transport.chat(asked, { signal: stopping.signal })) {
        mine.events.push(event);
        if (event.type === "committed") mine.text += event.text;
      }
    } catch (error) {
      mine.error = `${error.code}: ${error.message}`;
    }
    mine.isOver = true;
    return told(name);
  };
  globalThis.told = (name) => {
    const { events, text, error, transport, opened } = globalThis.running[name];
    return { events, text, error, name: transport.name, why: transport.why, opened };
  };
})()"""


class Tab(Protocol):
    """A tab of any browser."""

    async def goto(self, url: str) -> None:
        """Load a page; returns when it has loaded."""

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise; what JSON has. Raises
        PageError."""

    async def until(self, expression: str) -> Any:
        """The value of an expression once it is truthy."""


@asynccontextmanager
async def browsing(
    words: Vocabulary, folder: Path, *, call_ms: float = 0.0, num_edges: int = 1, **edge: Any
) -> AsyncIterator[tuple[Mesh, Chromium]]:
    """A mesh whose edges serve pages to anybody, and Chromium; see `serving_pages`."""
    async with (
        serving_pages(words, folder, call_ms=call_ms, num_edges=num_edges, **edge) as mesh,
        running_chromium(folder) as browser,
    ):
        yield mesh, browser


@asynccontextmanager
async def serving_pages(
    words: Vocabulary, folder: Path, *, call_ms: float = 0.0, num_edges: int = 1, **edge: Any
) -> AsyncIterator[Mesh]:
    """A mesh whose edges serve pages to anybody. Each call of the engine takes `call_ms`."""
    options = FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=1.0, call_ms=call_ms)
    settings: dict[str, Any] = {
        "http": HttpConfig(port=0),
        "access": AccessConfig(http_anonymous=True),
        **edge,
    }
    async with running_mesh(
        words, folder, edges=num_edges, engine=lambda: FakeEngine(options), edge=settings
    ) as mesh:
        yield mesh


def address(edge: EdgeUnderTest) -> str:
    """Of the edge's pages."""
    return f"http://127.0.0.1:{edge.ports.http}/"


async def chat_page(
    browser: Chromium, edge: EdgeUnderTest, *, may_ask_anybody: bool = False
) -> Page:
    """The edge's page, ready for `ask`."""
    page = await browser.open()
    await page.send("Page.setBypassCSP", enabled=may_ask_anybody)
    await load(page, edge)
    return page


async def load(page: Tab, edge: EdgeUnderTest) -> None:
    """Load the edge's page in a tab, again if it is there already."""
    await page.goto(address(edge))
    await page.evaluate(_LOADED)


async def ask(page: Tab, **request: Any) -> dict[str, Any]:
    """All events of a chat, its text, its error, and what carried it."""
    found: dict[str, Any] = await page.evaluate(_call("it", {**ASK, **request}))
    return found


async def begin(page: Tab, name: str, *edges: str, **request: Any) -> None:
    """Begin a chat, and return when some of its text has come; `told` says how it ends."""
    await page.evaluate(f"void {_call(name, {**ASK, **request}, edges)}")
    await page.until(f"running[{name!r}]?.text || running[{name!r}]?.isOver")


async def told(page: Tab, name: str) -> dict[str, Any]:
    """See `ask`; once the chat is over."""
    found: dict[str, Any] = await page.until(f"running[{name!r}]?.isOver && told({name!r})")
    return found


def _call(name: str, request: Mapping[str, Any], edges: tuple[str, ...] = ()) -> str:
    return (
        f"ask({json.dumps(name)}, {json.dumps(request)}, {json.dumps(edges) if edges else 'null'})"
    )


def kinds(chat: Mapping[str, Any]) -> list[str]:
    """Types of its events, without repetitions."""
    found: list[str] = []
    for event in chat["events"]:
        if not found or found[-1] != event["type"]:
            found.append(event["type"])
    return found


async def reference(mesh: Mesh, request: dict[str, Any]) -> str:
    """What the native client gets for it."""
    async with mesh.client() as client:
        sampling = SamplingParams(**request["sampling"])
        chat = client.chat([Message("user", "Say it.")], sampling=sampling)
        async with chat:
            return (await chat.result()).text


@asynccontextmanager
async def relayed(edge: EdgeUnderTest) -> AsyncIterator[Nat]:
    """Pages are led to the edge's sessions by way of a relay that can be cut."""
    relay = Nat(edge.ports.main)
    await relay.start()
    http = edge.edge.http
    assert http is not None
    http.frontend.sessions.quic_port = relay.port
    try:
        yield relay
    finally:
        relay.close()
