"""A vocabulary for FakeEngine: id n is one character, the first ids are special."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.reply_constraint import behind_reasoning, with_budget
from services.inference.grammars.token_table import TokenTable

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


class LetterWords:
    """What grammars are told of it."""

    size = VOCABULARY_SIZE
    stop_ids = frozenset({STOP_ID})
    usual_stop_id = STOP_ID
    strips_space = False

    def encode_reply(self, text: str) -> list[int]:
        return [_ALPHABET.index(letter) for letter in text if letter in _ALPHABET]

    def token_bytes(self, token_id: int) -> bytes:
        return _ALPHABET[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        return False


LETTER_TABLE = TokenTable(LetterWords())
LETTER_TABLE.missing_bytes = frozenset()
"""Many are, but the grammars of these tests force letters alone."""


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    return compile_grammar(LETTER_TABLE, grammar)


def constraint_of(sampling: SamplingParams, prompt: Sequence[int] = ()) -> Constraint | None:
    """At a reply's beginning."""
    grammar = behind_reasoning(LETTER_TABLE, sampling, prompt)
    constraint = None if grammar is None else compiled(grammar).constraint()
    return with_budget(LETTER_TABLE, sampling, prompt, constraint)


def new_reply(params: SamplingParams) -> ReplyText:
    return ReplyText(params, {STOP_ID}, LetterDetokenizer())
