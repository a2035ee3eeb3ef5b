"""Splits what a model thinks, between <think> and </think> at the beginning of its reply, from what
it answers. Pure.

Line breaks at both ends of the thought, and before the answer, are the template's and left out.
Where a text was cut into pieces makes no difference.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from outrider.reply_parsing.formats import END_OF_THINK, THINK

MAX_SPACES: Final = 64
"""Most spaces before <think>, and line breaks before </think>. With more, the reply has no
reasoning, or they belong to it."""


class _State(Enum):
    START = auto()
    THOUGHT_BEGINS = auto()
    THOUGHT = auto()
    ANSWER_BEGINS = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """One reply. `push` its text, then `finish` once."""

    def __init__(self, *, begins_in_reasoning: bool = False) -> None:
        """`begins_in_reasoning`: the prompt ends in <think>."""
        self._state = _State.THOUGHT_BEGINS if begins_in_reasoning else _State.START
        self._held = ""
        self.num_taken = 0
        """Code points of the reply before its answer."""

    @property
    def num_held(self) -> int:
        """Characters that are kept."""
        return len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer that this text adds."""
        if self._state is _State.ANSWER:
            return "", text
        self.num_taken += len(text)
        thought, answer = self._step(self._held + text)
        self.num_taken -= len(answer)
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """The reasoning and the answer that were held back."""
        held, self._held = self._held, ""
        if self._state is _State.START:
            self.num_taken -= len(held)
            return "", held
        return held, ""

    def _step(self, text: str) -> tuple[str, str]:
        self._held = ""
        thought = ""
        if self._state is _State.START:
            begun = text.lstrip()
            is_open = THINK.startswith(begun[: len(THINK)])
            if not is_open or len(text) - len(begun) > MAX_SPACES:
                self._state = _State.ANSWER
                return "", text
            if len(begun) < len(THINK):
                self._held = text
                return "", ""
            self._state, text = _State.THOUGHT_BEGINS, begun[len(THINK) :]
        if self._state is _State.THOUGHT_BEGINS:
            text = text.lstrip("\n")
            if not text:
                return "", ""
            self._state = _State.THOUGHT
        if self._state is _State.THOUGHT:
            thought, found, text = text.partition(END_OF_THINK)
            if not found:
                keep = len(thought) - _num_kept(thought)
                self._held = thought[keep:]
                return thought[:keep], ""
            breaks = min(MAX_SPACES, len(thought) - len(thought.rstrip("\n")))
            thought = thought[: len(thought) - breaks]
            self._state = _State.ANSWER_BEGINS
        answer = text.lstrip("\n")
        if answer:
            self._state = _State.ANSWER
        return thought, answer


def _num_kept(text: str) -> int:
    """Characters at the end that may belong to </think>, and the line breaks in front of those."""
    begun = next((n for n in range(len(END_OF_THINK) - 1, 0, -1) if _ends_in(text, n)), 0)
    before = text[: len(text) - begun]
    return begun + min(MAX_SPACES, len(before) - len(before.rstrip("\n")))


def _ends_in(text: str, num_chars: int) -> bool:
    return text.endswith(END_OF_THINK[:num_chars])
