"""Which drafts go into a call, beside the sessions' own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.inference.scheduler.awards import Bid, award_rows
from services.inference.scheduler.decode_cost import DecodeCost
from services.inference.scheduler.draft_sources import NO_PROPOSAL, Proposal
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.looking import Account, Look, Looking
from services.inference.scheduler.session import Session


class Turn(NamedTuple):
    """One session's place in a call."""

    session: Session
    num_tokens: int
    """Of the session's own."""
    num_fill: int
    """Drafts that the round needs to have min_rows tokens."""
    last: bool
    """Whether the round ends at the session's last token, so that its rows are wanted."""


class Award(NamedTuple):
    """What a bidder verifies in the call."""

    guesses: tuple[int, ...]
    num_drafts: int
    """Those of the fill among them; at least the guesses."""
    look: Look | None
    """How its suffix drafter was asked, if it was."""


class Bidding:
    """Asks sessions for drafts, and lets those in that are worth their rows."""

    def __init__(self, limits: SchedulerLimits, cost: DecodeCost) -> None:
        self._max_drafts = limits.max_draft_tokens
        self._cost = cost
        self._looking = Looking(cost, limits.look_ms)

    def hold(self, turns: Sequence[Turn], rows: int, max_rows: int) -> list[Award]:
        """One award for each, in a call that has `rows` rows of theirs without drafts.

        Prompt tokens are left out of the price: in the shadow of a long prefill every guess would
        look cheap. Who waits for a first token is not held up by guesses at the others' next ones.
        """
        ends_prompt = any(turn.num_tokens > 1 for turn in turns)
        least = self._cost.least_survival(len(turns))
        accounts = self._accounts(turns)
        proposals, looked = list[Proposal](), list[bool]()
        for turn, account in zip(turns, accounts, strict=True):
            session, asked = turn.session, turn.num_tokens > 1 or not ends_prompt
            looks = asked and session.sources.can_look and session.watch.is_due(account)
            looked.append(looks)
            proposals.append(self._proposal(session, least, looks) if asked else NO_PROPOSAL)
        bids = [Bid(p.survival, turn.num_fill) for p, turn in zip(proposals, turns, strict=True)]
        counts = award_rows(bids, rows, max_rows, self._cost)
        paid = [count - bid.num_paid for count, bid in zip(counts, bids, strict=True)]
        taken = self._looking.looks(accounts, paid, rows)
        return [
            Award(proposal.ids[:count], count, look if was else None)
            for proposal, count, look, was in zip(proposals, counts, taken, looked, strict=True)
        ]

    def _accounts(self, turns: Sequence[Turn]) -> list[Account]:
        """Where looks of these sessions are booked."""
        greedy, sampled = (self._looking.account(len(turns), sampled=on) for on in (False, True))
        return [sampled if turn.session.is_sampled else greedy for turn in turns]

    def _proposal(self, session: Session, least: float, looks: bool) -> Proposal:
        wanted = min(self._max_drafts, session.max_drafts)
        return session.sources.propose(wanted, least, looks=looks)
