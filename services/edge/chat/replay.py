"""The events that a chat sent its client, kept so that a client that comes back gets the rest
(pure).

A ReplayLog keeps what is final, a ReplayCursor records how much of it one client has, a LogReader
reads in pieces what is missing there, a ReplayReader does so until a client has caught up, and a
ClientChannel sends it on the client's present stream. The log is the buffer: a client that comes
back is sent no more at a time than it reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outrider.errors import DuplicateSessionError
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional, Retracted
from services.edge.chat.logprob_log import LogprobLog
from services.edge.chat.stream import ClientStream
from services.edge.session.events import ClientEvent

_LOG_BYTES = 2048
"""Memory of an empty log: its objects, and its entries in the tables of chats."""
MAX_FRAME_LOGPROBS = 64
"""Tokens with log probabilities in one event, so that its frame stays below the limit: each has up
to 20 likely ones, and the text of one may have hundreds of bytes."""
_MAX_READ_IDS = 1024
"""Tokens without log probabilities in one piece of a log."""
_MAX_READ_CHARS = 8192
"""Code points of text in one piece of a log: at most 32 KiB, far below a client's limit of a
frame."""
_MAX_PIECES = 64
"""Texts of commits that are kept apart before they are joined: one string takes less memory."""


@dataclass(slots=True)
class ReplayCursor:
    """How much of a reply one client has. Only `clip` changes it."""

    upto: int = 0
    """Committed tokens."""
    num_chars: int = 0
    """Code points of committed text. The tokens do not say how many: text that was held back may
    come without a token at the end of a chat."""
    model_identity: bytes | None = None
    """Identity of the model of tokens that the client had already and that were clipped; it is sent
    with the next commit. None: nothing is pending."""
    is_inexact: bool = False
    """Whether clipped tokens were inexact; sent with the next commit, like `model_identity`."""

    def clip(self, commit: Committed, first_char: int) -> Committed | None:
        """The part of a commit that the client lacks, None if it has all. `first_char`: where the
        commit's text begins in the reply, in code points."""
        first = commit.upto - len(commit.ids)
        if self._lacks_just(commit, first, first_char):
            self.upto = commit.upto
            self.num_chars += len(commit.text)
            return commit
        ids = commit.ids[max(0, self.upto - first) :]
        text = commit.text[max(0, self.num_chars - first_char) :]
        if commit.model_identity is not None:
            self.model_identity = commit.model_identity
        self.is_inexact = self.is_inexact or commit.inexact
        if not ids and not text:
            return None
        self.upto = max(self.upto, commit.upto)
        self.num_chars = max(self.num_chars, first_char + len(commit.text))
        missing = Committed(
            text,
            ids,
            self.upto,
            model_identity=self.model_identity,
            inexact=self.is_inexact,
            logprobs=commit.logprobs[max(0, len(commit.logprobs) - len(ids)) :],
        )
        self.model_identity, self.is_inexact = None, False
        return missing

    def _lacks_just(self, commit: Committed, first: int, first_char: int) -> bool:
        """Whether all of a commit is missing, and nothing else, as of nearly every commit."""
        return (
            self.upto == first
            and self.num_chars == first_char
            and self.model_identity is None
            and not self.is_inexact
            and bool(commit.ids or commit.text)
            and len(commit.logprobs) <= len(commit.ids)
        )


def in_frames(commit: Committed) -> Iterator[Committed]:
    """The same as events of bounded size; all of the text comes with the first."""
    first = commit.upto - len(commit.ids)
    begin, end = 0, len(commit.ids) - len(commit.logprobs) + MAX_FRAME_LOGPROBS
    if not commit.logprobs or end >= len(commit.ids):
        yield commit
        return
    while begin < len(commit.ids):
        ids = commit.ids[begin:end]
        num_after = len(commit.ids) - begin - len(ids)
        logprobs = commit.logprobs[: len(commit.logprobs) - num_after]
        end_id = first + begin + len(ids)
        yield Committed(
            "" if begin else commit.text,
            ids,
            end_id,
            model_identity=None if begin else commit.model_identity,
            inexact=commit.inexact and not begin,
            logprobs=logprobs[max(0, len(logprobs) - len(ids)) :],
        )
        begin, end = begin + len(ids), begin + len(ids) + MAX_FRAME_LOGPROBS


class ReplayLog:
    """Final ids and text of one chat, that it was accepted, and how it ended. Only `append` changes
    it.

    It takes four bytes a token and the text itself, and what LogprobLog takes for chats that asked
    for log probabilities. Provisional text is not kept, since a client that comes back has none of
    it.
    """

    def __init__(self) -> None:
        self.accepted: Accepted | None = None
        """None: not yet."""
        self._ids = array("I")
        self._pieces: list[str] = []
        self._text_bytes = 0
        self._logprobs = LogprobLog()
        self.model_identity: bytes | None = None
        """Identity of the model that computed the last tokens; None: unknown."""
        self.is_inexact = False
        """Whether one model continued what another one had begun."""
        self.num_chars = 0
        self.done: Done | None = None
        """The chat's last event; None while it runs, and if it failed."""

    @property
    def upto(self) -> int:
        """Number of final tokens."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """All final tokens."""
        return tuple(self._ids)

    @property
    def num_bytes(self) -> int:
        """Estimated size in memory."""
        ids_bytes = self._ids.itemsize * len(self._ids)
        return _LOG_BYTES + ids_bytes + self._text_bytes + self._logprobs.num_bytes

    def append(self, event: ClientEvent) -> None:
        """Keep an event that the chat sent to its client, unless it is provisional."""
        if type(event) is Committed:
            self._commit(event)
        elif isinstance(event, Accepted):
            self.accepted = event
        elif isinstance(event, Done):
            self.done = event

    def after(self, cursor: ReplayCursor) -> Committed:
        """The next events that a client lacks, of bounded size, without the model's identity;
        empty: it has all."""
        first = cursor.upto
        scored = self.upto - len(self._logprobs)
        """The first token with log probabilities."""
        count = min(_MAX_READ_IDS, scored - first) if first < scored else MAX_FRAME_LOGPROBS
        ids = tuple(self._ids[first : first + count])
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        text = self._pieces[0] if self._pieces else ""
        end = first + len(ids)
        return Committed(
            text[cursor.num_chars : cursor.num_chars + _MAX_READ_CHARS],
            ids,
            end,
            logprobs=self._logprobs.some(first - scored, len(ids)) if first >= scored else (),
        )

    def _commit(self, commit: Committed) -> None:
        self._ids.extend(commit.ids)
        self.num_chars += len(commit.text)
        self._pieces.append(commit.text)
        if len(self._pieces) > _MAX_PIECES:
            self._pieces = ["".join(self._pieces)]
        text = commit.text
        self._text_bytes += len(text) if text.isascii() else len(text.encode())
        if commit.logprobs:
            self._logprobs.append(commit.logprobs)
        if commit.model_identity is not None:
            self.model_identity = commit.model_identity
        self.is_inexact = self.is_inexact or commit.inexact


class LogReader:
    """Reads the events of a log that a cursor lacks, while the log grows."""

    def __init__(self, log: ReplayLog, cursor: ReplayCursor) -> None:
        """`cursor` moves as the reader reads."""
        self._log = log
        self._cursor = cursor
        self._accepted: Accepted | None = None
        self._model_identity: bytes | None = None
        self._is_inexact = False
        self._has_ended = False
        """Whether Done was read. This and the three attributes above say what was read so far."""

    def next(self) -> ClientEvent | None:
        """The next event, of bounded size; None: there is none yet."""
        log = self._log
        if log.accepted is not self._accepted:
            self._accepted = log.accepted
            if log.accepted is not None:
                return log.accepted
        if (missing := self._missing(log)) is not None:
            return missing
        if log.done is not None and not self._has_ended:
            self._has_ended = True
            return log.done
        return None

    def _missing(self, log: ReplayLog) -> Committed | None:
        piece = log.after(self._cursor)
        if log.model_identity != self._model_identity:
            self._model_identity = log.model_identity
            piece = piece._replace(model_identity=log.model_identity)
        if log.is_inexact and not self._is_inexact:
            self._is_inexact = True
            piece = piece._replace(inexact=True)
        return self._cursor.clip(piece, self._cursor.num_chars)


class ReplayReader:
    """Reads what a client lacks until it has caught up; a Backlog."""

    def __init__(self, log: ReplayLog, cursor: ReplayCursor, token: Callable[[], str]) -> None:
        """`cursor`: how much of the chat the client has; it moves as the reader reads. `token`: see
        ClientChannel."""
        self._reader: LogReader | None = LogReader(log, cursor)
        """None: it is over."""
        self._token = token

    @property
    def is_over(self) -> bool:
        """See `Backlog.is_over`."""
        return self._reader is None

    def next(self) -> tuple[ClientEvent, str] | None:
        """See `Backlog.next`."""
        event = None if self._reader is None else self._reader.next()
        if event is None:
            self.stop()
            return None
        return event, self._token() if isinstance(event, Accepted) else ""

    def stop(self) -> None:
        """Nothing more of it is wanted."""
        self._reader = None


_SHOWN: Final = (Provisional, Retracted)


class ClientChannel:
    """Sends the client of one chat the events that it lacks, on its present stream. While a client
    that came back catches up, the chat's commits go to the log alone."""

    def __init__(
        self,
        stream: ClientStream,
        token: Callable[[], str],
        cursor: ReplayCursor,
    ) -> None:
        """`token`: the chat's resume token, which changes whenever a client comes back; `cursor`:
        how much of the chat the client has from an earlier run."""
        self._stream: ClientStream | None = stream
        self._token = token
        self._cursor = cursor
        self._is_muted = False
        """Whether provisional text was left out: it has to start over before more is sent."""
        self._backlog: ReplayReader | None = None
        """Events that a client that came back still lacks; None: it has caught up."""
        self._failure: Failed | None = None
        """How the chat ended while its client caught up."""
        self.log = ReplayLog()

    @property
    def is_present(self) -> bool:
        """Whether a client reads."""
        return self._stream is not None

    @property
    def is_behind(self) -> bool:
        """Whether the client has more of the reply, from an earlier run, than this run has
        committed."""
        cursor, log = self._cursor, self.log
        return cursor.upto > log.upto or cursor.num_chars > log.num_chars

    def tell(self, event: ClientEvent) -> bool:
        """Log an event and send what the client lacks of it. True if the chat has just caught up
        with the client: provisional text has to start over."""
        if type(event) is Committed:
            self._commit(event)
        else:
            if isinstance(event, _SHOWN) and (self._is_muted or self._has_to_wait()):
                self._is_muted = True
                return False
            self.log.append(event)
            if self._stream is not None:
                self._tell(self._stream, event)
        caught_up = self._is_muted and self._stream is not None and not self._has_to_wait()
        if caught_up:
            self._is_muted = False
        return caught_up

    def _commit(self, commit: Committed) -> None:
        first_char = self.log.num_chars
        self.log.append(commit)
        if self._stream is None or (self._backlog is not None and self._catches_up()):
            return
        missing = self._cursor.clip(commit, first_char)
        if missing is not None:
            for event in in_frames(missing) if missing.logprobs else (missing,):
                self._stream.tell(event)

    def join(self, stream: ClientStream, cursor: ReplayCursor) -> None:
        """The client comes back on another stream; the one before it, if it is still there, ends
        with an error."""
        self._stop_catching_up()
        if self._stream is not None:
            error = DuplicateSessionError("another stream continues this chat; read that one")
            self._stream.end(Failed(error))
        self._stream = stream
        self._cursor = cursor
        self._is_muted = False
        self._backlog = ReplayReader(self.log, cursor, self._token)
        stream.catch_up(self._backlog)

    def lose(self) -> None:
        """The client's connection was lost."""
        self._stop_catching_up()
        self._stream = None

    def end(self) -> None:
        """The chat is over. A client that catches up gets the rest from the log."""
        if self._stream is not None:
            self._stream.end(self._failure)
            self._stream = None

    def _catches_up(self) -> bool:
        """Whether the client still lacks commits from the time when it was away."""
        if self._backlog is not None and self._backlog.is_over:
            self._backlog = None
        return self._backlog is not None

    def _stop_catching_up(self) -> None:
        if self._backlog is not None:
            self._backlog.stop()
            self._backlog = None

    def _has_to_wait(self) -> bool:
        """Whether provisional text would stand where the client lacks, or has, final text."""
        return self.is_behind or self._catches_up()

    def _tell(self, stream: ClientStream, event: ClientEvent) -> None:
        if not self._catches_up():
            stream.tell(event, self._token() if isinstance(event, Accepted) else "")
        elif isinstance(event, Failed):
            self._failure = event  # the log keeps all others
