"""Input of a conversation: messages from a line editor, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outrider.cli.prompting.commands import COMMANDS

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

MAX_HISTORY: Final = 1000
"""Messages that are kept for the arrow keys of later conversations."""


class Prompts:
    """Asks a person at a terminal, by prompt_toolkit: history, messages of several lines, pasted
    text as it is, and completion of commands."""

    def __init__(self, history: Path | None) -> None:
        """`history` is the file that keeps what was typed; None: nothing is kept."""
        # Imported here and below: only a conversation at a terminal needs the package.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        # On standard error, as all that is not the reply is.
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=_completer(),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=lambda width, line, wraps: "." * (width - 1) + " ",
            output=create_output(stdout=sys.stderr),
        )

    async def ask(self, prompt: str, typed: Callable[[str], None] | None = None) -> str | None:
        """The line typed; None at Ctrl-D. `typed` is told the text whenever that changes. Raises
        KeyboardInterrupt at Ctrl-C on an empty line."""
        buffer = self._session.default_buffer

        def changed(_: object) -> None:
            if typed is not None:
                typed(buffer.text)

        buffer.on_text_changed += changed
        try:
            # Ctrl-C is a key here; the signal, which others may send, stays with `Interrupts`.
            return await self._session.prompt_async(prompt, handle_sigint=False)
        except EOFError:
            return None
        finally:
            buffer.on_text_changed -= changed


def _keys() -> KeyBindings:
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _give_up(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _completer() -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class Commands(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            typed = document.text
            if typed.startswith("/"):
                for name, takes in COMMANDS.items():
                    if name.startswith(typed):
                        yield Completion(name, -len(typed), display_meta=takes)

    return Commands()


def _history(file: Path | None) -> History:
    """History of the newest lines, in a file that only this user can read; in memory if it cannot
    be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        kept = FileHistory(str(file))
        latest = list(kept.load_history_strings())  # the newest first
        if len(latest) > 2 * MAX_HISTORY:
            file.write_bytes(b"")
            for text in reversed(latest[:MAX_HISTORY]):
                kept.store_string(text)
    except OSError as error:
        print(f"outrider: what you type is not kept: {error}", file=sys.stderr)
        return InMemoryHistory()
    return kept


@contextlib.contextmanager
def typing_hidden(descriptor: int = 0) -> Iterator[None]:
    """Hide what is typed outside of prompts, which would appear in the middle of a reply. It is
    kept for the next prompt, as a shell does, unless Ctrl-C follows. Does nothing if this process
    is not in the foreground: the terminal would stop it (termios(3), tcsetattr in a background
    process)."""
    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            raise OSError
        before = termios.tcgetattr(descriptor)
    except (OSError, termios.error):  # no terminal
        yield
        return
    hidden = [*before]
    hidden[3] &= ~(termios.ECHO | termios.ICANON)  # Ctrl-C still is a signal: ISIG stays
    termios.tcsetattr(descriptor, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


class Interrupts:
    """Decides what Ctrl-C does. Outside of `listening`, asyncio's handling applies."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._is_over = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Wraps the conversation, in its task. Raises KeyboardInterrupt if Ctrl-C is to end it."""
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
        """Wraps a reply: Ctrl-C calls `stop`, once, which ends the reply."""
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
