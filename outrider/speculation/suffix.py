"""Drafts copied from what followed the longest repeated suffix (arXiv 2411.04975), and from what
followed the last few words in other replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outrider.errors import ConfigError
from outrider.speculation.automaton import SuffixAutomaton
from outrider.speculation.ngrams import MAX_ORDER, extended, keys
from outrider.speculation.phrases import Phrases
from outrider.speculation.survival import HitRates, Outcome, copy_bin

_SURE = 0.9
"""A copy this likely is not compared with other guesses."""
LEAST_SURVIVAL = 0.01
"""A chain ends where it is less likely than this to be right so far."""


class Guess(NamedTuple):
    """A chain of drafts; empty when nothing is known."""

    ids: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    """Per draft, the estimated chance that it and all before it are right; never rising."""


class SuffixDrafter:
    """Drafts for one sequence: extend it by every token of prompt and reply, in order.

    At each place the copy and what `phrases` knows compete by their hit rates, measured on this
    reply and on those before it; without `phrases` there are copies alone. Memory is bounded: at
    least the last half of `max_context` tokens is known, at most all of it. A second automaton
    starts at the half and takes over at the end, so no single token pays for a rebuild.
    Deterministic.
    """

    def __init__(
        self,
        max_context: int = 8192,
        phrases: Phrases | None = None,
        *,
        num_prompt: int = 0,
        sampled: bool = False,
    ) -> None:
        """The first num_prompt tokens are the prompt: nothing but copies is learned from them.
        `sampled`: whether the reply is, rather than greedy."""
        if max_context < 2:
            raise ConfigError(f"max_context must be at least 2 tokens, not {max_context}")
        self._max_context = max_context
        self._automaton = SuffixAutomaton()
        self._successor: SuffixAutomaton | None = None
        self._phrases = phrases
        learned = phrases or Phrases()
        self._average = learned.average(sampled=sampled)
        self._calibration = learned.calibration(sampled=sampled)
        self._rates = HitRates(self._average.rates)
        self._num_prompt_left = num_prompt
        self._promised: list[float] = []
        self._contexts: list[int] = []
        """Keys of the sequence's last tokens, if there are phrases to look up."""
        self._first: list[int] = []
        """The contexts of the last chain's first token..."""
        self._guesses: list[tuple[int, int]] | None = None
        """...and what `phrases` knows of it, once it was asked."""
        self._notes: list[tuple[list[int], int, bool]] = []
        """Of the last extend(): contexts, what followed, whether `phrases` was asked for it."""

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens that are final, and learn from them how good the guesses made were."""
        self.study()
        num_prompt = min(self._num_prompt_left, len(ids))
        self._num_prompt_left -= num_prompt
        for token in ids[:num_prompt]:
            self._append(token)
        if num_prompt and self._phrases is not None:
            self._contexts = keys(self._automaton.text[-MAX_ORDER:])
        outcomes: list[Outcome] = []
        for token in ids[num_prompt:]:
            outcomes += self._outcomes(token)
            self._append(token)
        self._observe(outcomes)

    def study(self) -> None:
        """Learn from the tokens of the last extend() what follows what. Changes later guesses
        only, so it may be done whenever there is time; the next extend() sees to it otherwise."""
        if self._phrases is None:
            return
        notes, self._notes = self._notes, []
        outcomes: list[Outcome] = []
        for contexts, token, asked in notes:
            if not asked:
                outcomes += _hits(self._phrases.guesses(contexts), token)
            self._phrases.learn(contexts, token)
        if notes:
            self._phrases.count()
        self._observe(outcomes)

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, least: float = LEAST_SURVIVAL
    ) -> Guess:
        """Up to `max_tokens` guesses for the tokens after the sequence and these ids, which are not
        kept, as long as they are this likely to be right so far."""
        chain = list(tentative_ids)
        end, length = self._match(chain)
        contexts = self._contexts_after(chain)
        self._first, self._guesses = contexts, None
        promised, chance = list[float](), 1.0
        while len(promised) < max_tokens:
            copied = self._copied(chain, end) if length else -1
            token, rate = self._best(copied, length, contexts)
            chance *= rate
            if chance < least:
                break
            chain.append(token)
            promised.append(chance)
            contexts = extended(contexts, token)
            end, length = (end + 1, length + 1) if token == copied else self._match(chain)
        self._promised = promised
        return Guess(tuple(chain[len(tentative_ids) :]), self._calibration.apply(promised))

    def observe(self, num_verified: int, num_accepted: int) -> None:
        """The first num_verified drafts of the last guess were verified, and the first
        num_accepted of them were right."""
        self._calibration.observe(self._promised[:num_verified], num_accepted)

    def _copied(self, chain: Sequence[int], end: int) -> int:
        """What follows index `end`; past the text the copy runs on into the chain."""
        text = self._automaton.text
        return text[end + 1] if end + 1 < len(text) else chain[end + 1 - len(text)]

    def _best(self, copied: int, length: int, contexts: list[int]) -> tuple[int, float]:
        """The likeliest next token and its hit rate; rate 0 if there is none."""
        rates = self._rates.rates
        token, rate = copied, rates[copy_bin(length)] if length else 0.0
        if self._phrases is not None and rate < _SURE:
            for other, which in self._guesses_of(contexts):
                if rates[which] > rate:
                    token, rate = other, rates[which]
        return token, rate

    def _guesses_of(self, contexts: list[int]) -> list[tuple[int, int]]:
        """What `phrases` knows; of a chain's first token it is asked once."""
        assert self._phrases is not None
        if contexts is not self._first:
            return self._phrases.guesses(contexts)
        if self._guesses is None:
            self._guesses = self._phrases.guesses(contexts)
        return self._guesses

    def _contexts_after(self, chain: Sequence[int]) -> list[int]:
        contexts = self._contexts
        for token in chain:
            contexts = extended(contexts, token)
        return contexts

    def _match(self, chain: Sequence[int]) -> tuple[int, int]:
        """Where the longest suffix of the sequence and `chain` occurred: its end and length."""
        automaton = self._automaton
        state, length, end = automaton.match_state, automaton.match_length, automaton.match_end
        for token in chain:
            state, length = automaton.step(state, length, token)
            end = automaton.end_of(state)
        return end, length

    def _outcomes(self, token: int) -> list[Outcome]:
        """Of the guesses for the token that is about to be appended."""
        automaton, outcomes = self._automaton, list[Outcome]()
        if automaton.match_length:
            hit = automaton.text[automaton.match_end + 1] == token
            outcomes.append((copy_bin(automaton.match_length), hit))
        if self._phrases is not None:
            guesses = self._guesses if self._contexts == self._first else None
            self._notes.append((self._contexts, token, guesses is not None))
            outcomes += _hits(guesses or (), token)
            self._contexts = extended(self._contexts, token)
        return outcomes

    def _observe(self, outcomes: Sequence[Outcome]) -> None:
        self._rates.observe(outcomes)
        self._average.observe(outcomes)

    def _append(self, token: int) -> None:
        self._automaton.append(token)
        if self._successor is not None:
            self._successor.append(token)
            if len(self._automaton.text) >= self._max_context:
                self._automaton, self._successor = self._successor, None
        if self._successor is None and 2 * len(self._automaton.text) >= self._max_context:
            self._successor = SuffixAutomaton()


def _hits(guesses: Iterable[tuple[int, int]], token: int) -> list[Outcome]:
    return [(which, guess == token) for guess, which in guesses]
