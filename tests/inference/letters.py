"""A vocabulary for FakeEngine: id n is one character, the first ids are special."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText

VOCABULARY_SIZE = 64
DIGEST = bytes(range(32))
STOP_ID = 2
_ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."


class LetterDetokenizer:
    """One character for each id, at once."""

    def push(self, token: int) -> str:
        return _ALPHABET[token]

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def finish(self) -> str:
        return ""


def new_reply(params: SamplingParams) -> ReplyText:
    return ReplyText(params, {STOP_ID}, LetterDetokenizer())
