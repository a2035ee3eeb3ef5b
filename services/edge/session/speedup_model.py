"""How much time per token drafts from the edge save at a replica that never waits for them.

A chain of drafts starts where the edge last saw the reply. Until its first draft arrives a round
trip has passed, in which the replica went on: the chain has to be right for

    J = RTT / (t_s - t_d) tokens

only to catch up, with t_s the replica's time per token and t_d the edge's; it does so with a chance
of survival(J), for a constant acceptance a that is a^J. From there on it is ahead until its next
miss. J and the law come from a model in whole calls, which this module evaluates: drafts that
arrive while a call runs have to wait for the next, so the smooth formula would predict too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

_MAX_CALLS = 96
_NEGLIGIBLE = 1e-3
"""A chain this unlikely to be alive ends the sum; the rest goes at the replica's own pace."""


@dataclass(frozen=True, slots=True)
class SessionConditions:
    """One session's circumstances; times in seconds."""

    rtt_s: float
    draft_s: float
    """The edge's time per drafted token (t_d)."""
    interval_s: float
    """Between two commits of a replica that gets no drafts from the edge (t_v)."""
    row_s: float = 0.0
    """Time that one more draft adds to a call."""
    own_tokens: float = 1.0
    """Tokens per commit of a replica that drafts for itself; 1: it does not."""
    max_drafts: int = 8
    """Most drafts of a session in one call."""
    max_lead: int = 32
    """Most drafts that the edge has ahead of the commits it knows."""


def without_drafts_s(conditions: SessionConditions) -> float:
    """Seconds per token without drafts from the edge."""
    return conditions.interval_s / conditions.own_tokens


def with_drafts_s(conditions: SessionConditions, survival: Sequence[float]) -> float:
    """Seconds per token with drafts from the edge; never above `without_drafts_s`.

    `survival` [n] is the chance that a chain's first 0, 1, ... n - 1 drafts are right; a chain is
    taken to be wrong behind them.

    A renewal argument (Wald): chains follow each other, each covers as many tokens as it has right
    ones and the correction. Calls k = 0, 1, ... of a chain that stays right commit up to C(k); a
    chain reaches call k with the chance survival(C(k)). Where a call has nothing of the chain, or
    the replica's own drafts are worth more, it commits these, at the replica's own pace.
    """
    usable = worthwhile_drafts(conditions, survival)
    committed = [0.0]
    spent_s = covered = 0.0
    for call in range(_MAX_CALLS):
        at = committed[-1]
        alive = _at(survival, at)
        if alive < _NEGLIGIBLE:
            break
        ahead = max(0.0, min(usable, _arrived(conditions, committed, call) - at))
        tokens = sum(_at(survival, at + i) for i in range(int(ahead) + 1))
        time_s = alive * (conditions.interval_s + ahead * conditions.row_s)
        if ahead >= 1 and tokens * without_drafts_s(conditions) > time_s:
            gain = ahead + 1
        else:
            gain = conditions.own_tokens
            tokens = _between(survival, at, at + gain)
            time_s = tokens * without_drafts_s(conditions)
        spent_s += time_s
        covered += tokens
        committed.append(at + gain)
    return spent_s / covered if covered else without_drafts_s(conditions)


def worthwhile_drafts(conditions: SessionConditions, survival: Sequence[float]) -> int:
    """How many drafts a call takes: as long as each adds more to its tokens, in proportion, than
    to its time (the goodput rule, arXiv 2406.14066)."""
    tokens, count = 1.0, 0
    most = min(conditions.max_drafts, len(survival) - 1)
    while count < most:
        duration_s = conditions.interval_s + count * conditions.row_s
        if survival[count + 1] * duration_s <= conditions.row_s * tokens:
            break
        count += 1
        tokens += survival[count]
    return count


def useful_lead(conditions: SessionConditions) -> int:
    """Number of drafts worth having ahead of the commits that the edge knows: those that can be on
    their way at the pace of edge and replica, and those that one call takes."""
    call_s = conditions.interval_s + conditions.max_drafts * conditions.row_s
    token_s = max(conditions.draft_s, call_s / (conditions.max_drafts + 1))
    on_their_way = conditions.rtt_s / token_s if token_s > 0 else 0.0
    return min(conditions.max_lead, floor(on_their_way) + conditions.max_drafts + 1)


def _arrived(conditions: SessionConditions, committed: Sequence[float], call: int) -> float:
    """Number of drafts of a chain that have arrived when its call number `call` begins; at most
    `max_lead` ahead of the commits that the edge knew when it sent them."""
    elapsed_s = call * conditions.interval_s - conditions.rtt_s
    if elapsed_s < 0:
        return 0.0
    known = committed[min(call, floor(elapsed_s / conditions.interval_s))]
    most = floor(known) + conditions.max_lead
    if conditions.draft_s <= 0:
        return most
    return floor(min(most, elapsed_s / conditions.draft_s))


def _at(survival: Sequence[float], tokens: float) -> float:
    index = int(tokens)
    return survival[index] if index < len(survival) else 0.0


def _between(survival: Sequence[float], begin: float, end: float) -> float:
    """Expected tokens of a chain in [begin, end): its survival summed."""
    total, at = 0.0, begin
    while at < end:
        after = min(end, int(at) + 1.0)
        total += (after - at) * _at(survival, at)
        at = after
    return total
