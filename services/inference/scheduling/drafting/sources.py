"""Where drafts come from and how likely they are to survive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from outrider.speculation.suffix_drafter import LEAST_SURVIVAL, DraftTokens, SuffixDrafter
from outrider.speculation.verification import Verification
from services.inference.scheduling.events import Drafts

_FORGETTING = 0.95
_PRIOR_WEIGHT = 4.0
MAX_TAIL = 32
"""Tokens that a guess may look past; a commit has fewer."""


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


class Proposal(NamedTuple):
    """Drafts of one session."""

    ids: tuple[int, ...]
    survival: tuple[float, ...]


NO_PROPOSAL = Proposal((), ())
NO_GUESS = DraftTokens()


class DraftSources:
    """One session's edge chain and suffix drafter; None for a source that is not to be used."""

    def __init__(
        self, chain: EdgeChain | None, drafter: SuffixDrafter | None, average: Acceptance
    ) -> None:
        """`average` is over the edge drafts of a trust group's sessions: what a new one is believed
        to be."""
        self.chain = chain
        self._drafter = drafter
        self._average = average
        self._edge = Acceptance(average.rate)
        self._num_taught = 0
        self._tail: Sequence[int] = ()
        """The session's last tokens, which the suffix drafter has yet to learn..."""
        self._ready = False
        """...and whether they are all that it has not seen."""
        self._looked = True
        """Whether the suffix drafter was asked at the last proposal."""
        self._drafted = False
        self._offered: tuple[int, ...] = ()
        """What the edge's chain had at the last proposal."""

    @property
    def can_look(self) -> bool:
        """Whether there is a suffix drafter to ask."""
        return self._drafter is not None

    def num_untaught(self, ids: Sequence[int]) -> int:
        """How many of the session's `ids` the suffix drafter has yet to see."""
        return 0 if self._drafter is None else len(ids) - self._num_taught

    def keeps_up(self, ids: Sequence[int]) -> bool:
        """Show the session's `ids`, all so far. The last few wait for study(): guesses look past
        them. False where they are more than that, a prompt."""
        taught = self._num_taught
        self._ready = self._drafter is None or 0 < taught >= len(ids) - MAX_TAIL
        self._tail = ids[taught:] if self._ready and self._drafter is not None else ()
        return self._ready

    def teach(self, ids: Sequence[int], max_tokens: int) -> int:
        """The same, and if they are more the suffix drafter learns at most max_tokens of them; it
        makes no guess before it keeps up. Returns how many it learned."""
        if self.keeps_up(ids):
            return 0
        count = min(self.num_untaught(ids), max_tokens)
        self._learn(ids[self._num_taught : self._num_taught + count])
        self.keeps_up(ids)
        return count

    def study(self) -> None:
        """Let the suffix drafter learn what it was shown last; if it is not asked for guesses, not
        before it is a good part of a tail: its tables are fetched from memory once for all."""
        if self._drafter is not None and (self._looked or len(self._tail) >= MAX_TAIL // 2):
            self._learn(self._tail)
            self._tail = ()
            self._drafter.update_statistics()

    def _learn(self, ids: Sequence[int]) -> None:
        if ids and self._drafter is not None:
            self._drafter.extend(ids)
            self._num_taught += len(ids)

    def propose(
        self, max_tokens: int, least: float = LEAST_SURVIVAL, *, looks: bool = True
    ) -> Proposal:
        """At most max_tokens drafts, as long as they are this likely: the chain that is ahead and
        what the suffix drafter, if the session `looks`, guesses behind it, or what it guesses by
        itself, if that promises more tokens. So a chain of bad guesses takes nothing from a session
        that repeats itself."""
        self._looked = looks
        edge = tuple(self.chain.ids[:max_tokens]) if self.chain is not None else ()
        self._offered = edge
        drafter = self._drafter if looks and self._ready and max_tokens else None
        guess = drafter.draft_after(self._tail, max_tokens, least) if drafter else NO_GUESS
        survival = tuple(accumulate([self._edge.rate] * len(edge), float.__mul__)) if edge else ()
        self._drafted = drafter is not None and sum(guess.survival) >= sum(survival)
        if self._drafted:
            return Proposal(guess.ids, guess.survival) if guess.ids else NO_PROPOSAL
        if drafter is None or len(edge) == max_tokens:
            return Proposal(edge, survival) if edge else NO_PROPOSAL
        more = drafter.draft_after((*self._tail, *edge), max_tokens - len(edge), least)
        tail = tuple(survival[-1] * chance for chance in more.survival)
        return Proposal(edge + more.ids, survival + tail)

    def learn(self, num_guessed: int, verdict: Verification) -> None:
        """A round with num_guessed drafts of its proposal, if it had one, committed this. What is
        believed of the edge is learned from all that it had offered by then, verified or not."""
        offered, drafted = self._offered, self._drafted
        self._offered, self._drafted = (), False  # the next round may go without a proposal
        if self._drafter is not None and drafted and num_guessed:
            self._drafter.observe(num_guessed, verdict.accepted)
        tried = right = 0
        for guess, token in zip(offered, verdict.ids, strict=False):
            tried, right = tried + 1, right + (guess == token)
            if guess != token:
                break
        if tried:
            self._edge.observe(tried, right)
            self._average.observe(tried, right)
