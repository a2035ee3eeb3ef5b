"""What a stream has before its chat can begin: it counts as a chat under way, and is kept for no
client that goes away, for a request that is sent again waits again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog

from outrider.errors import CancelledError, MalformedFrameError, OutriderError
from outrider.session.client import Done, Failed
from outrider.session.types import FinishReason, Timings, Usage
from services.edge.chat.chat import AskedChat
from services.edge.chat.context import EdgeContext
from services.edge.session.events import CancelAsked, ChatAsked, ClientFailed, Input

log = structlog.get_logger()


class Waiting(ABC):
    """Handles a stream until its chat begins or has failed; a ChatHandler."""

    is_placed = False

    def __init__(self, asked: AskedChat, context: EdgeContext, leave: Callable[[], None]) -> None:
        """`leave` is called if the chat does not begin. Its request came now."""
        self._loop = asyncio.get_running_loop()
        self._asked = asked
        self._context = context
        self._leave = leave
        self._asked_at = self._loop.time()
        self.closed = False
        context.telemetry.chat_opened()

    @property
    def waited_s(self) -> float:
        """Seconds since the request came."""
        return self._loop.time() - self._asked_at

    @abstractmethod
    def _give_up(self) -> None:
        """What it waited for is not wanted any more."""

    def _go_on(self, begin: Callable[[], None]) -> None:
        """The wait is over: `begin` gives the stream to its next handler. It has to see to `leave`
        itself, also if it fails."""
        self.closed = True
        asked, context = self._asked, self._context
        try:
            begin()
        except Exception as failure:
            error = _error_of(failure)
            context.telemetry.record_unopened(asked.request, self.waited_s, error)
            asked.stream.end(Failed(error.bare()))
        finally:
            context.telemetry.chat_closed()

    def _fail(self, error: OutriderError) -> None:
        self._end(error, Failed(error.bare()))

    def _end(self, error: OutriderError, last: Done | Failed | None) -> None:
        self.closed = True
        self._give_up()
        self._leave()
        self._asked.stream.end(last)
        self._context.telemetry.record_unopened(self._asked.request, self.waited_s, error)
        self._context.telemetry.chat_closed()

    # For the stream.

    def feed(self, item: Input) -> None:
        """The client said something further, or the stream ends, for this reason."""
        if self.closed:
            return
        match item:
            case ClientFailed(error):
                self._fail(error)
            case ChatAsked():
                self._fail(
                    MalformedFrameError("a second request is out of place; a stream is one chat")
                )
            case CancelAsked():
                took = Timings(total_ms=self.waited_s * 1000)
                done = Done(FinishReason.CANCELLED, Usage(), Timings(), took, 0, "", "")
                self._end(CancelledError("the client cancelled"), done)
            case _:
                self.client_lost()

    def token_arrived(self) -> None:  # noqa: B027 (nothing to do)
        """There is no token yet."""

    def client_lost(self) -> None:
        """The client is gone."""
        if not self.closed:
            self._end(CancelledError("the client is gone"), None)


def _error_of(failure: Exception) -> OutriderError:
    if isinstance(failure, OutriderError):
        return failure
    log.error("chat_failed", exc_info=failure)
    return OutriderError(f"the edge failed in this chat: {type(failure).__name__}")
