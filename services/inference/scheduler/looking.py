"""Whether it pays to look for drafts at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.inference.scheduler.awards import RowPrice

_FORGETTING = 0.995
"""Weight of a look against the next one: the last 200 count."""
_FIRST_PROFIT, _FIRST_WEIGHT = 0.1, 50.0
"""What looks are believed to bring until some were taken."""
_MAX_PAUSE = 15
"""Calls between two looks of a session that finds nothing."""


@dataclass(slots=True)
class Account:
    """What looks of one kind brought, in tokens."""

    profit: float = _FIRST_PROFIT * _FIRST_WEIGHT
    weight: float = _FIRST_WEIGHT

    def add(self, profit: float) -> None:
        """One more look."""
        self.profit = self.profit * _FORGETTING + profit
        self.weight = self.weight * _FORGETTING + 1.0


class Look(NamedTuple):
    """One session's in one call."""

    account: Account
    """Where it is booked."""
    bill: float
    """Tokens that all of them would have had in the time that the look and its drafts take."""
    found: bool
    """Whether drafts were worth their rows."""


@dataclass(slots=True)
class Watch:
    """One session's place in the order of looks."""

    pause: int = 0
    """Calls that were left out before the last look..."""
    left: int = 0
    """...and those still to be left out before the next one."""

    def is_due(self, account: Account) -> bool:
        """Whether the session is to look in a call of this account; asked once per call."""
        if account.profit >= 0.0:
            self.pause = self.left = 0
            return True
        if self.left == 0:
            return True
        self.left -= 1
        return False

    def observe(self, look: Look, num_committed: int) -> None:
        """What came of the session's look."""
        # What follows a find is likelier to be one: only the others tell of looks in general.
        if look.account.profit >= 0.0 or self.pause:
            look.account.add(num_committed - 1 - look.bill)
        self.pause = 0 if look.found else min(_MAX_PAUSE, 2 * self.pause + 1)
        self.left = self.pause


class Looking:
    """Says which sessions are asked for drafts, by what looks brought lately.

    Guesses that are not worth their rows are never verified, but finding that out takes time in
    which the engine idles. Profit is in tokens: what a session committed beyond the one it would
    have had anyway, less what all could have had in the time of its drafts' rows and of the look.
    Greedy and sampled replies, and calls of different sizes, have accounts of their own. While one
    shows a loss its sessions look now and then, at doubling distances (binary exponential backoff:
    Metcalfe and Boggs, 1976), and in every call once a look found drafts worth their rows.
    """

    def __init__(self, cost: RowPrice, look_ms: float) -> None:
        """A look takes look_ms."""
        self._cost = cost
        self._look_ms = look_ms
        self._accounts: dict[tuple[bool, int], Account] = {}

    def account(self, num_sessions: int, *, sampled: bool) -> Account:
        """That of greedy or sampled replies in calls of so many sessions."""
        key = sampled, num_sessions.bit_length()
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account()
        return account

    def looks(self, accounts: Sequence[Account], counts: Sequence[int], rows: int) -> list[Look]:
        """The looks behind `counts` drafts of each session, beside `rows` rows without them."""
        base_ms = self._cost.price_ms(rows)
        draft_ms = (self._cost.price_ms(rows + sum(counts)) - base_ms) / max(1, sum(counts))
        tokens_per_ms = len(counts) / base_ms
        return [
            Look(account, (draft_ms * count + self._look_ms) * tokens_per_ms, count > 0)
            for account, count in zip(accounts, counts, strict=True)
        ]
