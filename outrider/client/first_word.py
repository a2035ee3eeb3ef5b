"""When the first word of a reply is on its reader's screen, and since when it stays (pure)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from outrider.word_boundaries import first_word_end

_HEAD_CHARS = 200
"""A longer first word is judged by so many characters."""
_MAX_LOOKS = 256
"""Kept until the word is final; of a reply that changes its mind oftener, the oldest go."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The beginning of the screen, as it became at a time."""

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
        self._looks: deque[_Look] = deque(maxlen=_MAX_LOOKS)
        self._is_known = False
        self.shown_at: float | None = None
        """When the first word that was ever completed on screen was, whether it stayed or not."""
        self.shown_early = False
        """Whether it, or what followed it, was provisional then."""
        self.shown_right = False
        """Whether that was the reply's first word; blanks before it do not count."""
        self.staying_at: float | None = None
        """Since when the reply's first word has stood on screen without being taken back."""
        self.final_at: float | None = None
        """When it was committed."""

    def see(self, committed: str, provisional: str, now: float, *, is_whole: bool = False) -> None:
        """This is the text from `now` on; `is_whole` if the reply has ended with it."""
        if self._is_known:
            return
        self._look((committed[:_HEAD_CHARS] + provisional)[:_HEAD_CHARS], len(committed), now)
        is_whole = is_whole or len(committed) > _HEAD_CHARS
        end = first_word_end(committed[:_HEAD_CHARS], is_whole=is_whole)
        if end is not None:
            self._judge(committed[:end])

    def _look(self, text: str, num_committed: int, now: float) -> None:
        num_final = min(num_committed, len(text))
        last = self._looks[-1] if self._looks else None
        if last is None or (last.text, last.num_final) != (text, num_final):
            self._looks.append(_Look(now, text, num_final))

    def _judge(self, word: str) -> None:
        """The reply's first word, with what stands before it, is this."""
        self._is_known = True
        for look in reversed(self._looks):
            if not _shows(look.text, word):
                break
            self.staying_at = look.at
        self.final_at = next(look.at for look in self._looks if look.num_final >= len(word))
        shown, first = self._first_shown(word)
        self.shown_at = first.at
        self.shown_early = first.num_final < max(len(shown), len(word))
        self.shown_right = shown.lstrip() == word.lstrip()
        self._looks.clear()

    def _first_shown(self, word: str) -> tuple[str, _Look]:
        """The first word that was completed on screen, and the look at which it was: when another
        character followed it, when it was taken back as it stood, or when it was final."""
        shown, since = "", None
        for look in self._looks:
            if since is not None and not look.text.startswith(shown):
                return shown, since
            end = first_word_end(look.text, is_whole=False)
            begun = look.text[:end] if any(char.isalnum() for char in look.text) else ""
            if begun != shown:
                shown, since = begun, look
            if since is not None and (end is not None or look.num_final >= len(word)):
                return shown, since
        return word, self._looks[-1]  # a reply without a letter in it


def _shows(text: str, word: str) -> bool:
    """Whether a text begins with this word, and not with a longer one."""
    if not text.startswith(word):
        return False
    return first_word_end(text, is_whole=True) == len(word)
