"""Which drafts are worth their rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Bid(NamedTuple):
    """One session's drafts in the race for rows."""

    survival: Sequence[float]
    """Probability that draft i and all before it are accepted; never rises."""
    num_paid: int = 0
    """Leading drafts whose rows the round has anyway (min_rows)."""


LEAST_PROFIT = 0.01
"""What a session must gain, as a logarithm, for drafts to be paid for: estimates are not exact."""

LATENCY_WEIGHT = 1.2
"""Exponent of a call's duration: above 1, since a longer call also delays all text that comes in it
and whoever arrives meanwhile. On chats with a 135M model on one core 1.2 costs 1 to 3 % of the
tokens per second at 4 to 8 sessions, and takes a fifth off the median call at 8."""


class RowPrice(Protocol):
    """Says what calls of so many rows cost."""

    def price_ms(self, rows: int) -> float:
        """Duration of a call that has `rows` of use."""
        ...

    def free_rows(self, rows: int) -> int:
        """Rows that such a call computes."""
        ...


def award_rows(bids: Sequence[Bid], rows: int, max_rows: int, cost: RowPrice) -> list[int]:
    """How many drafts of each bid to verify in a call that has `rows` rows without them.

    Every bidder commits one token for certain. The choice has the largest geometric mean of the
    bidders' expected commits (Kelly's proportional fairness, 1998) over the call's duration to the
    power of LATENCY_WEIGHT. With a weight of 1 that is, for one session or all alike, the goodput
    of TurboSpec (arXiv 2406.14066); in a mixed call it weighs what a draft gains for its session
    against the time it costs all others, where the goodput's sum would let those who repeat
    themselves slow down those who do not. Rows that the engine computes anyway take the next best
    drafts.
    """
    if not bids:
        return []
    counts = [min(bid.num_paid, len(bid.survival)) for bid in bids]
    offers = sorted(
        (-gain, index)
        for index, (bid, count) in enumerate(zip(bids, counts, strict=True))
        for gain in _gains(bid.survival, count)
    )[: max(0, max_rows - rows)]
    best, gained, num_taken, number = LEAST_PROFIT * len(bids), 0.0, 0, 0
    base_ms = cost.price_ms(rows)
    while number < len(offers):
        begin, number = number, min(len(offers), cost.free_rows(rows + number + 1) - rows)
        gained -= sum(negated for negated, _ in offers[begin:number])
        stretch = cost.price_ms(rows + number) / base_ms
        profit = gained - LATENCY_WEIGHT * len(bids) * math.log(stretch)
        if profit > best:
            best, num_taken = profit, number
    num_free = cost.free_rows(rows + num_taken) - rows
    for _, index in offers[: max(num_taken, num_free)]:
        counts[index] += 1
    return counts


def _gains(survival: Sequence[float], num_paid: int) -> Iterator[float]:
    """By how much each draft raises the logarithm of its session's expected commits; falling."""
    expected = 1.0 + sum(survival[:num_paid])
    for chance in survival[num_paid:]:
        yield math.log1p(chance / expected)
        expected += chance
