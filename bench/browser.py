"""Time from key press to visible text, by distance, from a browser's own clock: the chat page in
headless Chromium, with drafts and provisional text and without (plain streaming).

The page, the edge, a router and one replica are real processes on this machine. The way between
edge and region is made longer by the edge itself, for the page's chats (`added_rtt_ms`): both kinds
of chat come the same way, one at a time, the same prompts by turns, greedy. Chats share no cache
and nothing that was learnt (`trust = "chat"`), so none gains by what another one asked. A time
begins with the browser's own key event of Enter and ends with the second animation frame after
text stood in the page: then it was painted. Nothing is sent before Enter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from playwright.sync_api import Page

from bench.harness import Run, parser, start
from bench.harness.local_mesh import local_mesh
from bench.harness.prompts import interleaved, load_prompts
from tools.browsing import chromium, opened

RTTS_MS: Final = (0, 50, 150, 250)
MAX_TOKENS: Final = 48
MESH: Final = (
    "edge.added_distance=true",
    # Clients without a key, each of whose chats is alone.
    "edge.anonymous=true",
    "edge.access.http_anonymous=true",
    "edge.trust=chat",
    # Few sizes of calls, so that it starts in seconds; one chat needs no more, and no text changes.
    "inference.max_fixed_rows=4",
    "inference.warm_up_rows=16",
)
_PATIENCE_MS: Final = 300_000
_SETTINGS: Final = {"temperature": "0", "seed": "1", "max_tokens": str(MAX_TOKENS)}
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {**_SETTINGS, "speculation": "off", "provisional": False},
    "Outrider": {**_SETTINGS, "speculation": "on", "provisional": True},
}
"""Settings of the page, by kind of chat."""
_WATCH: Final = """
window.seen = null;
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.id === "draft") {
    window.seen = { at: event.timeStamp, text: null };
  }
}, true);
new MutationObserver(() => {
  const seen = window.seen;
  if (!seen || seen.isDue || !document.querySelector(".live .prose")?.textContent.trim()) return;
  seen.isDue = true;
  requestAnimationFrame(() => requestAnimationFrame((now) => { seen.text = now - seen.at; }));
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Notes the key press, and when text was painted after it."""
_NEWEST: Final = """() => new Promise((resolve) => {
  const opening = indexedDB.open("outrider", 1);
  opening.onsuccess = () => {
    const kept = opening.result.transaction("conversations").objectStore("conversations").getAll();
    kept.onsuccess = () => {
      const newest = kept.result.sort((one, other) => other.updatedAt - one.updatedAt)[0];
      resolve(newest?.nodes[newest.leaf] ?? null);
    };
  };
})"""
"""The newest reply as the page keeps it."""
_SLIDE: Final = """(ms) => {
  const slider = document.querySelector("#distance input");
  slider.value = String(ms);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One chat, by the browser's clock. Milliseconds from the key press."""

    visible_ms: float
    """The first text that was painted, right or wrong."""
    staying_ms: float
    """The first word that was never taken back, as the page itself measured it."""
    whole_ms: float
    text: str


def chat(page: Page, prompt: str) -> Seen:
    """Ask in a new conversation, and wait for the whole reply. Raises RuntimeError if the page says
    that it failed."""
    page.click("#new")
    page.fill("#draft", prompt)
    page.press("#draft", "Enter")
    page.wait_for_function("() => window.seen?.text ?? null", timeout=_PATIENCE_MS)
    page.wait_for_selector("#send:not([hidden])", timeout=_PATIENCE_MS)
    visible_ms: float = page.evaluate("window.seen.text")
    for _ in range(200):
        kept = page.evaluate(_NEWEST)
        if kept is not None and kept.get("error"):
            raise RuntimeError(f"the page shows: {kept['error']}")
        if kept is not None and kept.get("brought"):
            brought = kept["brought"]
            times = brought["firstLastingMs"], brought["totalMs"]
            return Seen(visible_ms, *times, kept["content"])
        page.wait_for_timeout(50)
    raise RuntimeError("the page did not keep the reply")


def measured(pages: Mapping[str, Page], prompts: Sequence[str]) -> Iterator[tuple[int, str, Seen]]:
    """RTT, kind of chat, and what was seen; distances and kinds by turns."""
    for turn, prompt in enumerate(prompts):
        for rtt_ms in RTTS_MS:
            for name in list(pages)[:: 1 if turn % 2 else -1]:
                pages[name].evaluate(_SLIDE, rtt_ms)
                yield rtt_ms, name, chat(pages[name], prompt)


def main() -> int:
    arguments = parser("browser", __doc__ or "")
    given = arguments.parse_args()
    run = start("browser", given)
    prompts = [it.text for it in interleaved(load_prompts(split="test"))]
    prompts = prompts[: 2 if run.quick else 10]
    found: dict[tuple[int, str], list[Seen]] = {}
    with ExitStack() as until_done:
        mesh = until_done.enter_context(local_mesh(settings=MESH, regions="us", http=True))
        origin = f"http://127.0.0.1:{mesh.state.service('edge')['http_port']}"
        browser = until_done.enter_context(chromium())
        run.setting("Chromium", version=browser.version)
        pages: dict[str, Page] = {}
        for name, settings in WAYS.items():
            page = until_done.enter_context(opened(browser, origin)).page
            page.add_init_script(_WATCH)
            page.evaluate(
                "it => localStorage.setItem('outrider.settings', it)", json.dumps(settings)
            )
            page.reload()
            page.wait_for_selector("#model option", state="attached", timeout=_PATIENCE_MS)
            page.wait_for_selector("#distance input", timeout=_PATIENCE_MS)
            pages[name] = page
            chat(page, "Say hello.")  # whatever happens only once has happened
        for rtt_ms, name, seen in measured(pages, prompts):
            found.setdefault((rtt_ms, name), []).append(seen)
            print(f"RTT {rtt_ms} ms, {name}: {seen.visible_ms:.0f} ms", file=sys.stderr)
    num_unequal = report(run, found)
    run.finish()
    return 1 if num_unequal else 0


def report(run: Run, found: Mapping[tuple[int, str], Sequence[Seen]]) -> int:
    """The table and the figures; returns how many texts differ between the two kinds."""
    table = run.table(
        "Time from key press to visible text in the chat page, by distance to the region",
        "RTT added, ms",
        "chats",
        "plain: first text, ms",
        "Outrider: first text, ms",
        "plain: first word that stays, ms",
        "Outrider: first word that stays, ms",
        "first word that stays, ratio",
        "texts that differ",
    )
    table.note("By the browser's clock, medians. Ratio: mean over prompts of Outrider over plain.")
    num_unequal, figures = 0, {}
    for rtt_ms in RTTS_MS:
        plain, ours = found[rtt_ms, "plain"], found[rtt_ms, "Outrider"]
        ratios = [b.staying_ms / a.staying_ms for a, b in zip(plain, ours, strict=True)]
        unequal = sum(a.text != b.text for a, b in zip(plain, ours, strict=True))
        num_unequal += unequal
        table.add(
            rtt_ms,
            len(plain),
            *(table.median([it.visible_ms for it in side]) for side in (plain, ours)),
            *(table.median([it.staying_ms for it in side]) for side in (plain, ours)),
            table.mean_ratio(ratios),
            unequal,
        )
        figures[str(rtt_ms)] = {
            "plain_visible_ms": round(median(it.visible_ms for it in plain), 1),
            "outrider_visible_ms": round(median(it.visible_ms for it in ours), 1),
            "plain_staying_ms": round(median(it.staying_ms for it in plain), 1),
            "outrider_staying_ms": round(median(it.staying_ms for it in ours), 1),
        }
        for name, side in (("plain", plain), ("Outrider", ours)):
            for what in ("visible_ms", "staying_ms", "whole_ms"):
                values = [getattr(it, what) for it in side]
                run.samples(f"{what}, {name}, RTT {rtt_ms} ms", values, unit="ms")
    run.figures["by_rtt_ms"] = figures
    run.figures["exact"] = num_unequal == 0
    return num_unequal


if __name__ == "__main__":
    sys.exit(main())
