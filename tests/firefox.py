"""Headless Firefox, driven over WebDriver BiDi (W3C).

    async with running_firefox(tmp_path) as page:
        await page.goto("http://127.0.0.1:8080/")
        assert await page.evaluate("document.title") == "Outrider"

`tools/setup.sh dev` fetches the browser. A test that asks for it without it fails, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from tests.chromium import PATIENCE_S, PageError, once_truthy
from tools.renderers import renderer, renderer_environment

ENTER: Final = "\ue007"
"""The key, as WebDriver writes it."""
_MAX_MESSAGE_BYTES: Final = 64 << 20
_LISTENING: Final = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
_PREFERENCES: Final[Mapping[str, bool | int | str]] = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}
"""Nothing of its own goes to the network."""


class FirefoxPage:
    """The browser's one tab, and what it reported."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._context = ""
        self.errors: list[str] = []
        """Errors on its console: what scripts wrote there, exceptions that nothing caught, and
        violations of the Content-Security-Policy."""

    async def begin(self) -> None:
        """Begin the session of the protocol."""
        await self.send("session.new", capabilities={})
        contexts = (await self.send("browsingContext.getTree"))["contexts"]
        self._context = contexts[0]["context"]
        await self.send("session.subscribe", events=["log.entryAdded"])

    async def send(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol. Raises PageError."""
        self._last_id += 1
        number = self._last_id
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        return await answer

    async def goto(self, url: str) -> None:
        """Load a page; returns when it has loaded."""
        loading = self.send(
            "browsingContext.navigate", context=self._context, url=url, wait="complete"
        )
        await asyncio.wait_for(loading, PATIENCE_S)

    async def evaluate(self, expression: str, *, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression, awaited if it is a promise; what JSON has. Raises
        PageError."""
        async with asyncio.timeout(patience_s):
            told = await self.send(
                "script.evaluate",
                expression=f"(async () => JSON.stringify(await ({expression})))()",
                target={"context": self._context},
                awaitPromise=True,
                userActivation=True,
            )
        if told["type"] == "exception":
            raise PageError(told["exceptionDetails"]["text"])
        text = told["result"].get("value")
        return None if text is None else json.loads(text)

    async def until(self, expression: str, *, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression once it is truthy, asked every few milliseconds in the
        page."""
        return await self.evaluate(once_truthy(expression), patience_s=patience_s)

    async def type(self, *texts: str) -> None:
        """Press the keys of these texts, one after the other."""
        keys = [key for text in texts for key in text]
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        await self.send(
            "input.performActions",
            context=self._context,
            actions=[{"type": "key", "id": "keyboard", "actions": actions}],
        )

    async def listen(self) -> None:
        """Take answers and events until the browser ends."""
        async for message in self._socket:
            told = json.loads(message)
            if told["type"] == "event":
                entry = told["params"]
                if told["method"] == "log.entryAdded" and entry["level"] == "error":
                    self.errors.append(str(entry["text"]))
                continue
            answer = self._answers.pop(told["id"])
            if answer.cancelled():
                continue
            if told["type"] == "error":
                answer.set_exception(PageError(f"{told['error']}: {told['message']}"))
            else:
                answer.set_result(told["result"])


@asynccontextmanager
async def running_firefox(folder: Path) -> AsyncIterator[FirefoxPage]:
    """A browser with an empty profile below `folder`."""
    program = renderer("firefox-esr")
    assert program is not None, "there is no firefox-esr: run tools/setup.sh dev"
    home = folder / "firefox"
    profile = home / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    lines = (f"user_pref({json.dumps(n)}, {json.dumps(v)});\n" for n, v in _PREFERENCES.items())
    (profile / "user.js").write_text("".join(lines), "utf-8")
    log = home / "log.txt"
    own = ("--headless", "--no-remote", "--profile", str(profile))
    command = (str(program), *own, "--remote-debugging-port", "0", "about:blank")
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: ASYNC220 (a browser is not waited for)
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**renderer_environment(home), "HOME": str(home)},
        )
    try:
        async with connect(
            f"{await _address(process, log)}/session",
            max_size=_MAX_MESSAGE_BYTES,
            proxy=None,
        ) as socket:
            page = FirefoxPage(socket)
            listening = asyncio.create_task(page.listen())
            try:
                await page.begin()
                yield page
            finally:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        shutil.rmtree(profile, ignore_errors=True)


async def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it takes connections, once it does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            said = await asyncio.to_thread(log.read_text, "utf-8", errors="replace")
            if found := _LISTENING.search(said):
                return found[1]
            assert process.poll() is None, f"firefox ended; {log} says why"
            await asyncio.sleep(0.02)
