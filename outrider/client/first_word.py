"""When the first word of a reply is on its reader's screen, and since when it stays (pure)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from outrider.word_boundaries import first_word_end

_HEAD_CHARS = 200
"""Characters of the reply that are compared; a longer first word is cut to this."""
_MAX_SNAPSHOTS = 256
"""Screen states kept until the word is final; beyond it the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The first characters on screen from a time on."""

    at: float
    text: str
    num_final: int
    """Characters of it that are committed."""


class FirstWord:
    """The first word of one reply (`outrider.word_boundaries`); times are those given to `see`.

    A word is on screen when its last letter is, provisional or committed. Which word is the
    reply's is known only once it is final, so all times are None before.
    """

    def __init__(self) -> None:
        self._snapshots: deque[_Snapshot] = deque(maxlen=_MAX_SNAPSHOTS)
        self._is_known = False
        self.shown_at: float | None = None
        """Time at which the first completed word appeared on screen, whether it stayed or not;
        None: not yet."""
        self.shown_early = False
        """Whether that word, or the text behind it, was provisional at that time."""
        self.shown_right = False
        """Whether it is the reply's first word; blanks before it do not count."""
        self.staying_at: float | None = None
        """Time since which the reply's first word has stood on screen without being taken back."""
        self.final_at: float | None = None
        """Time at which the reply's first word was committed."""

    def see(self, committed: str, provisional: str, now: float, *, is_whole: bool = False) -> None:
        """This is the text from `now` on; `is_whole` if the reply has ended with it."""
        if self._is_known:
            return
        self._record((committed[:_HEAD_CHARS] + provisional)[:_HEAD_CHARS], len(committed), now)
        is_whole = is_whole or len(committed) > _HEAD_CHARS
        end = first_word_end(committed[:_HEAD_CHARS], is_whole=is_whole)
        if end is not None:
            self._judge(committed[:end])

    def _record(self, text: str, num_committed: int, now: float) -> None:
        num_final = min(num_committed, len(text))
        last = self._snapshots[-1] if self._snapshots else None
        if last is None or (last.text, last.num_final) != (text, num_final):
            self._snapshots.append(_Snapshot(now, text, num_final))

    def _judge(self, word: str) -> None:
        """Set the times, now that `word` is known to be the reply's first word, with the text
        before it."""
        self._is_known = True
        for snapshot in reversed(self._snapshots):
            if not _shows(snapshot.text, word):
                break
            self.staying_at = snapshot.at
        self.final_at = next(
            snapshot.at for snapshot in self._snapshots if snapshot.num_final >= len(word)
        )
        shown, first = self._first_shown(word)
        self.shown_at = first.at
        self.shown_early = first.num_final < max(len(shown), len(word))
        self.shown_right = shown.lstrip() == word.lstrip()
        self._snapshots.clear()

    def _first_shown(self, word: str) -> tuple[str, _Snapshot]:
        """The first word that was completed on screen, and the snapshot in which it was: it is
        completed when another character follows, when it is taken back, or when it is final."""
        shown = ""
        since = None
        for snapshot in self._snapshots:
            if since is not None and not snapshot.text.startswith(shown):
                return shown, since
            end = first_word_end(snapshot.text, is_whole=False)
            begun = snapshot.text[:end] if any(char.isalnum() for char in snapshot.text) else ""
            if begun != shown:
                shown, since = begun, snapshot
            if since is not None and (end is not None or snapshot.num_final >= len(word)):
                return shown, since
        return word, self._snapshots[-1]  # a reply without a letter in it


def _shows(text: str, word: str) -> bool:
    """Whether a text begins with this word, and not with a longer one."""
    if not text.startswith(word):
        return False
    return first_word_end(text, is_whole=True) == len(word)
