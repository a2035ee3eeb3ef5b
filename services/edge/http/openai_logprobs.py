"""Log probabilities in the form of the OpenAI API's chats and completions (pure)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from outrider.sampling.params import MAX_LOGPROBS
from outrider.session.types import ScoredToken, TokenLogprobs
from services.edge.http.openai_errors import refused

_T = TypeVar("_T")
_NONE: Final = -1
"""Value of SamplingParams.num_logprobs for none."""


class TopLogprob(msgspec.Struct, kw_only=True):
    """One of the likeliest tokens in a place of the reply."""

    token: str
    """The token's text; incomplete characters are U+FFFD."""
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """A token of the reply."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log probabilities of a message or its new part: all tokens that the model wrote, including
    those of tool calls and reasoning."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Log probabilities of a text or its new part; lists of one entry for each token."""

    tokens: list[str]
    """A token that is part of a character is written as `bytes:\\xe2\\x82`."""
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | UnsetType = UNSET
    """The likeliest tokens, and the text's own, if they were asked for."""
    text_offset: list[int]
    """Code points before each, in the text of the choice."""


_encode: Final = msgspec.json.Encoder().encode


def _written(values: Iterable[_T]) -> list[_T]:
    """The same values as encoded JSON, only for an encoder. Values kept for a JSON body are stored
    so: as objects they take twice the memory, and encoding all of a long reply at once would hold
    the event loop."""
    return cast("list[_T]", [msgspec.Raw(_encode(value)) for value in values])


def chat_count(logprobs: bool | None, top_logprobs: int | None) -> int:
    """SamplingParams.num_logprobs of a chat. Raises InvalidRequestError."""
    if not logprobs:
        if top_logprobs:
            raise refused("top_logprobs", "top_logprobs goes with logprobs; set logprobs to true")
        return _NONE
    return _checked("top_logprobs", top_logprobs or 0)


def completion_count(logprobs: int | None) -> int:
    """SamplingParams.num_logprobs of a completion. Raises InvalidRequestError."""
    return _NONE if logprobs is None else _checked("logprobs", logprobs)


def _checked(name: str, count: int) -> int:
    if not 0 <= count <= MAX_LOGPROBS:
        raise refused(name, f"{name} is a number of tokens, 0 to {MAX_LOGPROBS}")
    return count


def chat_logprobs(entries: Iterable[TokenLogprobs]) -> ChatLogprobs:
    """Entries in the form of chats."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=_text(entry.chosen),
                logprob=entry.chosen.logprob,
                bytes=list(entry.chosen.text),
                top_logprobs=[
                    TopLogprob(token=_text(it), logprob=it.logprob, bytes=list(it.text))
                    for it in entry.top
                ],
            )
            for entry in entries
        ]
    )


def written_logprobs(entries: Iterable[TokenLogprobs]) -> list[TokenLogprob]:
    """Entries in the form of chats as encoded JSON, only for an encoder."""
    return _written(chat_logprobs(entries).content)


def _text(token: ScoredToken) -> str:
    return token.text.decode(errors="replace")


class CompletionOffsets:
    """Counts the characters before each token of one text."""

    def __init__(self, begin: int) -> None:
        """`begin`: code points before the first token that comes here."""
        self._at = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.kept: CompletionLogprobs | None = None
        """Log probabilities passed to `keep`, only for an encoder; None: none were."""

    def keep(self, entries: Sequence[TokenLogprobs], *, with_top: bool) -> None:
        """Keep the next tokens, to be written with all others at the end."""
        made = self.told(entries, with_top=with_top)
        if made.top_logprobs is not UNSET:
            made.top_logprobs = _written(made.top_logprobs)
        if (kept := self.kept) is None:
            self.kept = made
            return
        kept.tokens += made.tokens
        kept.token_logprobs += made.token_logprobs
        kept.text_offset += made.text_offset
        if kept.top_logprobs is not UNSET:
            kept.top_logprobs += made.top_logprobs or ()

    def told(self, entries: Sequence[TokenLogprobs], *, with_top: bool) -> CompletionLogprobs:
        """The next tokens in the form of completions."""
        made = CompletionLogprobs(
            tokens=[], token_logprobs=[], top_logprobs=[] if with_top else UNSET, text_offset=[]
        )
        for chosen, top in entries:
            made.tokens.append(_name(chosen))
            made.token_logprobs.append(chosen.logprob)
            made.text_offset.append(self._at)
            self._at += len(self._decoder.decode(chosen.text))
            if made.top_logprobs is not UNSET:
                # Two tokens may have one name: the likelier one has it.
                named: dict[str, float] = {}
                for token in (*top, chosen):
                    named.setdefault(_name(token), token.logprob)
                made.top_logprobs.append(named)
        return made


def _name(token: ScoredToken) -> str:
    try:
        return token.text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.text)
