"""Whether drafting for display alone is worth its processor time, by what became of what was shown
(pure).

Counted is how much sooner the text of final tokens was shown, over all final tokens, and the share
of shown tokens that stayed. Where that is next to nothing (a draft model that knows the target's
texts badly, a region so near that its own tokens come as soon), chats are no longer drafted for,
but for a few trials: one chat in `first_trial`, then in twice as many after each vain trial.

Of texts it holds counts alone, and those of one trust group each, as all that is learnt.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

_RTT_CLASS_ENDS_S: Final = (0.01, 0.05, 0.15)
"""Round trips below 10, 50, 150 ms, and all longer ones."""


class Drafting(Enum):
    """Whether a chat is drafted for, so that provisional text can be shown."""

    ON = "on"
    OFF = "off"
    TRIAL = "trial"
    """It brought nothing lately; this chat measures it again."""


@dataclass(frozen=True, slots=True)
class WorthPolicy:
    """When drafting for display ends, and how it begins again."""

    enter_ms: float = 4.0
    """It begins again when a final token's text is shown so much sooner on average..."""
    leave_ms: float = 2.0
    """...and ends below this. Both are some per cent of what a token takes at 20 to 50 a second."""
    enter_share: float = 0.6
    leave_share: float = 0.5
    """The same for the share of shown tokens that stayed."""
    min_tokens: int = 256
    """Final tokens that a decision takes, and that lie between two of them."""
    window_tokens: int = 2048
    """Final tokens after which half of what was counted is forgotten, while it is on."""
    first_trial: int = 8
    """While it is off, one chat in so many is drafted for, to measure..."""
    last_trial: int = 128
    """...and after vain trials one in up to so many."""


class Shown(NamedTuple):
    """What came of the provisional text of one chat, or of several."""

    num_final: float = 0.0
    """Tokens of the replies."""
    num_stayed: float = 0.0
    """Those of them that were shown before."""
    num_erased: float = 0.0
    """Tokens that were shown and taken back."""
    sooner_s: float = 0.0
    """Seconds by which those that stayed were shown sooner, summed."""

    @property
    def share(self) -> float:
        """Share of the shown tokens that stayed; 1 if none was shown."""
        shown = self.num_stayed + self.num_erased
        return self.num_stayed / shown if shown else 1.0

    @property
    def sooner_ms(self) -> float:
        """Milliseconds by which a final token's text was shown sooner, on average over all."""
        return self.sooner_s * 1000 / self.num_final if self.num_final else 0.0

    def plus(self, other: Shown, weight: float = 1.0) -> Shown:
        """Both together; this one counts with `weight`."""
        return Shown(*(weight * a + b for a, b in zip(self, other, strict=True)))


class _Worth:
    """Of one kind of chats at one class of round trips."""

    def __init__(self, policy: WorthPolicy) -> None:
        self._policy = policy
        self._shown = Shown()
        self._since_decision = 0.0
        self._trial_every = policy.first_trial
        self._num_skipped = 0
        self.is_on = True

    def begin(self) -> Drafting:
        if self.is_on:
            return Drafting.ON
        self._num_skipped += 1
        if self._num_skipped < self._trial_every:
            return Drafting.OFF
        self._num_skipped = 0
        return Drafting.TRIAL

    def ended(self, shown: Shown) -> None:
        policy = self._policy
        weight = policy.window_tokens / (policy.window_tokens + shown.num_final)
        self._shown = self._shown.plus(shown, weight if self.is_on else 1.0)
        self._since_decision += shown.num_final
        if self._since_decision < policy.min_tokens:
            return
        found = self._shown
        if self.is_on:
            pays = found.sooner_ms >= policy.leave_ms and found.share >= policy.leave_share
        else:
            pays = found.sooner_ms >= policy.enter_ms and found.share >= policy.enter_share
        if pays and self.is_on:
            return
        if pays or self.is_on:
            self._trial_every = policy.first_trial
        else:
            self._trial_every = min(2 * self._trial_every, policy.last_trial)
        self.is_on = pays
        self._shown, self._since_decision, self._num_skipped = Shown(), 0.0, 0


class DisplayWorth:
    """For the chats of one trust group with one model."""

    def __init__(self, policy: WorthPolicy | None = None) -> None:
        self._policy = policy or WorthPolicy()
        self._by_class: dict[tuple[bool, int], _Worth] = {}
        """At most twice the number of classes."""

    def begin(self, rtt_s: float | None, *, sampled: bool) -> Drafting:
        """A chat begins that may show provisional text. `rtt_s`: the round trip to the region, as
        last measured; None: never."""
        return self._of(rtt_s, sampled).begin()

    def ended(self, rtt_s: float | None, shown: Shown, *, sampled: bool) -> None:
        """A chat ended that was drafted for; `rtt_s` as it was told to `begin`."""
        self._of(rtt_s, sampled).ended(shown)

    def is_on(self, rtt_s: float | None, *, sampled: bool) -> bool:
        """Whether such chats are drafted for, apart from trials."""
        return self._of(rtt_s, sampled).is_on

    def _of(self, rtt_s: float | None, sampled: bool) -> _Worth:
        key = sampled, -1 if rtt_s is None else bisect_right(_RTT_CLASS_ENDS_S, rtt_s)
        return self._by_class.setdefault(key, _Worth(self._policy))
