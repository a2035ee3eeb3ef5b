"""What a user types in a conversation: lines, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_CHUNK_BYTES = 4096


class Lines:
    """Lines of standard input, one at a time.

    Each is read in a daemon thread from the bare descriptor. A thread of asyncio's executor would
    be waited for at the end, and one blocked in sys.stdin would keep its lock into the
    interpreter's shutdown: either way Ctrl-C would only work after Enter.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._rest = b""

    async def next(self, prompt: str) -> str | None:
        """The next line without its end; None at the end of input. A person is shown `prompt`."""
        if os.isatty(self._descriptor):
            print(prompt, end="", file=sys.stderr, flush=True)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()

        def settle(line: str | None) -> None:
            if not answer.done():
                answer.set_result(line)

        def read() -> None:
            line = self._read()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, line)

        threading.Thread(target=read, name="stdin", daemon=True).start()
        return await answer

    def _read(self) -> str | None:
        line = b"".join(self._pieces())
        # What is no UTF-8 becomes lone surrogates, which are refused where the line is used.
        return line.removesuffix(b"\n").decode(errors="surrogateescape") if line else None

    def _pieces(self) -> Iterator[bytes]:
        """The bytes up to the next line's end, that included, or to the end of input."""
        while b"\n" not in self._rest:
            try:
                more = os.read(self._descriptor, _CHUNK_BYTES)
            except OSError:  # the terminal is gone
                more = b""
            if not more:
                yield self._rest
                self._rest = b""
                return
            self._rest += more
        line, end, self._rest = self._rest.partition(b"\n")
        yield line + end


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
