"""The client of one chat: whether it is there, and what it has been told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outrider.errors import DuplicateSessionError
from services.edge.resumption.journal import Journal, Listener
from services.edge.session.events import ClientEvent, Commit, Failed, Provisional, Retract


class ClientStream(Protocol):
    """The way back to a client."""

    def send(self, payload: bytes) -> None:
        """Send one EdgeFrame."""
        ...

    def end(self, last: bytes = b"") -> None:
        """Nothing more follows, but `last`, if that is a frame."""
        ...


class Audience:
    """Tells the client of a chat what it lacks, whichever stream it listens on at the moment."""

    def __init__(self, stream: ClientStream, encode: Callable[[ClientEvent], bytes]) -> None:
        self._stream: ClientStream | None = stream
        self._encode = encode
        self._listener = Listener()
        self._is_muted = False
        self.journal = Journal()

    @property
    def is_present(self) -> bool:
        """Whether anybody listens."""
        return self._stream is not None

    @property
    def is_behind(self) -> bool:
        """Whether the chat has yet to reach what the client has of it already."""
        has, journal = self._listener, self.journal
        return has.upto > journal.upto or has.num_chars > journal.num_chars

    def listen(self, listener: Listener) -> None:
        """The client has so much of the chat, which is about to begin."""
        self._listener = listener

    def tell(self, event: ClientEvent) -> bool:
        """Note an event and pass on what of it is new to the client. True if the chat has just
        reached the client: provisional text has to begin anew."""
        if isinstance(event, Provisional | Retract) and (self._is_muted or self.is_behind):
            self._is_muted = True
            return False
        first_char = self.journal.num_chars
        self.journal.note(event)
        if self._stream is None:
            return False
        missing = self._listener.clip(event, first_char) if isinstance(event, Commit) else event
        if missing is not None:
            self._stream.send(self._encode(missing))
        reached = self._is_muted and not self.is_behind
        self._is_muted = self._is_muted and not reached
        return reached

    def join(self, stream: ClientStream, listener: Listener) -> None:
        """A client comes back, on another stream; the one before it, if it is still there, learns
        that it is not meant any more."""
        if self._stream is not None:
            error = DuplicateSessionError("another stream goes on with this chat; read that one")
            self._stream.end(self._encode(Failed(error)))
        self._stream, self._listener, self._is_muted = stream, listener, False
        for event in self.journal.replay(listener):
            stream.send(self._encode(event))

    def lose(self) -> None:
        """The client's connection is no more."""
        self._stream = None

    def end(self) -> None:
        """The chat is over."""
        if self._stream is not None:
            self._stream.end()
            self._stream = None
