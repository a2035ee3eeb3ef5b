"""Drafts copied from what followed the longest repeated suffix (SuffixDecoding, arXiv 2411.04975),
and from what followed the last few tokens in other replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider.errors import ConfigError
from outrider.speculation.calibration import HitRates, Outcome, copy_bin
from outrider.speculation.ngram_store import NgramStatistics
from outrider.speculation.ngrams import LONG_CONTEXT, extended, keys
from outrider.speculation.suffix_automaton import SuffixAutomaton

_SURE = 0.9
"""A copy with at least this hit rate is not compared with n-grams."""
LEAST_SURVIVAL = 0.01
"""A chain ends where it is less likely than this to be right so far."""


class DraftTokens(NamedTuple):
    """A chain of drafts; empty when nothing is known."""

    ids: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    """Per draft, the estimated chance that it and all before it are right; never rising."""


class SuffixDrafter:
    """Drafts for one sequence: extend it by every token of prompt and reply, in order.

    At each position the copy competes with the successors in `statistics` by hit rate, measured on
    this reply and on those before it; without `statistics` all drafts are copies. Memory is
    bounded: at least the last half of `max_context` tokens is known, at most all of it. A second
    automaton starts at the half and takes over at the end, so no single token pays for a rebuild.
    Deterministic.
    """

    def __init__(
        self,
        max_context: int = 8192,
        statistics: NgramStatistics | None = None,
        *,
        num_prompt: int = 0,
        sampled: bool = False,
    ) -> None:
        """The first num_prompt tokens are the prompt: they are copied from, and not learned into
        `statistics`. `sampled`: whether the reply is sampled rather than greedy."""
        if max_context < 2:
            raise ConfigError(f"max_context must be at least 2 tokens, not {max_context}")
        self._max_context = max_context
        self._automaton = SuffixAutomaton()
        self._successor: SuffixAutomaton | None = None
        self._statistics = statistics
        learned = statistics or NgramStatistics()
        self._average = learned.average(sampled=sampled)
        self._calibration = learned.calibration(sampled=sampled)
        self._rates = HitRates(self._average.rates)
        self._num_prompt_left = num_prompt
        self._raw_survival: list[float] = []
        self._contexts: list[int] = []
        """Keys of the sequence's last tokens; empty without `statistics`."""
        self._first: list[int] = []
        """Contexts of the last chain's first token."""
        self._first_successors: list[tuple[int, int]] | None = None
        """Their successors in `statistics`; None: not looked up yet."""
        self._pending: list[tuple[list[int], int, bool]] = []
        """From the last extend(): contexts, the token that followed, and whether the successors of
        these contexts were looked up (their outcome is then already counted)."""

    def extend(self, ids: Sequence[int]) -> None:
        """Append committed tokens and count which of the drafts for them were right."""
        self.update_statistics()
        if self._num_prompt_left:
            ids = self._extend_prompt(ids)
        outcomes: list[Outcome] = []
        for token in ids:
            self._note_outcomes(token, outcomes)
            self._append(token)
        self._observe(outcomes)

    def _extend_prompt(self, ids: Sequence[int]) -> Sequence[int]:
        """Append those that are of the prompt; returns the others."""
        num_prompt = min(self._num_prompt_left, len(ids))
        self._num_prompt_left -= num_prompt
        for token in ids[:num_prompt]:
            self._append(token)
        if self._statistics is not None:
            self._contexts = keys(self._automaton.text[-LONG_CONTEXT:])
        return ids[num_prompt:]

    def update_statistics(self) -> None:
        """Learn the tokens of the last extend() into `statistics`. It changes later drafts only, so
        it can overlap with an engine call; the next extend() does it otherwise."""
        if self._statistics is None or not self._pending:
            return
        pending, self._pending = self._pending, []
        outcomes: list[Outcome] = []
        learn = self._statistics.learn
        for contexts, token, was_looked_up in pending:
            successors = learn(contexts, token)
            if not was_looked_up:
                outcomes += [(which, successor == token) for successor, which in successors]
        self._statistics.count()
        self._observe(outcomes)

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, least: float = LEAST_SURVIVAL
    ) -> DraftTokens:
        """Up to `max_tokens` drafts after the sequence and `tentative_ids`, which are not kept. The
        chain ends where its survival falls below `least`."""
        chain = list(tentative_ids)
        automaton = self._automaton
        state, length, end = automaton.match_state, automaton.match_length, automaton.match_end
        contexts = self._contexts
        for token in chain:
            state, length = automaton.step(state, length, token)
            end = automaton.end_of(state)
            contexts = extended(contexts, token)
        matched = state, length
        num_matched = num_in_contexts = len(chain)
        self._first = contexts
        self._first_successors = None
        raw_survival = list[float]()
        chance = 1.0
        rates, text = self._rates.rates, automaton.text
        has_statistics = self._statistics is not None
        while len(raw_survival) < max_tokens:
            token, rate = -1, 0.0
            if length:  # past the text the copy runs on into the chain
                at = end + 1 - len(text)
                token = text[at] if at < 0 else chain[at]
                rate = rates[copy_bin(length)]
            copied = token
            if rate < _SURE and has_statistics:
                for other in chain[num_in_contexts:]:  # seldom needed, and not cheap
                    contexts = extended(contexts, other)
                num_in_contexts = len(chain)
                for other, which in self._successors_of(contexts):
                    if rates[which] > rate:
                        token, rate = other, rates[which]
            chance *= rate
            if chance < least:
                break
            chain.append(token)
            raw_survival.append(chance)
            if token == copied:
                end, length = end + 1, length + 1
                continue
            for other in chain[num_matched:]:
                matched = automaton.step(*matched, other)
            num_matched = len(chain)
            end, length = automaton.end_of(matched[0]), matched[1]
        self._raw_survival = raw_survival
        return DraftTokens(
            tuple(chain[len(tentative_ids) :]), self._calibration.apply(raw_survival)
        )

    def observe(self, num_verified: int, num_accepted: int) -> None:
        """Report that the first num_verified drafts of the last chain were verified, and the first
        num_accepted of them were right."""
        self._calibration.observe(self._raw_survival[:num_verified], num_accepted)

    def _successors_of(self, contexts: list[int]) -> list[tuple[int, int]]:
        """Successors from `statistics`; those of a chain's first token are looked up once."""
        assert self._statistics is not None
        if contexts is not self._first:
            return self._statistics.successors(contexts)
        if self._first_successors is None:
            self._first_successors = self._statistics.successors(contexts)
        return self._first_successors

    def _note_outcomes(self, token: int, outcomes: list[Outcome]) -> None:
        """Add the outcomes of drafts for the token that is about to be appended."""
        automaton = self._automaton
        if automaton.match_length:
            hit = automaton.text[automaton.match_end + 1] == token
            outcomes.append((copy_bin(automaton.match_length), hit))
        if self._statistics is not None:
            successors = self._first_successors if self._contexts == self._first else None
            self._pending.append((self._contexts, token, successors is not None))
            if successors:
                outcomes += [(which, successor == token) for successor, which in successors]
            self._contexts = extended(self._contexts, token)

    def _observe(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
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
