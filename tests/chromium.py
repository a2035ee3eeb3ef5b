"""Headless Chromium, driven over the pipe of its DevTools protocol, without a library for it.

    async with running_chromium(tmp_path) as browser:
        page = await browser.open("http://127.0.0.1:8080/")
        assert await page.evaluate("document.title") == "Outrider"

`tools/setup.sh dev` fetches the browser. A test that asks for it without it fails, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tools.renderers import renderer, renderer_environment

PATIENCE_S: Final = 120.0
_MAX_MESSAGE_BYTES: Final = 64 << 20
_COMMANDS_FD, _EVENTS_FD = 3, 4
"""Descriptors that Chromium reads commands from, and writes to."""


class PageError(Exception):
    """An expression failed in the page."""


def once_truthy(expression: str) -> str:
    """An expression for the value of this one once it is truthy."""
    return (
        f"(async () => {{ for (;;) {{ const it = await ({expression}); if (it) return it; "
        "await new Promise((go) => setTimeout(go, 10)); } })()"
    )


class Page:
    """A tab, and what it reported."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self.console: list[str] = []
        """Type and text of each message."""
        self.errors: list[str] = []
        """Exceptions that nothing caught, and errors that the browser itself reports, such as
        violations of the Content-Security-Policy."""

    async def send(self, method: str, **params: Any) -> Any:
        """Call a method of the DevTools protocol for this page."""
        return await self._browser.send(method, session=self._session, **params)

    async def goto(self, url: str) -> None:
        """Load a page; returns when it has loaded."""
        loaded = self._browser.await_event(self._session, "Page.loadEventFired")
        await self.send("Page.navigate", url=url)
        await asyncio.wait_for(loaded, PATIENCE_S)

    async def evaluate(self, expression: str, *, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression, awaited if it is a promise; what JSON has. Raises
        PageError."""
        async with asyncio.timeout(patience_s):
            told = await self.send(
                "Runtime.evaluate",
                expression=expression,
                awaitPromise=True,
                returnByValue=True,
                userGesture=True,
            )
        if "exceptionDetails" in told:
            details = told["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return told["result"].get("value")

    async def until(self, expression: str, *, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression once it is truthy, asked every few milliseconds in the
        page."""
        return await self.evaluate(once_truthy(expression), patience_s=patience_s)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """An event of this page."""
        if method == "Runtime.consoleAPICalled":
            said = [str(it.get("value", it.get("description"))) for it in params["args"]]
            self.console.append(f"{params['type']}: {' '.join(said)}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            told = details.get("exception", {}).get("description") or details["text"]
            self.errors.append(told)
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.errors.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")


class Chromium:
    """A running browser."""

    def __init__(self, commands: asyncio.StreamWriter, events: asyncio.StreamReader) -> None:
        self._commands = commands
        self._events = events
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._awaited: dict[tuple[str, str], list[asyncio.Future[Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def open(self, url: str = "about:blank") -> Page:
        """A page in a new tab, loaded."""
        target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))[
            "sessionId"
        ]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.send(f"{domain}.enable")
        if url != "about:blank":
            await page.goto(url)
        return page

    async def send(self, method: str, *, session: str = "", **params: Any) -> Any:
        """Call a method of the DevTools protocol. Raises PageError."""
        self._last_id += 1
        number = self._last_id
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        told = {"id": number, "method": method, "params": params}
        if session:
            told["sessionId"] = session
        self._commands.write(json.dumps(told).encode() + b"\0")
        await self._commands.drain()
        return await answer

    def await_event(self, session: str, method: str) -> asyncio.Future[Any]:
        """The parameters of the next such event of a page."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault((session, method), []).append(future)
        return future

    async def listen(self) -> None:
        """Take answers and events until the browser ends."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                told = json.loads((await self._events.readuntil(b"\0"))[:-1])
                self._heard(told)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PageError("the browser ended"))

    def _heard(self, told: dict[str, Any]) -> None:
        if "id" in told:
            answer = self._answers.pop(told["id"])
            if answer.cancelled():
                return
            if "error" in told:
                answer.set_exception(PageError(told["error"]["message"]))
            else:
                answer.set_result(told["result"])
            return
        session, method = told.get("sessionId", ""), told["method"]
        for future in self._awaited.pop((session, method), []):
            if not future.done():
                future.set_result(told["params"])
        if (page := self._pages.get(session)) is not None:
            page.heard(method, told["params"])


@asynccontextmanager
async def running_chromium(folder: Path, *more: str) -> AsyncIterator[Chromium]:
    """A browser with an empty profile below `folder`; `more`: switches of its command line."""
    program = renderer("chromium")
    assert program is not None, "there is no chromium: run tools/setup.sh dev"
    home = folder / "chromium"
    home.mkdir(exist_ok=True)
    command: Sequence[str] = (
        *(str(program), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"),
        *("--remote-debugging-pipe", f"--user-data-dir={home}/profile", *more, "about:blank"),
    )
    read_commands, write_commands = os.pipe()
    read_events, write_events = os.pipe()
    redirected = f'exec "$@" {_COMMANDS_FD}<&{read_commands} {_EVENTS_FD}>&{write_events}'
    with (home / "log.txt").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 (a browser is not waited for)
            ["bash", "-c", redirected, "bash", *command],
            pass_fds=(read_commands, write_events),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**renderer_environment(home), "HOME": str(home)},
        )
    os.close(read_commands)
    os.close(write_events)
    loop = asyncio.get_running_loop()
    events = asyncio.StreamReader(limit=_MAX_MESSAGE_BYTES)
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(events), os.fdopen(read_events, "rb")
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(write_commands, "wb"),
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    browser = Chromium(writer, events)
    listening = asyncio.create_task(browser.listen())
    try:
        yield browser
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        with contextlib.suppress(AttributeError):  # asyncio's, once the browser has closed its end
            transport.abort()
        reading.close()
        shutil.rmtree(home / "profile", ignore_errors=True)
