"""Markup of a model's chats: tokens such as `<think>` and `<tool_call>`, which are text to a reader
and structure to the model. Pure.

Vocabularies list them among the texts that are matched before BPE, as they do spaces in a row and
tags of HTML. The template and the model write markup; the same characters in a user's message, a
system's or a tool's result are text, as the names of control tokens are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from outrider.models.pre_tokenizers import Pipeline
from outrider.models.sentencepiece_bpe import SpacePipeline, SpacePrefix
from outrider.reply_parsing.formats import MARKUP

if TYPE_CHECKING:
    from outrider.models.bpe import VocabularyDefinition

_SHAPE: Final = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|◁[^◁▷\s]+▷")


def markup_ids(definition: VocabularyDefinition) -> tuple[int, ...]:
    """Ids of user-defined tokens in brackets that the chat template names, or that are known to
    enclose reasoning and calls. None where a text's ids depend on whether such a token stands
    before it, and none that merges make of text."""
    if not _is_split_alike(definition.pipeline):
        return ()
    made = {merge.replace(" ", "", 1) for merge in definition.merges}

    def is_markup(text: str) -> bool:
        is_named = text in MARKUP or text in definition.chat_template
        return is_named and text not in made and _SHAPE.fullmatch(text) is not None

    return tuple(i for i in sorted(definition.user_defined_ids) if is_markup(definition.tokens[i]))


def _is_split_alike(pipeline: object) -> bool:
    """Whether a text behind a user-defined token has the ids that it has behind a control token."""
    if isinstance(pipeline, SpacePipeline):
        return pipeline.prefix is SpacePrefix.NONE or pipeline.finds_added_as_typed
    return isinstance(pipeline, Pipeline)


class TokenFinder:
    """Finds tokens in a text by their texts."""

    def __init__(self, tokens: Sequence[str]) -> None:
        # Longest first: where two tokens begin, the tokenizer takes the longer one.
        longest_first = sorted(tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._firsts = {token[0] for token in tokens}
        self._lasts = {token[-1] for token in tokens}
        self._first = next(iter(self._firsts)) if len(self._firsts) == 1 else ""
        self._max_chars = len(longest_first[0]) if tokens else 0
        self._begun = {token[:at] for token in tokens for at in range(1, len(token))}
        self._ended = {token[at:] for token in tokens for at in range(1, len(token))}

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Every token in `text`. Tokens with one first character are looked for where it stands:
        that is many times faster over a long text, and lets go of the GIL."""
        if not self._first:
            yield from self._any.finditer(text)
            return
        at = text.find(self._first)
        while at >= 0:
            match = self._any.match(text, at)
            if match is not None:
                yield match
            at = text.find(self._first, match.end() if match is not None else at + 1)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a text, and whether each is a token; no part is empty."""
        at = 0
        for match in self.matches(text):
            if match.start() > at:
                yield text[at : match.start()], False
            yield match.group(), True
            at = match.end()
        if at < len(text):
            yield text[at:], False

    def open_ends(self, text: str) -> tuple[int, int]:
        """Characters at the beginning and at the end of a text that text before and behind it could
        complete to a token."""
        most = self._max_chars - 1
        if most < 1:
            return 0, 0
        head, tail = text[:most], text[-most:]
        num_head = num_tail = 0
        if not self._lasts.isdisjoint(head):
            num_head = next((n for n in range(len(head), 0, -1) if head[:n] in self._ended), 0)
        if not self._firsts.isdisjoint(tail):
            num_tail = next((n for n in range(len(tail), 0, -1) if tail[-n:] in self._begun), 0)
        return num_head, min(num_tail, len(text) - num_head)
