"""Draws the mesh page and the comparison with plain streaming into docs/images, and records a reply
whose replica is killed and one that was begun before Enter, all in Chromium before a mesh of real
processes:
`python -m tools.mesh_pictures`. With `--only NAME` one of them (PICTURES).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page

from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local import development_key
from outrider.cli.local.state import running_mesh
from services.edge.session.ahead_plan import AheadPolicy
from services.edge.telemetry.edge import SEALED_TOKENS
from tools.browsing import PHONE, chromium, opened

PLACE: Final = Path(__file__).parents[1] / "docs" / "images"
SETTINGS: Final = (
    # All that may be begun before Enter is, so that it can be seen.
    f"edge.ahead.min_tokens={AheadPolicy().max_tokens}",
    "edge.added_distance=true",
    "inference.max_fixed_rows=4",
    "inference.warm_up_rows=16",
)
LONG: Final = "Tell me all that you know about the history of bread."
SHORT: Final = "What is photosynthesis?"
_PATIENCE_MS: Final = 300_000
_FRAME_MS: Final = 100
"""Pause between two frames of a recording; taking one takes as long again."""
_KEY_MS: Final = 60
_LOOK_MS: Final = 500
"""A pause before something is done that is to be seen."""
_LAST_MS: Final = 4000
"""How long the last frame of a recording is shown."""
_MAX_BYTES: Final = 1_500_000
_WATCHED_MS: Final = 12_000
"""How long the mesh page is watched before it is drawn: its lines are to have a length."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A mesh, and how a page reaches its edge."""

    mesh: LocalMesh
    origin: str
    key: str

    def ask(self, path: str, body: Any = None) -> Any:
        """JSON of one request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.origin}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def kill_busy_replica(self) -> None:
        """The one that has a chat, as soon as one has. Raises RuntimeError if none does."""
        for _ in range(300):
            busy = [it for it in self.ask("/v1/mesh")["replicas"] if it["running_sessions"]]
            if busy:
                break
            time.sleep(0.2)
        else:
            raise RuntimeError("no replica has a chat")
        state = running_mesh(self.mesh.state_dir)
        assert state is not None
        (row,) = [it for it in state.services if it["name"] == busy[0]["name"]]
        os.kill(row["pid"], signal.SIGKILL)

    def chat(self) -> None:
        """A reply of some length, which nobody reads."""
        messages = [{"role": "user", "content": LONG}]
        self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 300})


def _enter(page: Page, key: str) -> None:
    page.wait_for_selector("#key-dialog[open]", timeout=_PATIENCE_MS)
    page.fill("#key", key)
    page.keyboard.press("Enter")


def _draw(page: Page, name: str, *, full: bool = False) -> None:
    page.screenshot(path=PLACE / f"{name}.png", full_page=full)
    print(f"docs/images/{name}.png", flush=True)


def draw_mesh(browser: Browser, edge: Edge) -> None:
    """The mesh page while chats run and after a replica died: light, dark, and on a phone."""
    chats = [threading.Thread(target=edge.chat) for _ in range(4)]
    for it in chats:
        it.start()
    looks: dict[str, dict[str, Any]] = {
        "mesh-page": {"viewport": {"width": 1180, "height": 860}},
        "mesh-page-dark": {"viewport": {"width": 1180, "height": 860}, "color_scheme": "dark"},
        "mesh-page-phone": PHONE,
    }
    edge.kill_busy_replica()
    for name, options in looks.items():
        with opened(browser, edge.origin, "/ui/mesh", **options) as watched:
            _enter(watched.page, edge.key)
            watched.page.wait_for_selector(".mesh-moves li", timeout=_PATIENCE_MS)
            watched.page.wait_for_timeout(_WATCHED_MS)
            _draw(watched.page, name, full=True)
    for it in chats:
        it.join()


def draw_split(browser: Browser, edge: Edge) -> None:
    """One prompt with Outrider and by plain streaming, 150 ms farther from the region."""
    size: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}}
    with opened(browser, edge.origin, **size) as watched:
        page = watched.page
        _enter(page, edge.key)
        page.wait_for_selector("#distance input", timeout=_PATIENCE_MS)
        page.fill("#distance input", "150")
        page.click("#open-settings")
        page.fill("#max_tokens", "90")
        page.fill("#temperature", "0")
        page.keyboard.press("Enter")
        page.fill("#draft", SHORT)
        page.click("#compare")
        page.wait_for_selector("#split-verdict p", timeout=_PATIENCE_MS)
        _draw(page, "chat-page-split")


def record_kill(browser: Browser, edge: Edge) -> None:
    """A reply whose replica is killed in the middle, as an animated picture."""
    size: dict[str, Any] = {"viewport": {"width": 940, "height": 560}}
    with opened(browser, edge.origin, **size) as watched:
        page = watched.page
        _enter(page, edge.key)
        page.click("#toggle-panel")
        page.click("#open-settings")
        page.fill("#max_tokens", "160")
        page.fill("#temperature", "0")
        page.keyboard.press("Enter")
        page.fill("#draft", LONG)
        frames = [_frame(page)]
        page.press("#draft", "Enter")
        killer = threading.Timer(2.0, edge.kill_busy_replica)
        killer.start()
        _record_reply(page, frames)
        killer.join()
        _animate(frames, "chat-page-kill")


def record_ahead(browser: Browser, edge: Edge) -> None:
    """A question that is typed, and its reply, which was begun before Enter, as an animated
    picture; 150 ms farther from the region."""
    size: dict[str, Any] = {"viewport": {"width": 1000, "height": 600}}
    with opened(browser, edge.origin, **size) as watched:
        page = watched.page
        _enter(page, edge.key)
        page.wait_for_selector("#distance input", timeout=_PATIENCE_MS)
        page.fill("#distance input", "150")
        page.click("#open-settings")
        page.fill("#max_tokens", "60")
        page.fill("#temperature", "0")
        page.keyboard.press("Enter")
        page.check("#ahead")
        page.focus("#draft")
        frames = [_frame(page)]
        for key in SHORT:
            page.keyboard.type(key, delay=_KEY_MS)
            frames.append(_frame(page))
        while edge.mesh.metric("edge", SEALED_TOKENS) < AheadPolicy().max_tokens:
            page.wait_for_timeout(_FRAME_MS)
            frames.append(_frame(page))
        page.wait_for_timeout(_LOOK_MS)
        page.press("#draft", "Enter")
        _record_reply(page, frames)
        _animate(frames, "chat-page-ahead")


def _frame(page: Page) -> tuple[float, bytes]:
    """A picture, and when it was asked for, in seconds."""
    return time.monotonic(), page.screenshot()


def _record_reply(page: Page, frames: list[tuple[float, bytes]]) -> None:
    """Frames until the reply is over, and the last look of it."""
    frames.append(_frame(page))
    while page.locator("#stop").is_visible():
        page.wait_for_timeout(_FRAME_MS)
        frames.append(_frame(page))
    page.wait_for_timeout(_LOOK_MS)
    frames.append(_frame(page))


def _animate(frames: Sequence[tuple[float, bytes]], name: str) -> None:
    """Write frames as one WebP that repeats, in the time that they took. Raises RuntimeError if it
    gets too large."""
    images = [Image.open(io.BytesIO(it)).convert("RGB") for _, it in frames]
    shown_ms = [round((after[0] - before[0]) * 1e3) for before, after in pairwise(frames)]
    path = PLACE / f"{name}.webp"
    images[0].save(
        path,
        save_all=True,
        append_images=images[1:],
        duration=[*shown_ms, _LAST_MS],
        loop=0,
        quality=60,
        method=4,
    )
    if path.stat().st_size > _MAX_BYTES:
        raise RuntimeError(f"{path.name} has {path.stat().st_size} bytes; record less")
    print(f"docs/images/{name}.webp, {len(images)} frames", flush=True)


PICTURES: Final[dict[str, Callable[[Browser, Edge], None]]] = {
    "split": draw_split,
    "kill": record_kill,
    "ahead": record_ahead,
    "mesh": draw_mesh,
}


def main() -> None:
    """Raises RuntimeError where there is no Chromium, and Playwright's errors."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", choices=PICTURES, action="append", help="one of the pictures")
    given = arguments.parse_args()
    PLACE.mkdir(exist_ok=True)
    with local_mesh(settings=SETTINGS, http=True) as mesh, chromium() as browser:
        port = mesh.state.service("edge")["http_port"]
        edge = Edge(mesh, f"http://127.0.0.1:{port}", development_key.read(mesh.state_dir))
        for name in given.only or PICTURES:
            PICTURES[name](browser, edge)


if __name__ == "__main__":
    main()
