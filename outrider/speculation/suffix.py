"""Drafts copied from what followed the longest repeated suffix (arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.speculation.automaton import SuffixAutomaton
from outrider.speculation.survival import HitRates


@dataclass(frozen=True, slots=True)
class Guess:
    """A chain of drafts; empty when nothing is known."""

    ids: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    """Per draft, the estimated chance that it and all before it are right; never rising."""


class SuffixDrafter:
    """Drafts for one sequence: extend it by every token of prompt and reply, in order.

    Memory is bounded: at least the last half of `max_context` tokens is known, at most all of
    it. A second automaton starts at the half and takes over at the end, so no single token
    pays for a rebuild. Deterministic: a function of the extended ids alone.
    """

    def __init__(self, max_context: int = 8192) -> None:
        if max_context < 2:
            raise ConfigError(f"max_context must be at least 2 tokens, not {max_context}")
        self._max_context = max_context
        self._automaton = SuffixAutomaton()
        self._successor: SuffixAutomaton | None = None
        self._rates = HitRates()

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens that are final, and learn from them how good copies are."""
        for token in ids:
            automaton = self._automaton
            if automaton.match_length:
                hit = automaton.text[automaton.match_end + 1] == token
                self._rates.observe(automaton.match_length, hit)
            automaton.append(token)
            self._renew(token)

    def draft(self, max_tokens: int) -> Guess:
        """Up to `max_tokens` guesses for the tokens after the sequence."""
        automaton = self._automaton
        return self._copy(automaton.match_end, automaton.match_length, [], max_tokens)

    def draft_after(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess:
        """As `draft`, after the sequence and these ids, which are not kept."""
        automaton = self._automaton
        state, length, end = automaton.match_state, automaton.match_length, automaton.match_end
        for token in tentative_ids:
            state, length = automaton.step(state, length, token)
            end = automaton.end_of(state)
        return self._copy(end, length, list(tentative_ids), max_tokens)

    def _copy(self, end: int, length: int, tail: list[int], max_tokens: int) -> Guess:
        """Copy what follows index `end`; past the text it runs on into `tail` and the copy."""
        if not length:
            return Guess()
        text = self._automaton.text
        known, start = len(text), len(tail)
        for at in range(end + 1, end + 1 + max_tokens):
            tail.append(text[at] if at < known else tail[at - known])
        return Guess(tuple(tail[start:]), self._rates.survival(length, len(tail) - start))

    def _renew(self, token: int) -> None:
        if self._successor is not None:
            self._successor.append(token)
        if self._successor is not None and len(self._automaton.text) >= self._max_context:
            self._automaton, self._successor = self._successor, None
        if self._successor is None and 2 * len(self._automaton.text) >= self._max_context:
            self._successor = SuffixAutomaton()
