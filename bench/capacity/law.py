"""The law of the edge's worth, and how many chats have a pace (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from math import exp, log

from bench.capacity.cells import Outcome
from bench.capacity.pairs import Pair


class Regime(Enum):
    """What decides in a cell, by the region's own schemes and the edge's way alone."""

    HIDDEN = "drafts pay, the edge's way fits into a call"
    """The law's: an edge has drafted, and its drafts have arrived, before the region's next call
    ends, so that a round with an edge takes no longer than a call."""
    EXPOSED = "drafts pay, the edge's way is longer than a call"
    FULL = "drafts do not pay"
    """A row costs more than a draft brings, or the region's draft model takes what it brings."""


def regime_of(pair: Pair, plain: Outcome, region: Outcome, num_drafts: int, rtt_s: float) -> Regime:
    """`region` drafts at most `num_drafts` for each chat."""
    if region.pace <= plain.pace:
        return Regime.FULL
    way_ms = rtt_s * 1e3 + num_drafts * pair.draft.ms(1)
    return Regime.HIDDEN if way_ms <= region.verify_ms else Regime.EXPOSED


def law(region: Outcome) -> float:
    """1 + gamma * t_d / t_v, by what the region's steps (gamma * t_d) and calls (t_v) took for all
    its chats: clients that a server with edges has for each of one that drafts, where each client
    takes its own time of the server (arXiv 2606.25091, proposition 9)."""
    return 1 + region.draft_ms / region.verify_ms


def batched_law(pair: Pair, region: Outcome, num_chats: int) -> float:
    """The same where chats share calls: more chats fill the time of the steps at what each adds to
    a call, its rows. As `law` where the fixed part of calls is nothing."""
    chat_ms = pair.target.row_ms * (1 + region.drafts_per_chat)
    return 1 + region.draft_ms / (num_chats * chat_ms)


def chats_at(paces: Mapping[int, float], pace: float) -> float:
    """How many chats have this pace, at least; between measured numbers by a line through the
    logarithms. 0 if one alone is slower; the largest number if that many are faster."""
    counts = sorted(paces)
    if paces[counts[-1]] >= pace:
        return float(counts[-1])
    for fewer, more in reversed(list(pairwise(counts))):
        if paces[fewer] >= pace:
            share = log(paces[fewer] / pace) / log(paces[fewer] / paces[more])
            return exp(log(fewer) + share * log(more / fewer))
    return 0.0
