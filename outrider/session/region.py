"""Frames between edge and replica while a reply is written: drafts up, commits down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.session.types import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for the reply from token number `base` on. Frames of an epoch extend each other;
    a chain that proved wrong ends its epoch."""

    epoch: int
    base: int
    ids: tuple[int, ...]
    continues: bool = False
    """Whether an earlier frame of the epoch began its chain."""
    echo: int = field(default=0, compare=False)
    """Sequence number that the replica returns, to measure the round trip; 0: none."""


class Pace(NamedTuple):
    """How fast a replica works, reported to the edges that draft for it."""

    interval_s: float = 0.0
    """Smoothed time between the session's commits, without the time that the edge's drafts added;
    0: not reported."""
    row_s: float = 0.0
    """Time that one more draft token adds to a call of the model."""
    max_lead: int = 0
    """Most drafts ahead of the commits that the replica keeps; 0: it did not say."""
    overload_level: int = 0
    """Overload of the replica; from 1 on, drafts are not worth sending."""
    echo: int = 0
    """`echo` of the newest Draft since the last commit; 0: there was none."""
    ack_delay_s: float = 0.0
    """Time from the arrival of that frame to this commit."""


class Commit(NamedTuple):
    """Tokens that are final: [base, base + accepted) are the edge's drafts of `epoch`, `ids` follow
    them. The same from the call that verified them to the edge that shows them."""

    epoch: int
    base: int
    """Number of the first of them in the reply, from 0 on."""
    accepted: int
    ids: tuple[int, ...]
    pace: Pace | None = None
    """The replica's pace, filled in on edges; a replica adds it when it writes the frame. None:
    about the same as before, or the replica does not report it."""
    num_lossy: int = 0
    """How many of those tokens only the acceptance threshold let through."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each of these tokens, including accepted drafts, if the session asked
    for them."""
    accepted_ids: tuple[int, ...] = ()
    """The accepted drafts, where the replica says; edges know them."""
    is_inexact: bool = False
    """Whether the reply is inexact from here on: the replica uses KV that was rounded on its way
    there. Only said with the first such commit of a replica."""

    @property
    def upto(self) -> int:
        """Number of tokens now final."""
        return self.base + self.accepted + len(self.ids)
