"""A longer way to the region, for one chat: a development setting, to see what distance does.

Every frame of the chat's session takes half of the added round trip longer, both ways, in order. No
other session of the router's stream waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from outrider.codec.prompt_memory import PromptMemory
from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
)
from outrider.v1 import inference_pb2
from services.edge.upstream.link import Sink

MAX_ADDED_RTT_MS: Final = 300
MAX_ON_THE_WAY: Final = 4096
"""Frames of one session on the way, in one direction; beyond it the session ends."""


class SessionLink(Protocol):
    """What a chat asks of the way to its router (`RouterLink`, which says more of each)."""

    @property
    def address(self) -> str:
        """HOST:PORT of the router."""
        ...

    @property
    def prompts(self) -> PromptMemory:
        """This edge's prompts that the router has."""
        ...

    def open(self, sink: Sink, frame: inference_pb2.SessionUp) -> int:
        """Open a session and return its id. Raises UnavailableError, OverloadedError."""
        ...

    def draft(self, session_id: int, frame: inference_pb2.SessionUp) -> bool:
        """Queue drafts; False if they were dropped."""
        ...

    def send(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Queue a frame that the session cannot do without. Raises OverloadedError."""
        ...

    def cancel(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Queue the cancel of a session."""
        ...

    def forget(self, session_id: int) -> None:
        """The session needs no frame any more."""
        ...


def check_added_rtt(added_rtt_ms: int, *, is_allowed: bool) -> None:
    """Raises PermissionDeniedError for any distance where none may be added, InvalidRequestError
    for one that is too long."""
    if not added_rtt_ms:
        return
    if not is_allowed:
        raise PermissionDeniedError(
            "this edge adds no distance to chats; leave added_rtt_ms out, or set "
            "edge.added_distance = true, which is for development"
        )
    if not 0 <= added_rtt_ms <= MAX_ADDED_RTT_MS:
        raise InvalidRequestError(
            f"added_rtt_ms is 0 to {MAX_ADDED_RTT_MS} milliseconds, not {added_rtt_ms}"
        )


class _Way:
    """One direction: what is put in comes out after the delay, in order."""

    def __init__(self, delay_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, arrive: Callable[[], None]) -> None:
        """Call `arrive` after the delay. Raises OverloadedError if too much is on the way."""
        if len(self._waiting) >= MAX_ON_THE_WAY:
            raise OverloadedError("too many frames are on the added way; add less distance")
        self._waiting.append((self._loop.time() + self._delay_s, arrive))
        self._arm()

    def close(self) -> None:
        """What is on the way never arrives."""
        self._waiting.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._arrive)

    def _arrive(self) -> None:
        # All that is due: the loop's clock may be a little before the time that a timer is for.
        now = max(self._loop.time(), self._waiting[0][0])
        while self._waiting and self._waiting[0][0] <= now:
            self._waiting.popleft()[1]()
        self._arm()


class DistantLink:
    """The way of one session to its router, a round trip longer by so much. It opens one session:
    a SessionLink for one chat, and the Sink of that session."""

    def __init__(self, link: SessionLink, added_rtt_ms: int) -> None:
        self._link = link
        self._up = _Way(added_rtt_ms / 2000)
        self._down = _Way(added_rtt_ms / 2000)
        self._sink: Sink | None = None
        """The chat; None: it has none yet, or does not listen any more."""
        self._session_id: int | None = None
        """Id at the router; None: the opening is on the way."""

    @property
    def address(self) -> str:
        """HOST:PORT of the router."""
        return self._link.address

    @property
    def prompts(self) -> PromptMemory:
        """This edge's prompts that the router has, or is about to have."""
        return self._link.prompts

    def open(self, sink: Sink, frame: inference_pb2.SessionUp) -> int:
        """Open the session. Its id here is always 1: it has this link for itself."""
        self._sink = sink
        self._up.put(partial(self._open, frame))
        return 1

    def draft(self, session_id: int, frame: inference_pb2.SessionUp) -> bool:
        """Send drafts. They are not dropped: nobody could be told in time."""
        self.send(session_id, frame)
        return True

    def send(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Send a frame. Raises OverloadedError if too many are on the way."""
        self._up.put(partial(self._send, frame))

    def cancel(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Cancel the session at once: nobody waits for the sight of it."""
        self._up.close()
        if self._session_id is not None:
            self._link.cancel(self._session_id, frame)

    def forget(self, session_id: int) -> None:
        """The chat needs no frame any more."""
        self._sink = None
        self._up.close()
        self._down.close()
        if self._session_id is not None:
            self._link.forget(self._session_id)

    # As the session's sink.

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame came from the router."""
        try:
            self._down.put(partial(self._deliver, frame))
        except OverloadedError as error:
            self._lose(error)

    def region_lost(self, error: OutriderError) -> None:
        """The router's stream broke; what was on the way arrives before the chat hears of it."""
        self._up.close()
        try:
            self._down.put(partial(self._lose, error))
        except OverloadedError:
            self._lose(error)

    def _open(self, frame: inference_pb2.SessionUp) -> None:
        try:
            self._session_id = self._link.open(self, frame)
        except OutriderError as error:
            self.region_lost(error)

    def _send(self, frame: inference_pb2.SessionUp) -> None:
        if self._session_id is None:
            return  # the opening failed, and the chat will hear of it
        try:
            self._link.send(self._session_id, frame)
        except OutriderError as error:
            self.region_lost(error)

    def _deliver(self, frame: inference_pb2.SessionDown) -> None:
        if self._sink is not None:
            self._sink.region_frame(frame)

    def _lose(self, error: OutriderError) -> None:
        sink = self._sink
        if sink is not None:
            self.forget(1)
            sink.region_lost(error)
