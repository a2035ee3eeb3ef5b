"""Draws the guide's pictures of the chat page into docs/images, in Chromium, from real chats:
`python -m tools.page_pictures`. It starts a mesh, or takes one that runs: `--origin URL --key KEY`.

The pictures of guesses want something to be wrong: the mesh that this starts shows guesses that an
edge would usually keep to itself (SETTINGS).
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page

from bench.harness.local_mesh import local_mesh
from outrider.cli.local import development_key
from tools.browsing import DESKTOP, PHONE, chromium, opened

PLACE: Final = Path(__file__).parents[1] / "docs" / "images"
SETTINGS: Final = (
    "edge.display.threshold=0.05",
    "edge.display.first_threshold=0.05",
    "edge.display.max_risk=20",
    "edge.display.rewrite_interval_ms=0",
    "edge.display.caution=0",
)
"""Whatever the drafter guesses is shown."""
QUESTIONS: Final = (
    "What is photosynthesis?",
    "Write a Python function that adds two numbers.",
)
GUESSED: Final = "Tell me all that you know about the history of bread."
_LEAST_CHARS: Final = 300
"""Of a reply, before its guesses are drawn."""
_LEAST_REPLACED_CHARS: Final = 8
"""Of a correction that is drawn."""
_GAP_PX: Final = 4
_MARGIN_PX: Final = 8
_PATIENCE_MS: Final = 300_000


@contextlib.contextmanager
def _edge(origin: str, key: str) -> Iterator[tuple[str, str]]:
    """Address and key of an edge."""
    if origin:
        yield origin, key
        return
    with local_mesh(settings=SETTINGS, http=True) as mesh:
        port = mesh.state.service("edge")["http_port"]
        yield f"http://127.0.0.1:{port}", development_key.read(mesh.state_dir)


def _enter(page: Page, key: str) -> None:
    page.fill("#key", key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#model option", state="attached")


def _ask(page: Page, question: str) -> None:
    page.fill("#draft", question)
    page.press("#draft", "Enter")


def _converse(page: Page) -> None:
    for question in QUESTIONS:
        _ask(page, question)
        page.wait_for_selector("#stop:not([hidden])")
        page.wait_for_selector("#send:not([hidden])", timeout=_PATIENCE_MS)


def _draw(page: Page, name: str) -> None:
    page.wait_for_timeout(200)  # the caret and colours have settled
    page.screenshot(path=PLACE / f"{name}.png", animations="allow")
    print(f"docs/images/{name}.png")


def _draw_guess(browser: Browser, origin: str, key: str) -> None:
    """A reply half written, with guesses behind the final words, and some of them corrected."""
    size: dict[str, Any] = {"viewport": {"width": 900, "height": 520}, "device_scale_factor": 2}
    with opened(browser, origin, **size) as watched:
        page = watched.page
        _enter(page, key)
        _ask(page, GUESSED)
        page.wait_for_function(
            "n => (document.querySelector('.live .prose')?.textContent.length ?? 0) > n"
            " && (document.querySelector('.live .guess')?.textContent.length ?? 0) > 12",
            arg=_LEAST_CHARS,
            timeout=_PATIENCE_MS,
        )
        page.screenshot(path=PLACE / "chat-page-guess.png")
        print("docs/images/chat-page-guess.png")
        page.keyboard.press("Escape")
        watched.check()


def _draw_correction(browser: Browser, origin: str, key: str) -> None:
    """A wrong guess, and below it the same place the moment after final words replaced it."""
    size: dict[str, Any] = {"viewport": {"width": 760, "height": 460}, "device_scale_factor": 2}
    with opened(browser, origin, **size) as watched:
        page = watched.page
        _enter(page, key)
        _ask(page, GUESSED)
        page.wait_for_selector(".live .guess", timeout=_PATIENCE_MS)
        box = page.locator("#scroll").bounding_box()
        assert box is not None
        box["height"] -= _MARGIN_PX
        guessed = b""
        while True:
            shot = page.screenshot(clip=box)
            replaced = "".join(page.locator(".live .fixed").all_text_contents())
            if guessed and len(replaced) >= _LEAST_REPLACED_CHARS:
                break
            guessed = b"" if replaced else shot
            if page.locator("#send").is_visible():
                page.get_by_role("button", name="Retry").click()
        corrected = page.screenshot(clip=box)
        page.keyboard.press("Escape")
        watched.check()
    above, below = (Image.open(io.BytesIO(it)) for it in (guessed, corrected))
    both = Image.new("RGB", (above.width, above.height + below.height + _GAP_PX), "#b9bec4")
    both.paste(above, (0, 0))
    both.paste(below, (0, above.height + _GAP_PX))
    both.save(PLACE / "chat-page-correction.png", optimize=True)
    print("docs/images/chat-page-correction.png")


def draw(browser: Browser, origin: str, key: str) -> None:
    """All pictures."""
    PLACE.mkdir(exist_ok=True)
    _draw_guess(browser, origin, key)
    _draw_correction(browser, origin, key)
    with opened(browser, origin, **(DESKTOP | {"device_scale_factor": 1.5})) as watched:
        page = watched.page
        _enter(page, key)
        _converse(page)
        page.mouse.move(0, 0)
        _draw(page, "chat-page")
        page.emulate_media(color_scheme="dark")
        _draw(page, "chat-page-dark")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE["viewport"])
        page.keyboard.press("Escape")
        _draw(page, "chat-page-phone")
        watched.check()


def main() -> None:
    """Raises RuntimeError where there is no Chromium, and Playwright's errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--origin", default="", help="of an edge that runs, http://HOST:PORT")
    parser.add_argument("--key", default="", help="an API key for it")
    given = parser.parse_args()
    with _edge(given.origin, given.key) as (origin, key), chromium() as browser:
        draw(browser, origin, key)


if __name__ == "__main__":
    main()
