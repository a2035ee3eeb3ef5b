"""Chromium before the pages of an edge: whatever a test does there, the page logs no error and its
policy is not violated."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tools.renderers import renderer, renderer_environment

AXE: Final = Path(__file__).parents[1] / ".tools/clients/node/node_modules/axe-core/axe.min.js"
"""Of npm; `make client-packages` installs it."""
PATIENCE_MS: Final = 300_000
"""For a busy machine."""
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1360, "height": 860}}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
_NOTES: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (it) => {
  window.violations.push(`${it.violatedDirective}: ${it.blockedURI} ${it.sample}`);
});
window.guesses = [];
new MutationObserver((changes) => {
  for (const { target, addedNodes } of changes) {
    for (const it of [target.parentElement, ...addedNodes]) {
      if (it?.matches?.(".guess") || it?.querySelector?.(".guess")) {
        window.guesses.push(it.textContent);
      }
    }
  }
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""What a page was refused, and the guesses that it showed."""
_LOST: Final = ("Failed to load resource: net::ERR_", "Failed to establish a connection to ")
"""What Chromium itself logs of a connection that a test cut."""


@dataclass
class Watched:
    """A page, and what went wrong in it."""

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    may_lose: bool = False
    """Whether the test cuts connections."""

    def check(self) -> None:
        """Fail if the page logged an error or was refused anything by its policy."""
        assert self.page.evaluate("window.violations") == []
        errors = [it for it in self.errors if not (self.may_lose and it.startswith(_LOST))]
        assert errors == []


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Raises RuntimeError where there is none."""
    program = renderer("chromium")
    if program is None:
        raise RuntimeError("there is no chromium: install it, or run tools/setup.sh dev on Debian")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu"],
            env={**renderer_environment(Path(folder)), "HOME": folder},
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Browser, origin: str, path: str = "/", **options: Any) -> Iterator[Watched]:
    """A page of an edge in a profile of its own."""
    context = browser.new_context(base_url=origin, **(DESKTOP | options))
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_NOTES)
    try:
        yield watched(context, origin, path)
    finally:
        context.close()


def watched(context: BrowserContext, origin: str, path: str = "/") -> Watched:
    """One more page of a profile."""
    page = context.new_page()
    made = Watched(page, origin)
    page.on("console", lambda it: made.errors.append(it.text) if it.type == "error" else None)
    page.on("pageerror", lambda it: made.errors.append(str(it)))
    page.goto(path)
    return made


def axe(page: Page) -> list[str]:
    """What axe-core finds: rules, and where."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{it['id']}: {node['target']} {node['failureSummary']}"
        for it in found["violations"]
        for node in it["nodes"]
    ]
