"""Opens Open WebUI's page in Chromium and sends one prompt, first through Open WebUI's server, then
from the page itself ("direct connection"). `python -m tools.client_programs open-webui` runs it in
Open WebUI's own environment, which has Playwright, with these variables:

- OPENAI_API_BASE_URL, OPENAI_API_KEY: of the edge, as Open WebUI reads them.
- PORT: where Open WebUI listens; the edge must allow the origin http://127.0.0.1:PORT.
- DATA_DIR: an empty folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, Playwright, sync_playwright

from tools.renderers import renderer, renderer_environment

_START_S: Final = 180
_REPLY_MS: Final = 600_000
_INPUT: Final = "#chat-input"
_REPLY: Final = "#response-content-container"
_BACK_END: Final = """async ([method, path, body]) => {
  const answer = await fetch(path, {method, body: body && JSON.stringify(body), headers: {
    "Content-Type": "application/json", Authorization: `Bearer ${localStorage.token}`}});
  return await answer.json();
}"""
"""Asks Open WebUI's own server."""
_REPLIED: Final = "document.body.innerText.includes('Response complete')"
"""Whether the page told people who do not see it that the reply, or an error, is there."""
_IDLE: Final = """async () => {
  const chat = location.pathname.split("/c/")[1];
  const answer = await fetch(`/api/tasks/chat/${chat}`, {headers: {
    Authorization: `Bearer ${localStorage.token}`}});
  return (await answer.json()).task_ids?.length === 0;
}"""
"""Whether Open WebUI is done with the chat's title, tags and follow-up questions too."""


@contextmanager
def _server(address: str, log: Path) -> Iterator[None]:
    """Open WebUI's server, once it answers. Raises RuntimeError if it does not."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ("open-webui", "serve", "--host", "127.0.0.1", "--port", os.environ["PORT"])
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        end_s = time.monotonic() + _START_S
        while not _answers(f"{address}/health"):
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"Open WebUI does not start: {log.read_text()[-2000:]}")
            time.sleep(1)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _asked(page: Page, prompt: str) -> str:
    """The reply that the page shows to a prompt in a new chat."""
    page.goto("/", timeout=_START_S * 1000)
    page.wait_for_selector(_INPUT, timeout=_START_S * 1000)
    page.wait_for_function("localStorage.token")
    # What is new in this version is shown in front of the page.
    page.keyboard.press("Escape")
    page.locator(_INPUT).click()
    page.keyboard.type(prompt)
    page.keyboard.press("Enter")
    page.wait_for_url("**/c/**", timeout=_REPLY_MS)
    page.wait_for_function(_REPLIED, timeout=_REPLY_MS, polling=1000)
    page.wait_for_function(_IDLE, timeout=_REPLY_MS, polling=1000)
    reply = str(page.locator(_REPLY).last.inner_text())
    if not reply.strip():
        raise RuntimeError(f"the page shows no reply: {page.inner_text('body')}")
    return reply


def _connect_directly(page: Page) -> None:
    """The server forgets the edge, and the user's settings name it instead."""
    ask = _BACK_END
    servers: dict[str, Any] = page.evaluate(ask, ["GET", "/openai/config", None])
    page.evaluate(ask, ["POST", "/openai/config/update", {**servers, "ENABLE_OPENAI_API": False}])
    connections = {
        "OPENAI_API_BASE_URLS": [os.environ["OPENAI_API_BASE_URL"]],
        "OPENAI_API_KEYS": [os.environ["OPENAI_API_KEY"]],
        "OPENAI_API_CONFIGS": {"0": {"enable": True}},
    }
    settings = {"ui": {"directConnections": connections}}
    page.evaluate(ask, ["POST", "/api/v1/users/user/settings/update", settings])


def _converse(browsers: Playwright, address: str, prompt: str, folder: Path) -> None:
    chromium = renderer("chromium")
    if chromium is None:
        raise RuntimeError("there is no chromium: install it, or run tools/setup.sh dev on Debian")
    environment = {**renderer_environment(folder), "HOME": str(folder)}
    arguments = ["--no-sandbox", "--disable-gpu"]
    browser = browsers.chromium.launch(executable_path=chromium, args=arguments, env=environment)
    page = browser.new_page(base_url=address)
    page.on("pageerror", lambda error: print(f"error in the page: {error}"))
    print(f"--- through its server:\n{_asked(page, prompt)}")
    _connect_directly(page)
    print(f"--- from the page:\n{_asked(page, prompt)}")
    browser.close()


def main() -> None:
    """Prints both replies. Raises RuntimeError and Playwright's errors."""
    address = f"http://127.0.0.1:{os.environ['PORT']}"
    folder = Path(os.environ["DATA_DIR"])
    with _server(address, folder / "open-webui.log"), sync_playwright() as browsers:
        _converse(browsers, address, sys.argv[1], folder)


if __name__ == "__main__":
    main()
