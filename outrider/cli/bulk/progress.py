"""How far a bulk run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from outrider.bulk.run import Progress

LINE_EVERY_S: Final = 5.0

Show = Callable[["Progress"], None]


@contextmanager
def shown(*, quiet: bool) -> Iterator[Show]:
    """Shows what it is called with, on stderr, as long as the block lasts."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with _bars(console) as bars:
            yield _Bar(bars)
    else:
        yield Lines(console.print, time.monotonic)


class Lines:
    """A line every few seconds, and one at the end."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._write = write
        self._clock = clock
        self._begin = self._told = clock()

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        is_over = progress.num_shards == progress.total_shards
        if is_over or now >= self._told + LINE_EVERY_S:
            self._told = now
            self._write(line(progress, now - self._begin))


def line(progress: Progress, elapsed_s: float) -> str:
    """How far, how fast, and how long it will take."""
    done = progress.num_bytes - progress.num_earlier_bytes
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left = progress.total_bytes - progress.num_bytes
    eta = f"{left / rate:.0f} s left" if rate else "no rate yet"
    return (
        f"{progress.num_shards} of {progress.total_shards} shards, "
        f"{progress.num_bytes / 1e6:.1f} of {progress.total_bytes / 1e6:.1f} MB, "
        f"{progress.counts.tokens:,} tokens, {rate / 1e6:.1f} MB/s, {eta}"
    )


def _bars(console: Console) -> Bars:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()),
    )
    return Progress(*columns, console=console, transient=True)


class _Bar:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("tokenizing", total=None)
        self._is_begun = False

    def __call__(self, progress: Progress) -> None:
        if not self._is_begun:
            # What an earlier run did is no part of the speed.
            self._is_begun = True
            self._bars.reset(self._task, total=progress.total_bytes, completed=progress.num_bytes)
        done = f"{progress.num_shards} of {progress.total_shards} shards"
        self._bars.update(self._task, completed=progress.num_bytes, description=done)
