"""Progress of bulk work on a terminal, or in lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from outrider.bulk.run import RunProgress

LINE_EVERY_S: Final = 5.0

Show = Callable[["RunProgress"], None]


@contextmanager
def shown(what: str, *, quiet: bool) -> Iterator[Show]:
    """A function that shows progress on stderr while the block lasts: a bar on a terminal, labelled
    `what`; elsewhere a line now and then."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        bars = _bars(console)
        try:
            yield _ProgressBar(bars, what)
        finally:
            bars.stop()
    else:
        yield ProgressLines(console.print, time.monotonic)


class ProgressLines:
    """A line every few seconds, and one at the end."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._write = write
        self._clock = clock
        self._begin = clock()
        self._last_at = self._begin

    def __call__(self, progress: RunProgress) -> None:
        now = self._clock()
        is_over = progress.num_shards == progress.total_shards
        if is_over or now >= self._last_at + LINE_EVERY_S:
            self._last_at = now
            self._write(progress_line(progress, now - self._begin))


def progress_line(progress: RunProgress, elapsed_s: float) -> str:
    """Progress, rate and time left."""
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
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)


class _ProgressBar:
    def __init__(self, bars: Bars, what: str) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=None)
        self._is_begun = False

    def __call__(self, progress: RunProgress) -> None:
        if not self._is_begun:
            # What an earlier run did does not count for the rate.
            # Not before: bars are drawn in a thread, and workers are forked before there is one.
            self._is_begun = True
            self._bars.start()
            self._bars.reset(self._task, total=progress.total_bytes, completed=progress.num_bytes)
        done = f"{progress.num_shards} of {progress.total_shards} shards"
        self._bars.update(self._task, completed=progress.num_bytes, description=done)
