"""When a pause in typing is worth having the reply begun, before the prompt is sent. Pure.

Nobody knows which pause is the last. What is known is how this user types: intervals between the
keys of one typist are roughly log-normal (Roeser, De Maeyer, Leijten and Van Waes, "Modelling
typing disfluencies as finite mixture process", 2021), so a pause is judged by how many standard
deviations its logarithm lies above this chat's own mean. Nothing of other chats is used, and
nothing is kept after the prompt.

A text that looks finished is answered sooner than one that ends within a sentence. Each reply that
was begun in vain makes the plan more patient. Where replies take long to arrive, waiting costs more
than computing in vain, so the plan waits less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final
from unicodedata import category

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt, between

_PRIOR_LOG_S: Final = math.log(0.24)
"""Mean interval between keys of 168,000 volunteers: 239 ms (Dhakal, Feit, Kristensson and
Oulasvirta, "Observations on Typing from 136 Million Keystrokes", CHI 2018)."""
_PRIOR_DEVIATION: Final = 0.5
_PRIOR_KEYS: Final = 12
"""The prior counts as much as so many keys of the user's own."""
_MAX_KEYS: Final = 400
"""Older keys fade: the user of a chat may change, and his haste does."""
_LONGEST_INTERVAL_S: Final = 5.0
"""A longer one is no typing."""
_FINISHED: Final = 0.3
_OPEN: Final = 2.6
_DANGLING: Final = 3.0
"""Deviations above the mean after which a text is begun that looks finished; that ends within a
sentence; that cannot end here."""
_IN_VAIN: Final = 0.35
_MAX_PATIENCE: Final = 2.0
_NEAR_S: Final = 0.05
_FAR_S: Final = 0.5
"""Answers that take less than the first bring a reader nothing; from the second on the plan waits
`_HASTE` deviations less."""
_HASTE: Final = 0.7
_READ_PER_S: Final = 5.0
"""Tokens: people read 238 words a minute silently (Brysbaert, "How many words do we read per
minute? A review and meta-analysis of reading rate", Journal of Memory and Language, 2019)."""
_UNKNOWN_S: Final = 0.3
"""Assumed from beginning a reply to its first token, while neither that nor the distance is known.
"""
_SENTENCE_ENDS: Final = (".", "?", "!", "\u2026", "\u3002", "\uff1f", "\uff01")
"""Latin and East Asian ones."""
_DANGLING_ENDS: Final = tuple(",;:&/+=")
_CLOSING: Final = frozenset({"Pe", "Pf"})
_OPENING: Final = frozenset({"Ps", "Pi", "Pd"})
"""General categories of Unicode: brackets and quotes; dashes count as opening."""


@dataclass(frozen=True, slots=True)
class AheadPolicy:
    """How replies are begun before their prompts are sent: table `[edge.ahead]`."""

    max_tokens: NonNegativeInt = 12
    """Tokens of a reply that wait at the edge at most. 0: no reply is begun before its prompt is
    sent."""
    min_tokens: PositiveInt = 3
    """And at least: most first words are whole by then. Between the two are as many as are read
    while the next ones come."""
    min_chars: PositiveInt = 8
    """Shortest text that is answered ahead."""
    min_pause_ms: PositiveFloat = 120.0
    """A reply is begun so long after the last key at the soonest."""
    max_pause_ms: PositiveFloat = 2000.0
    """And at the latest, if it is begun at all."""
    max_openings: PositiveInt = 6
    """How often a reply to one prompt is begun, while that is typed."""
    min_wait_ms: Annotated[float, between(0, 60_000)] = 50.0
    """Where the first token takes less than this to come, nothing is begun ahead: nobody would
    notice."""
    min_prefill_tokens: PositiveInt = 64
    """While replies are begun ahead, a prompt that is being typed is computed without its reply
    only if so many of its tokens are new: fewer cost the region less together with the reply."""


class TypingRhythm:
    """Mean and deviation of the logarithm of the time between two keys."""

    def __init__(self) -> None:
        self._num = float(_PRIOR_KEYS)
        self._mean = _PRIOR_LOG_S
        self._variance = _PRIOR_DEVIATION**2
        self._last_at: float | None = None

    def key(self, now: float) -> None:
        """A key was pressed."""
        last, self._last_at = self._last_at, now
        if last is None or not 0.0 < now - last <= _LONGEST_INTERVAL_S:
            return
        self._num = min(self._num + 1, _MAX_KEYS)
        off = math.log(now - last) - self._mean
        self._mean += off / self._num
        self._variance += (off * off * (self._num - 1) / self._num - self._variance) / self._num

    def pause_s(self, deviations: float) -> float:
        """A pause so many deviations longer than the mean."""
        return math.exp(self._mean + deviations * math.sqrt(self._variance))


class AheadPlan:
    """One prompt that is being typed. Times in seconds on the clock of `now`."""

    def __init__(self, policy: AheadPolicy, round_trip_s: float | None = None) -> None:
        """`round_trip_s`: to the region, as far as it is known."""
        self._policy = policy
        self._round_trip_s = round_trip_s
        self._rhythm = TypingRhythm()
        self._text = ""
        self._typed_at = -math.inf
        self._not_before = -math.inf
        """The region refused until then."""
        self._opened_at: float | None = None
        """None: nothing is begun, or it has answered."""
        self._num_openings = 0
        self._is_begun = False
        """Whether the reply to the present text is, or was, begun."""
        self._patience = 0.0
        """Deviations that are waited for in addition."""
        self._answer_s: float | None = None
        """From beginning a reply to its first token here; None: not measured yet."""

    @property
    def due_at(self) -> float | None:
        """When the reply to the text is to be begun, unless that changes; None: it is not."""
        policy, text = self._policy, self._text
        if not policy.max_tokens or self._is_begun or len(text.strip()) < policy.min_chars:
            return None
        if self._num_openings >= policy.max_openings:
            return None
        if self._answer_s is not None and self._answer_s * 1e3 < policy.min_wait_ms:
            return None
        pause_s = self._rhythm.pause_s(_deviations(text) + self._patience - self._haste)
        pause_s = min(max(pause_s, policy.min_pause_ms / 1e3), policy.max_pause_ms / 1e3)
        return max(self._typed_at + pause_s, self._not_before)

    @property
    def num_tokens(self) -> int:
        """How many tokens of a reply that is begun now are worth having here: what is read while
        the next ones come. More would have to be thrown away more often."""
        wait_s = self._answer_s or self._round_trip_s or _UNKNOWN_S
        read = self._policy.min_tokens + math.ceil(wait_s * _READ_PER_S)
        return min(self._policy.max_tokens, read)

    def typed(self, text: str, now: float) -> bool:
        """The text is this now. Returns whether it differs from the one before: what was begun for
        that one is in vain."""
        if text == self._text:
            return False
        self._rhythm.key(now)
        if self._is_begun:
            self._patience = min(_MAX_PATIENCE, self._patience + _IN_VAIN)
        self._text, self._typed_at = text, now
        self._is_begun = False
        self._opened_at = None
        return True

    def begun(self, now: float) -> None:
        """The reply to the present text is begun."""
        self._is_begun = True
        self._opened_at = now
        self._num_openings += 1

    def answered(self, now: float) -> None:
        """A token of it came."""
        if self._opened_at is None:
            return
        took_s, self._opened_at = now - self._opened_at, None
        known = self._answer_s
        self._answer_s = took_s if known is None else known + (took_s - known) / 4

    def refused(self, retry_s: float, now: float) -> None:
        """The region has no time for it; the present text may be tried again after a while."""
        self._is_begun = False
        self._opened_at = None
        self._not_before = now + retry_s

    def failed(self) -> None:
        """It ended without being of use; the present text is not tried again."""
        self._opened_at = None

    @property
    def _haste(self) -> float:
        wait_s = self._answer_s or self._round_trip_s
        if wait_s is None:
            return 0.0
        part = (wait_s - _NEAR_S) / (_FAR_S - _NEAR_S)
        return _HASTE * min(1.0, max(0.0, part))


def _deviations(text: str) -> float:
    """How unusual a pause after this text has to be."""
    shown = text.rstrip()
    if shown.count("```") % 2:
        return _DANGLING
    if shown != text and not text.endswith("\n"):
        return _OPEN + 0.4  # a space: the next word is under way
    if shown.endswith(_DANGLING_ENDS) or category(shown[-1]) in _OPENING:
        return _DANGLING
    if shown[-1] in "\"'" or category(shown[-1]) in _CLOSING:
        shown = shown[:-1]
    return _FINISHED if shown.endswith(_SENTENCE_ENDS) else _OPEN
