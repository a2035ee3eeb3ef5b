"""The same client for programs without an event loop: every call waits for its answer.

    with connect_blocking("quic://localhost:4433", ca="cert.pem") as client:
        with client.chat([Message("user", "Hello")]) as chat:
            for event in chat:
                ...

A thread of its own runs the loop, so that connections stay alive while the program does other
things. Methods may be called in any thread, one at a time for each chat.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from outrider.client.chat import Chat
from outrider.client.client import Client, Typing, connect
from outrider.client.events import ChatResult, EdgeInfo, Event, TextIds
from outrider.errors import UnavailableError
from outrider.models.chat import Message

T = TypeVar("T")
P = ParamSpec("P")
_LEFT: Final = "the client was left: connect again"


class _LoopThread:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_left = False
        """Whether no more work is taken. Work taken before is begun before the loop stops."""
        self._thread = threading.Thread(target=self._run, name="outrider-client", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop; returns its result and raises its errors."""
        with self._lock:
            if self._is_left:
                work.close()
                raise UnavailableError(_LEFT)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError(_LEFT) from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread; calls waiting in other threads raise UnavailableError."""
        with self._lock:
            self._is_left = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _cancel_all() -> None:
    """Nothing that another thread waits for stays without an answer."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _called(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The call of a function that has to be made in the loop."""
    return function(*args, **kwargs)


class BlockingClient:
    """A connection to an edge, made by `connect_blocking`. Any number of chats may run on it at
    once, from any thread."""

    def __init__(self, client: Client, thread: _LoopThread) -> None:
        self._client = client
        self._thread = thread

    @property
    def secret(self) -> bytes:
        """Identifies this client to its edges; see `Client.secret`."""
        return self._client.secret

    def chat(self, messages: Iterable[Message | Mapping[str, Any]], **options: Any) -> BlockingChat:
        """Start a chat, which is sent when entered: `with client.chat(...) as chat`. Options are
        those of `Client.chat`."""
        asked = list(messages)
        made = self._thread.wait(_called(self._client.chat, asked, **options))
        return BlockingChat(made, self._thread)

    def resume(self, resume_token: str, *, provisional: bool = True) -> BlockingChat:
        """Continue a chat that was started before; see `Client.resume`."""
        made = _called(self._client.resume, resume_token, provisional=provisional)
        return BlockingChat(self._thread.wait(made), self._thread)

    def typing(
        self,
        before: Iterable[Message | Mapping[str, Any]] = (),
        *,
        model: str = "",
        tools: Iterable[Mapping[str, Any] | str] = (),
        **options: Any,
    ) -> BlockingTyping:
        """Start computing a prompt while the user types it. Options are those of
        `Client.typing`."""
        typing = _called(
            self._client.typing, list(before), model=model, tools=list(tools), **options
        )
        made = self._thread.wait(typing)
        return BlockingTyping(made, self._thread)

    def describe(self) -> EdgeInfo:
        """Ask the edge for its name, region and models; see `Client.describe`."""
        return self._thread.wait(self._client.describe())

    def tokenize(self, text: str, *, model: str = "") -> TextIds:
        """Tokenize `text` with the edge's tokenizer; see `Client.tokenize`."""
        return self._thread.wait(self._client.tokenize(text, model=model))


class BlockingChat(Iterator[Event]):
    """A running chat. Enter it to send the request and iterate over it for the events; leaving it
    before its end cancels it. It raises what Chat raises."""

    def __init__(self, chat: Chat, thread: _LoopThread) -> None:
        self._chat = chat
        self._thread = thread

    @property
    def resume_token(self) -> str:
        """Token to continue this chat later; see `Chat.resume_token`."""
        return self._chat.resume_token

    def __enter__(self) -> BlockingChat:
        self._thread.wait(self._chat.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.wait(self._chat.__aexit__(kind, error, trace))

    def __iter__(self) -> BlockingChat:
        return self

    def __next__(self) -> Event:
        event = self._thread.wait(_next(self._chat))
        if event is None:
            raise StopIteration
        return event

    def cancel(self) -> None:
        """Ask the edge to stop; see `Chat.cancel`."""
        self._thread.wait(_called(self._chat.cancel))

    def result(self) -> ChatResult:
        """Wait for the whole reply, skipping events that were not read. Raises the error that ended
        the chat."""
        return self._thread.wait(self._chat.result())


class BlockingTyping:
    """A head start for the next chat; see `Typing`."""

    def __init__(self, typing: Typing, thread: _LoopThread) -> None:
        self._typing = typing
        self._thread = thread

    def update(self, text: str) -> None:
        """Report the whole text as it is now."""
        self._thread.wait(_called(self._typing.update, text))

    def close(self) -> None:
        """Drop the head start because the user gave up the text. A chat needs no such call."""
        self._thread.wait(_called(self._typing.close))


async def _next(chat: Chat) -> Event | None:
    """The next event; None after the last one, since StopAsyncIteration cannot leave a
    coroutine."""
    return await anext(chat, None)


@contextmanager
def connect_blocking(
    host: str, port: int | None = None, **options: Any
) -> Iterator[BlockingClient]:
    """Connect to the edge at `host`; options and errors are those of `connect`. Leaving the context
    ends every chat without waiting."""
    thread = _LoopThread()
    try:
        connecting = connect(host, port, **options)
        client = thread.wait(_entered(connecting))
        try:
            yield BlockingClient(client, thread)
        finally:
            thread.wait(_left(connecting))
    finally:
        thread.close()


async def _entered(connecting: AbstractAsyncContextManager[Client]) -> Client:
    return await connecting.__aenter__()


async def _left(connecting: AbstractAsyncContextManager[Client]) -> None:
    await connecting.__aexit__(None, None, None)
