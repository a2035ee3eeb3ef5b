"""Drafts copied from a prediction: the text that the caller expects the reply to be ("predicted
outputs", as in OpenAI's API), for example a file of which a few lines are to be changed.

The drafter keeps its place in the prediction. While the reply follows it, what comes next there is
drafted. When the reply departs from it, the drafter looks for the place to continue from: the one
whose preceding tokens agree with the most of the reply's last ones; of equally good ones, the one
nearest to the departure. Until the reply agrees with any place again, the departure is taken for a
replacement of one token by another, which most small edits are.

A draft's estimated probability is the hit rate of earlier drafts behind a run of as many agreeing
tokens. Nothing is learnt beyond the session.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Final

from outrider.speculation.calibration import HitRates
from outrider.speculation.suffix_drafter import LEAST_SURVIVAL, DraftTokens

_RUNS: Final = (0, 1, 2, 3, 5, 9, 17)
"""Shortest runs of agreeing tokens of the bins of drafts."""
_FIRST_RATES: Final = (0.3, 0.45, 0.65, 0.8, 0.88, 0.94, 0.97)
"""Initial hit rate per bin."""
_BELIEF: Final = 8
"""Outcomes that the initial rate of a bin weighs as much as."""
_SURE_RUN: Final = 3
"""Agreeing tokens from which on the place counts as found; the reply's beginning counts as many."""
_MAX_RUN: Final = 32
"""Longest run that is compared when a place is looked for."""
_MAX_AHEAD, _MAX_BEHIND = 24, 8
"""Occurrences of a token that are looked at, on either side of where the reply departed: they bound
the time that one token takes."""
_INDEXED_PER_CALL: Final = 512
"""Tokens of the prediction that become known as places per call: well below a millisecond, where a
whole long one would hold up other sessions."""
_MAX_GUESSES: Final = 4
"""Tokens after a departure for which it is taken for a replacement."""


class PredictionDrafter:
    """For one reply: `extend` it by every committed token, in order. Deterministic."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = tuple(prediction)
        self._places: dict[int, list[int]] = {}
        """By token, where it stands in the prediction before `_num_indexed`, ascending; of a reply
        that was resumed, from near its end on."""
        self._num_indexed = 0
        self._reply: list[int] = []
        """The reply's last _MAX_RUN tokens, or up to twice as many."""
        self._next = 0
        """Place in the prediction of the token that is expected next."""
        self._run = _SURE_RUN
        """Last tokens of the reply that agree with those before that place."""
        self._departed_at: int | None = None
        """Place of the first token that the reply does not have; None while it follows."""
        self._num_since = 0
        """Tokens of the reply since then."""
        self._rates = HitRates(_FIRST_RATES, _BELIEF)

    @property
    def is_following(self) -> bool:
        """Whether the reply follows the prediction, and something of it is left."""
        return self._run >= _SURE_RUN and self._next < len(self._prediction)

    def resume(self, ids: Sequence[int]) -> None:
        """Start in the middle of a reply: it begins with these tokens, committed before this
        drafter existed. Takes no longer for more of them: the place is searched from their last
        ones, near where an unedited reply would be."""
        self._reply = list(ids[-_MAX_RUN:])
        self._next = min(len(ids), len(self._prediction))
        self._num_indexed = max(0, self._next - _INDEXED_PER_CALL // 2)
        self._index(_INDEXED_PER_CALL)
        self._run = self._agreeing(self._next - 1)
        if self._reply and self._run < _SURE_RUN:
            self._departed_at = self._next
            self._find(self._next)

    def extend(self, ids: Sequence[int]) -> None:
        """Follow newly committed tokens."""
        self._index(_INDEXED_PER_CALL)
        for token in ids:
            self._append(token)

    def draft(self, max_tokens: int, least: float = LEAST_SURVIVAL) -> DraftTokens:
        """Up to `max_tokens` drafts. The chain ends where its survival falls below `least`."""
        if not self._has_guess:
            return DraftTokens()
        survival = list[float]()
        chance = 1.0
        for run in range(self._run, self._run + min(max_tokens, self._num_left)):
            chance *= self._rates.rates[_bin(run)]
            if chance < least:
                break
            survival.append(chance)
        ids = self._prediction[self._next : self._next + len(survival)]
        return DraftTokens(ids, tuple(survival))

    @property
    def _num_left(self) -> int:
        return len(self._prediction) - self._next

    @property
    def _has_guess(self) -> bool:
        return self._num_left > 0 and (self._run > 0 or self._num_since <= _MAX_GUESSES)

    def _append(self, token: int) -> None:
        if self._has_guess:
            is_right = self._prediction[self._next] == token
            self._rates.observe([(_bin(self._run), is_right)])
        else:
            is_right = False
        self._reply.append(token)
        if len(self._reply) >= 2 * _MAX_RUN:
            del self._reply[:-_MAX_RUN]
        if is_right:
            self._next += 1
            self._run += 1
            if self._run >= _SURE_RUN:
                self._departed_at = None
            return
        if self._departed_at is None:
            self._departed_at, self._num_since = self._next, 0
        self._num_since += 1
        self._find(self._departed_at)

    def _index(self, count: int) -> None:
        first = self._num_indexed
        for place, token in enumerate(self._prediction[first : first + count], first):
            self._places.setdefault(token, []).append(place)
        self._num_indexed = min(first + count, len(self._prediction))

    def _find(self, departed_at: int) -> None:
        """Find where the reply, whose last token was not expected, continues in the prediction."""
        best = 0, 0, departed_at + self._num_since
        for place in self._near(departed_at):
            behind = place + 1
            distance = abs(behind - departed_at - self._num_since)
            best = max(best, (self._agreeing(place), -distance, behind), key=lambda it: it[:2])
        self._run, _, self._next = best
        if self._run >= _SURE_RUN:
            self._departed_at = None

    def _near(self, departed_at: int) -> Sequence[int]:
        """Places of the reply's last token in the prediction, near `departed_at`."""
        places = self._places.get(self._reply[-1], [])
        at = bisect_left(places, departed_at)
        return places[max(0, at - _MAX_BEHIND) : at + _MAX_AHEAD]

    def _agreeing(self, place: int) -> int:
        """How many tokens of the prediction, up to this place, agree with the reply's last ones."""
        run = 0
        before = (self._prediction[at] for at in range(place, -1, -1))
        for ours, theirs in islice(zip(reversed(self._reply), before, strict=False), _MAX_RUN):
            if ours != theirs:
                break
            run += 1
        return run


def _bin(run: int) -> int:
    for which, shortest in enumerate(_RUNS):
        if run < shortest:
            return which - 1
    return len(_RUNS) - 1
