"""What a chat has told its client for good, kept small so that it can be told again."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from services.edge.session.events import Accepted, ClientEvent, Commit, Done, Span

_ENTRY_BYTES = 2048
"""What an empty journal is counted for: its objects, and the tables that know of it."""
_LOSSY_BYTES = 128


@dataclass(slots=True)
class Listener:
    """How much of a reply one client has. Only `clip` changes it."""

    upto: int = 0
    """Committed tokens."""
    num_chars: int = 0
    """Code points of committed text. Text that was held back may come without a token, at the end
    of a chat, so the tokens alone do not say how much text there is."""

    def clip(self, commit: Commit, first_char: int) -> Commit | None:
        """What of a commit the client lacks, None if that is nothing. `first_char` is where the
        commit's text stands in the reply."""
        first = commit.upto - len(commit.ids)
        ids = commit.ids[max(0, self.upto - first) :]
        text = commit.text[max(0, self.num_chars - first_char) :]
        if not ids and not text:
            return None
        marks = [
            (number, span)
            for number, span in zip(commit.lossy, commit.lossy_spans, strict=True)
            if number >= self.upto
        ]
        self.upto = max(self.upto, commit.upto)
        self.num_chars = max(self.num_chars, first_char + len(commit.text))
        lossy, spans = tuple(n for n, _ in marks), tuple(s for _, s in marks)
        return Commit(text, ids, self.upto, lossy, spans)


class Journal:
    """Final ids and text of one chat, that it was accepted, and how it ended.

    Four bytes a token and the text itself; provisional text is not kept, since a client that comes
    back has none of it. Only `note` changes a journal.
    """

    def __init__(self) -> None:
        self._accepted: Accepted | None = None
        self._ids = array("I")
        self._pieces: list[str] = []
        self._text_bytes = 0
        self._lossy: list[tuple[int, Span]] = []
        self.num_chars = 0
        self.done: Done | None = None
        """How the chat ended; None while it goes on, and if it failed."""

    @property
    def upto(self) -> int:
        """Number of final tokens."""
        return len(self._ids)

    @property
    def num_bytes(self) -> int:
        """Estimated size in memory."""
        fixed = _ENTRY_BYTES + _LOSSY_BYTES * len(self._lossy)
        return fixed + self._ids.itemsize * len(self._ids) + self._text_bytes

    def note(self, event: ClientEvent) -> None:
        """The chat told its client something."""
        match event:
            case Accepted():
                self._accepted = event
            case Commit():
                self._commit(event)
            case Done():
                self.done = event

    def replay(self, listener: Listener) -> list[ClientEvent]:
        """What brings a client up to date, and `listener` with it."""
        told: list[ClientEvent] = [] if self._accepted is None else [self._accepted]
        lossy, spans = tuple(n for n, _ in self._lossy), tuple(s for _, s in self._lossy)
        whole = Commit("".join(self._pieces), tuple(self._ids), self.upto, lossy, spans)
        if (missing := listener.clip(whole, 0)) is not None:
            told.append(missing)
        return told if self.done is None else [*told, self.done]

    def _commit(self, commit: Commit) -> None:
        self._ids.extend(commit.ids)
        self.num_chars += len(commit.text)
        # A string per commit would take more memory than the text.
        self._pieces.append(commit.text)
        if len(self._pieces) > 64:
            self._pieces = ["".join(self._pieces)]
        self._text_bytes += len(commit.text.encode())
        self._lossy += zip(commit.lossy, commit.lossy_spans, strict=True)
