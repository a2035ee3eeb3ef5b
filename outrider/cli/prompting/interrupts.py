"""Ctrl-C in a conversation: the first stops the reply under way, any other ends the command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


class Interrupts:
    """Who is to hear of Ctrl-C. Without `listening` it does what asyncio makes of it."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._is_over = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Around the conversation, in its task. Raises KeyboardInterrupt when it is to end."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a conversation is a task"
        loop.add_signal_handler(signal.SIGINT, self._interrupted, task)
        try:
            yield
        except asyncio.CancelledError:
            if self._is_over:
                raise KeyboardInterrupt from None
            raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Around a reply: Ctrl-C calls `stop`, once, and the reply is to end by that."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _interrupted(self, task: asyncio.Task[object]) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        else:
            self._is_over = True
            task.cancel()
