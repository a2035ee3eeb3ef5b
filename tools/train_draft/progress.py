"""How far a step is: a bar on a terminal, now and then a line anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

_WIDTH: Final = 30
_LINE_S: Final = 20.0
"""Seconds between two lines if the output is no terminal."""


def bar(share: float, left_s: float | None, text: str) -> str:
    """One line: the share done of a step, the time it has left if that is known, and a text."""
    filled = round(_WIDTH * min(1.0, max(0.0, share)))
    left = "" if left_s is None else f" {int(left_s) // 60}:{int(left_s) % 60:02d} left"
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}{left} {text}"


class Progress:
    """Shows the progress of one step."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._clock = clock
        self._began: tuple[float, float] | None = None
        self._shown_at = -_LINE_S
        self._length = 0

    def show(self, share: float, text: str) -> None:
        """So much is done. The time left is reckoned from the first call on: a step that is taken
        up has a share behind it already."""
        now = self._clock()
        if self._began is None:
            self._began = now, share
        began_at, began_share = self._began
        done = share - began_share
        left_s = (now - began_at) * (1 - share) / done if done > 0 else None
        line = bar(share, left_s, text)
        if self._is_terminal:
            self._stream.write("\r" + line.ljust(self._length))
            self._stream.flush()
            self._length = len(line)
        elif now - self._shown_at >= _LINE_S or share >= 1:
            self._shown_at = now
            self._stream.write(line + "\n")

    def close(self) -> None:
        """Leave the last state on a line of its own."""
        if self._is_terminal and self._length:
            self._stream.write("\n")
            self._stream.flush()
