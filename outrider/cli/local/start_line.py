"""The line that says how far a start is: kept up to date on a terminal, printed now and then
elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console

LINE_EVERY_S: Final = 5.0

Show = Callable[[str], None]
"""Takes the newest text. "" is ignored: nothing is known yet."""


@contextlib.contextmanager
def start_line(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Show a start on the console while the block lasts. `clock` gives seconds."""
    if not console.is_terminal:
        yield _Lines(console, clock)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(f"starting: {text}") if text else None


class _Lines:
    """A line every few seconds, the first one after as many."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._last_at = clock()

    def __call__(self, text: str) -> None:
        now = self._clock()
        if text and now >= self._last_at + LINE_EVERY_S:
            self._last_at = now
            self._console.print(f"starting: {text}")
