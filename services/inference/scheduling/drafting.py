"""Where drafts come from and how likely they are to survive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from outrider.speculation.suffix import LEAST_SURVIVAL, SuffixDrafter
from outrider.speculation.verify import Verdict
from services.inference.scheduling.events import Drafts

_FORGETTING = 0.95
_PRIOR_WEIGHT = 4.0


class EdgeChain:
    """The edge's guesses beyond the committed reply, of its newest epoch.

    An epoch is dead once its chain proved wrong; the edge then starts the next one, and what
    still arrives of the dead one is dropped. A gap kills it too: had a lost guess proved wrong,
    the edge would have left the epoch, and could not tell what an accepted one behind it was.
    """

    def __init__(self, epoch: int, max_lead: int) -> None:
        self.epoch = epoch
        self.dead = False
        self.ids: list[int] = []
        """The guess for the next uncommitted token, and those after it."""
        self._max_lead = max_lead
        self._end: int | None = None
        """Number of the reply's token behind the last guess of the epoch; None before the first."""

    def receive(self, drafts: Drafts, ids: Sequence[int], num_prompt: int = 0) -> None:
        """Add a frame, given prompt and committed reply. Frames of an epoch extend each other;
        guesses beyond the lead limit are cut."""
        if drafts.epoch > self.epoch:
            self.epoch, self.dead, self.ids, self._end = drafts.epoch, False, [], None
        if drafts.epoch < self.epoch or self.dead:
            return
        if drafts.continues and self._end is None:
            self._die()  # the frame with the chain's beginning was lost
            return
        num_reply = len(ids) - num_prompt
        end = min(drafts.base, num_reply) if self._end is None else self._end
        if drafts.base > end or not self._add(drafts, ids, num_prompt + drafts.base):
            self._die()
            return
        self._end = max(end, min(drafts.base + len(drafts.ids), num_reply + len(self.ids)))

    def _add(self, drafts: Drafts, ids: Sequence[int], begin: int) -> bool:
        """False if the frame, from place `begin` of `ids` on, contradicts what is known."""
        overlap, offset = max(0, len(ids) - begin), max(0, begin - len(ids))
        old, new = drafts.ids[:overlap], drafts.ids[overlap:]
        known = tuple(self.ids[offset : offset + len(new)])
        if old != tuple(ids[begin : begin + len(old)]) or known != new[: len(known)]:
            return False
        room = self._max_lead - len(self.ids)
        self.ids.extend(new[len(known) : len(known) + max(0, room)])
        return True

    def advance(self, committed: Sequence[int]) -> int:
        """Tokens were committed; returns how many of them, from the first on, the chain had."""
        agreed = 0
        for guess, token in zip(self.ids, committed, strict=False):
            if guess != token:
                self._die()
                return agreed
            agreed += 1
        del self.ids[:agreed]
        return agreed

    def _die(self) -> None:
        self.dead = True
        self.ids = []


class Acceptance:
    """Chance that a draft is right after right ones, forgetting exponentially."""

    def __init__(self, prior: float) -> None:
        self._accepted = prior * _PRIOR_WEIGHT
        self._tried = _PRIOR_WEIGHT

    @property
    def rate(self) -> float:
        return self._accepted / self._tried

    def observe(self, tried: int, accepted: int) -> None:
        """`tried` counts the accepted drafts and the one that was wrong, if any."""
        self._accepted = self._accepted * _FORGETTING + accepted
        self._tried = self._tried * _FORGETTING + tried


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of one session: the edge's first, the region's guesses behind them."""

    ids: tuple[int, ...]
    survival: tuple[float, ...]
    num_edge: int


NO_PROPOSAL = Proposal((), (), 0)


class DraftSources:
    """One session's edge chain and suffix drafter; None for a source that is not to be used."""

    def __init__(
        self, chain: EdgeChain | None, drafter: SuffixDrafter | None, average: Acceptance
    ) -> None:
        """`average` is over the edge drafts of all sessions: what a new one is believed to be."""
        self.chain = chain
        self._drafter = drafter
        self._average = average
        self._edge = Acceptance(average.rate)
        self._num_taught = 0
        self._ready = False
        self._drafted = False

    def num_untaught(self, ids: Sequence[int]) -> int:
        """How many of the session's `ids` the suffix drafter has yet to see."""
        return 0 if self._drafter is None else len(ids) - self._num_taught

    def teach(self, ids: Sequence[int], max_tokens: int) -> int:
        """Show the suffix drafter at most max_tokens more of the session's `ids`; returns how many
        that were. It drafts only when it has seen them all."""
        count = min(self.num_untaught(ids), max_tokens)
        if self._drafter is not None:
            self._drafter.extend(ids[self._num_taught : self._num_taught + count])
        self._num_taught += count
        self._ready = self.num_untaught(ids) == 0
        return count

    def study(self) -> None:
        """Let the suffix drafter learn from what it was taught last."""
        if self._drafter is not None:
            self._drafter.study()

    def propose(self, max_tokens: int, least: float = LEAST_SURVIVAL) -> Proposal:
        """At most max_tokens drafts: the chain that is ahead, then the suffix drafter's guess, as
        long as it is this likely."""
        edge = tuple(self.chain.ids[:max_tokens]) if self.chain is not None else ()
        survival = tuple(accumulate([self._edge.rate] * len(edge), float.__mul__))
        wanted = max_tokens - len(edge)
        self._drafted = False
        if wanted <= 0 or self._drafter is None or not self._ready:
            return Proposal(edge, survival, len(edge))
        if not edge:
            guess = self._drafter.draft(wanted, least)
            self._drafted = True
            return Proposal(guess.ids, guess.survival, 0)
        guess = self._drafter.draft_after(edge, wanted, least)
        tail = tuple(survival[-1] * chance for chance in guess.survival)
        return Proposal(edge + guess.ids, survival + tail, len(edge))

    def learn(self, num_guessed: int, num_edge: int, verdict: Verdict) -> None:
        """A round with num_guessed drafts of the last proposal, the first num_edge of them the
        chain's, committed this."""
        if self._drafter is not None and self._drafted:
            self._drafter.observe(num_guessed, verdict.accepted)
        if num_edge:
            tried, right = min(verdict.accepted + 1, num_edge), min(verdict.accepted, num_edge)
            self._edge.observe(tried, right)
            self._average.observe(tried, right)
