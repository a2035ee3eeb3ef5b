"""When provisional text is shown, and when it is taken back.

Shown is the longest run of drafts whose estimated survival is at least theta, cut back to the end
of a word; a line break, which moves all that follows, has to be likelier. Theta 0.5 shows what is
rather right than wrong, which is asked of a first word; 0.6 for what follows keeps the normalised
erasure (Arivazhagan et al., IWSLT 2020) near 0.2. Text that proved wrong is erased at
once. Rewrites are limited as cells are in ATM (generic cell rate algorithm,
ITU-T I.371): one per `rewrite_interval_s` in the long run, `rewrite_burst` of them close together;
beyond that nothing new is shown for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.speculation.verification import common_prefix_length
from outrider.word_boundaries import JOINERS, first_word_end, in_word, is_joined
from services.edge.session.actions import Provisional, Retract


@dataclass(frozen=True, slots=True)
class DisplayPolicy:
    """How bold the provisional text is."""

    theta: float = 0.5
    """Least estimated survival of what is shown."""
    first_theta: float = 0.5
    """The same for the reply's first tokens."""
    first_tokens: int = 4
    """How many tokens are the first. If so many are likely and no word ends in them, they are shown
    as they are: in scripts that the vocabulary spells out, a token is half a letter."""
    line_theta: float = 0.7
    """Least estimated survival of a line break."""
    max_risk: float = 1.0
    """Most tokens to be expected to fall of all that is shown: long chains of likely tokens would
    be shown whole, and fall together."""
    rewrite_interval_s: float = 0.15
    """Least time between two erasures of shown text, on average..."""
    rewrite_burst: int = 3
    """...over more than so many."""
    erasure: float = 0.15
    """Tokens taken back per final token that a reader is to bear: every one more raises theta by
    `caution`, until as many became final as make up for it."""
    caution: float = 0.05


@dataclass(frozen=True, slots=True)
class Boldness:
    """Least estimated survival of what is shown."""

    first_theta: float
    """Of a reply's first tokens..."""
    theta: float
    """...and of all others."""


BOLDNESS: Final[Mapping[str, Boldness]] = {
    "shy": Boldness(0.7, 0.7),
    "balanced": Boldness(0.5, 0.6),
    "eager": Boldness(0.3, 0.4),
}
"""By the name of the setting."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The text that the drafts would add behind the committed text."""

    base: int
    """Committed tokens."""
    text: str
    ends: tuple[int, ...]
    """[n] length of the text after each draft."""
    survival: tuple[float, ...]
    """[n] estimated probability that the drafts up to this one are all committed."""
    final: bool = False
    """The last draft ends the reply, so the text's end is the end of a word."""


_MAX_CREDIT, _MAX_DEBT = 2.0, 12.0
"""Tokens that a reply of which nothing was taken back has in hand, and those beyond which one long
erasure is forgiven."""


class Display:
    """The provisional text at the client, exactly as `edge.proto` defines it."""

    def __init__(self, policy: DisplayPolicy) -> None:
        self._policy = policy
        self._shown = ""
        self._ends: list[int] = []
        """Where in it each token ends that is shown whole."""
        self.quiet_until = float("-inf")
        """Nothing new is shown before this time."""
        self._next_rewrite = float("-inf")
        """When the next erasure would be due, were they spread evenly."""
        self.shown_chars = 0
        """Code points sent as provisional text, and..."""
        self.erased_chars = 0
        """...those of them that were taken back."""
        self.num_retractions = 0
        self._first_word_left: int | None = None
        """Code points of the first shown word that are not final yet; None: no word was shown."""
        self.first_word_stayed: bool | None = None
        """Whether the first shown word became final; None: it is not known, or none was shown."""
        self.shown_tokens = 0
        """Tokens shown before they became final."""
        self.erased_tokens = 0
        self._excess = 0.0
        """Tokens shown and taken back."""

    @property
    def shown(self) -> str:
        """The provisional text the client has now."""
        return self._shown

    def confirm(self, text: str, diverged: bool, now: float, num_tokens: int = 1) -> Retract | None:
        """`text` becomes final, and `diverged` tells whether a draft proved wrong with it.

        Returns what has to be sent before the commit.
        """
        kept = common_prefix_length(self._shown, text)
        contradicted = kept < min(len(self._shown), len(text))
        retract = None
        if contradicted or (diverged and kept < len(self._shown)):
            retract = self._erase(kept, now)
        self._excess = max(-_MAX_CREDIT, self._excess - self._policy.erasure * num_tokens)
        taken = min(len(text), len(self._shown))
        self._confirm_first_word(taken)
        self.shown_tokens += sum(end <= taken for end in self._ends)
        self._ends = [end - taken for end in self._ends if end > taken]
        self._shown = self._shown[taken:]
        return retract

    def forget(self) -> None:
        """The client has no provisional text: it is another one, or came back."""
        self._shown, self._ends = "", []
        if self._first_word_left is not None:
            self._first_word_left = 0  # nobody sees any more what becomes of it

    def clear(self, now: float) -> Retract | None:
        """The chat ends: no provisional text is left behind."""
        return self._erase(0, now) if self._shown else None

    def show(self, outlook: Outlook, now: float) -> Provisional | None:
        """What to show in addition now, if anything."""
        if now < self.quiet_until:
            return None
        limit, stability, num_likely = self._likely(outlook)
        end = word_end(outlook.text, limit, outlook.final)
        if not end and not outlook.base and num_likely >= self._policy.first_tokens > 0:
            end = limit
        target = outlook.text[:end]
        if len(target) not in outlook.ends:
            target = target.rstrip(" ")  # that of a word to come, which may yet be a comma
        if len(target) <= len(self._shown) or not target.startswith(self._shown):
            return None
        added = Provisional(outlook.base, len(self._shown), target[len(self._shown) :], stability)
        self.shown_chars += len(added.text)
        if self._first_word_left is None and target.strip():
            self._first_word_left = first_word_end(target, is_whole=True)
        self._shown = target
        self._ends = [end for end in outlook.ends if end <= len(target)]
        return added

    def _confirm_first_word(self, num_chars: int) -> None:
        if self._first_word_left:
            self._first_word_left = max(0, self._first_word_left - num_chars)
            if not self._first_word_left:
                self.first_word_stayed = True

    def _erase(self, kept: int, now: float) -> Retract:
        self.erased_chars += len(self._shown) - kept
        if self._first_word_left and kept < self._first_word_left:
            self._first_word_left, self.first_word_stayed = 0, False
        self.num_retractions += 1
        num_erased = sum(end > kept for end in self._ends)
        self.erased_tokens += num_erased
        self._excess = min(_MAX_DEBT, self._excess + num_erased)
        self._ends = [end for end in self._ends if end <= kept]
        self._shown = self._shown[:kept]
        policy = self._policy
        self._next_rewrite = max(self._next_rewrite, now) + policy.rewrite_interval_s
        self.quiet_until = (
            self._next_rewrite - (policy.rewrite_burst - 1) * policy.rewrite_interval_s
        )
        return Retract(kept)

    def _likely(self, outlook: Outlook) -> tuple[int, float, int]:
        limit, stability, risk, count = 0, 1.0, 0.0, 0
        for number, (end, survival) in enumerate(
            zip(outlook.ends, outlook.survival, strict=True), start=outlook.base
        ):
            breaks_line = "\n" in outlook.text[max(limit, len(self._shown)) : end]
            risk += 1 - survival
            if survival < self._least(number, breaks_line) or risk > self._policy.max_risk:
                break
            limit, stability, count = end, survival, count + 1
        return limit, stability, count

    def _least(self, number: int, breaks_line: bool) -> float:
        """Least survival of the reply's token `number`; a break that is shown already is no more
        than any other text."""
        policy = self._policy
        theta = policy.first_theta if number < policy.first_tokens else policy.theta
        theta += policy.caution * max(0.0, self._excess)
        return max(theta, policy.line_theta) if breaks_line else theta


def word_end(text: str, limit: int, final: bool) -> int:
    """The last end of a word in `text` at or before `limit`, 0 if there is none.

    The end of `text` itself counts only if it is `final`, or is no part of a word.
    """
    for end in range(limit, 0, -1):
        if end == len(text):
            if final or not (in_word(text[-1]) or text[-1] in JOINERS):
                return end
        elif not is_joined(text[end - 1], text[end]):
            return end
    return 0
