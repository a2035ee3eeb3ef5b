"""Splits what a model thinks, between two tags at the beginning of its reply, from what it answers,
and counts its tokens. Pure.

Line breaks at both ends of the thought, and before the answer, are the template's and left out.
Where a text was cut into pieces makes no difference.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from outrider.reply_parsing.formats import ReasoningTags, ends_in

MAX_SPACES: Final = 64
"""Most spaces before the tag that begins reasoning, and line breaks before the one that ends it.
With more, the reply has no reasoning, or they belong to it."""


_MAX_TAG_TOKENS: Final = 16
"""Tokens at the end of a prompt in which a tag and the spaces behind it are looked for."""


class _State(Enum):
    START = auto()
    THOUGHT_BEGINS = auto()
    THOUGHT = auto()
    ANSWER_BEGINS = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """One reply. `push` its text, then `finish` once."""

    def __init__(self, tags: ReasoningTags, *, begins_in_reasoning: bool = False) -> None:
        """`begins_in_reasoning`: the prompt ends in the tag that begins reasoning."""
        self._tags = tags
        self._state = _State.THOUGHT_BEGINS if begins_in_reasoning else _State.START
        self._held = ""
        self.num_taken = 0
        """Code points of the reply before its answer."""

    @property
    def num_held(self) -> int:
        """Characters that are kept."""
        return len(self._held)

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends within reasoning."""
        return self._state in (_State.THOUGHT_BEGINS, _State.THOUGHT)

    @property
    def is_over(self) -> bool:
        """Whether no more reasoning can come."""
        return self._state in (_State.ANSWER_BEGINS, _State.ANSWER)

    @property
    def num_tag_chars(self) -> int:
        """Characters at the end of the text that may be the beginning of the tag that ends
        reasoning."""
        return _num_begun(self._held, self._tags.end) if self.is_thinking else 0

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
            think = self._tags.begin
            is_open = think.startswith(begun[: len(think)])
            if not is_open or len(text) - len(begun) > MAX_SPACES:
                self._state = _State.ANSWER
                return "", text
            if len(begun) < len(think):
                self._held = text
                return "", ""
            self._state, text = _State.THOUGHT_BEGINS, begun[len(think) :]
        if self._state is _State.THOUGHT_BEGINS:
            text = text.lstrip("\n")
            if not text:
                return "", ""
            self._state = _State.THOUGHT
        if self._state is _State.THOUGHT:
            thought, found, text = text.partition(self._tags.end)
            if not found:
                keep = len(thought) - _num_kept(thought, self._tags.end)
                self._held = thought[keep:]
                return thought[:keep], ""
            breaks = min(MAX_SPACES, len(thought) - len(thought.rstrip("\n")))
            thought = thought[: len(thought) - breaks]
            self._state = _State.ANSWER_BEGINS
        answer = text.lstrip("\n")
        if answer:
            self._state = _State.ANSWER
        return thought, answer


class ReasoningMeter:
    """Counts the tokens of one reply's reasoning. `push` the reply's ids."""

    def __init__(
        self,
        tags: ReasoningTags,
        bytes_of: Callable[[int], bytes],
        *,
        begins_in_reasoning: bool = False,
    ) -> None:
        """`bytes_of`: the bytes that an id adds to the reply's text."""
        self._splitter = ReasoningSplitter(tags, begins_in_reasoning=begins_in_reasoning)
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_tokens = 0
        """Tokens within reasoning so far, those of its tags left out as far as they are whole."""

    @property
    def is_thinking(self) -> bool:
        """Whether the ids so far end within reasoning."""
        return self._splitter.is_thinking

    @property
    def is_over(self) -> bool:
        """Whether no more reasoning can come."""
        return self._splitter.is_over

    @property
    def num_tag_chars(self) -> int:
        """Characters of the tag that ends reasoning which the ids so far may have begun."""
        return self._splitter.num_tag_chars

    @property
    def is_within_character(self) -> bool:
        """Whether the ids so far end within the bytes of a character."""
        return bool(self._decoder.getstate()[0])

    def push(self, token: int) -> None:
        """The next id."""
        if self._splitter.is_over:
            return
        was_thinking = self._splitter.is_thinking
        self._splitter.push(self._decoder.decode(self._bytes_of(token)))
        self.num_tokens += was_thinking and self._splitter.is_thinking


def begins_in_reasoning(
    tags: ReasoningTags, prompt: Sequence[int], bytes_of: Callable[[int], bytes]
) -> bool:
    """Whether a reply begins with reasoning: the ids of its prompt end in the tag that begins it.
    `bytes_of`: the bytes of an id, control tokens by their names."""
    end = b"".join(map(bytes_of, prompt[-_MAX_TAG_TOKENS:]))
    return ends_in(tags, end.decode(errors="replace"))


def _num_begun(text: str, tag: str) -> int:
    """Characters at the end that may belong to the tag."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


def _num_kept(text: str, tag: str) -> int:
    """Characters at the end that may belong to the tag, and the line breaks in front of those."""
    begun = _num_begun(text, tag)
    before = text[: len(text) - begun]
    return begun + min(MAX_SPACES, len(before) - len(before.rstrip("\n")))
