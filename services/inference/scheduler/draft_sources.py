"""Sources of drafts, how likely their drafts are to be accepted, and when the drafter is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from outrider.lru_map import LruMap
from outrider.sampling.constraint import Constraint
from outrider.session.region import Draft
from outrider.speculation.learnt import Learnt, Numbers, Restore, nothing, row_of
from outrider.speculation.ngram_store import MAX_SALTS, NgramStatistics, NgramStore
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.prediction_drafter import PredictionDrafter
from outrider.speculation.suffix_drafter import LEAST_SURVIVAL, DraftTokens, SuffixDrafter
from outrider.speculation.verification import Verification, common_prefix_length

MAX_UNSEEN_TOKENS = 32
"""Most committed tokens that the suffix drafter need not have learned when it drafts; a commit has
no more."""

FORCED_SURVIVAL = 0.99
"""Chance that an id which the grammar forces is accepted. The mask allows no other one, but behind
it the same text may be cut into other ids."""

# EdgeAcceptance
_ACCEPTANCE_FORGETTING = 0.95
_PRIOR_WEIGHT = 4.0
"""Drafts that the prior counts for."""
_EDGE_ACCEPTANCE = "edge_acceptance"
"""The name under which it is kept."""
_MOST_TRIED = 1e6
_EDGE_PRIOR = 0.6
"""Chance that an edge's draft is accepted, before any was seen."""

# ProfitTracker, DraftBackoff
_PROFIT_FORGETTING = 0.995
"""Weight of an attempt against the next one: the last 200 count."""
_FIRST_PROFIT, _FIRST_WEIGHT = 0.1, 50.0
"""Tokens that attempts are assumed to gain until some were made, and attempts this counts for."""
_MAX_SKIPPED_CALLS = 15
"""Calls between two attempts of a session that finds nothing."""


class EdgeChain:
    """The edge's drafts beyond the committed reply, of its newest epoch.

    An epoch is dead once one of its drafts proved wrong; the edge then starts the next one, and
    later arrivals of the dead one are dropped. A gap kills it too: had a lost draft been wrong, the
    edge would have left the epoch, and the meaning of an accepted one behind it would be unknown.
    """

    def __init__(self, epoch: int, max_lead: int) -> None:
        self.epoch = epoch
        self.dead = False
        self.ids: list[int] = []
        """The draft for the next uncommitted token, and those after it."""
        self._max_lead = max_lead
        self._end: int | None = None
        """Number of the reply's token behind the last draft of the epoch; None before the first."""

    def receive(self, drafts: Draft, ids: Sequence[int], num_prompt: int = 0) -> None:
        """Add a frame, given prompt and committed reply. Frames of an epoch extend each other;
        drafts beyond the lead limit are cut."""
        if drafts.epoch > self.epoch:
            self.epoch = drafts.epoch
            self.dead = False
            self.ids = []
            self._end = None
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

    def _add(self, drafts: Draft, ids: Sequence[int], begin: int) -> bool:
        """Add a frame that begins at index `begin` of `ids`; False if it contradicts known
        tokens."""
        overlap = max(0, len(ids) - begin)
        offset = max(0, begin - len(ids))
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
        for draft, token in zip(self.ids, committed, strict=False):
            if draft != token:
                self._die()
                return agreed
            agreed += 1
        del self.ids[:agreed]
        return agreed

    def _die(self) -> None:
        self.dead = True
        self.ids = []


class EdgeAcceptance:
    """Chance that an edge's draft is right if all before it were; forgets exponentially."""

    def __init__(self, prior: float) -> None:
        self._accepted = prior * _PRIOR_WEIGHT
        self._tried = _PRIOR_WEIGHT
        self.version = 0
        """Chains counted since it was made."""

    def numbers(self) -> list[float]:
        """For `restore`."""
        return [self._accepted, self._tried]

    def restore(self, numbers: Numbers) -> None:
        """Continue from a row saved by `numbers`; anything else is ignored."""
        row = row_of(numbers, _EDGE_ACCEPTANCE, 2, 0.0, _MOST_TRIED)
        if row is not None and row[0] <= row[1] and row[1] > 0:
            self._accepted, self._tried = row

    @property
    def rate(self) -> float:
        return self._accepted / self._tried

    def observe(self, tried: int, accepted: int) -> None:
        """`tried` counts the accepted drafts and the one that was wrong, if any."""
        self.version += 1
        self._accepted = self._accepted * _ACCEPTANCE_FORGETTING + accepted
        self._tried = self._tried * _ACCEPTANCE_FORGETTING + tried


@dataclass(slots=True)
class ProfitTracker:
    """Gain less cost of one kind of drafting attempts, in tokens; forgets exponentially."""

    profit: float = _FIRST_PROFIT * _FIRST_WEIGHT
    weight: float = _FIRST_WEIGHT

    def add(self, profit: float) -> None:
        """One more attempt."""
        self.profit = self.profit * _PROFIT_FORGETTING + profit
        self.weight = self.weight * _PROFIT_FORGETTING + 1.0


class DraftAttempt(NamedTuple):
    """The suffix drafter of one session was asked for drafts in one call."""

    tracker: ProfitTracker
    """Tracker that counts the outcome."""
    cost_tokens: float
    """Tokens that all sessions of the call would commit in the time that the attempt and the rows
    of its drafts take."""
    succeeded: bool
    """Whether drafts were worth their rows."""


@dataclass(slots=True)
class DraftBackoff:
    """When a session's suffix drafter is asked next: after calls skipped at doubling distances
    while attempts do not pay (binary exponential backoff: Metcalfe and Boggs, 1976)."""

    num_skipped: int = 0
    """Calls that are skipped after the last attempt."""
    num_to_skip: int = 0
    """Attempts of these still to be skipped."""

    def is_due(self, tracker: ProfitTracker) -> bool:
        """Whether to ask in a call whose attempts this tracker counts; call once per call."""
        if tracker.profit >= 0.0:
            self.num_skipped = 0
            self.num_to_skip = 0
            return True
        if self.num_to_skip == 0:
            return True
        self.num_to_skip -= 1
        return False

    def observe(self, attempt: DraftAttempt, num_committed: int) -> None:
        """The call that the attempt was made for committed so many tokens to the session."""
        # After a success the next one is likelier than usual: while attempts do not pay, only those
        # that follow a failure tell whether they would.
        if attempt.tracker.profit >= 0.0 or self.num_skipped:
            attempt.tracker.add(num_committed - 1 - attempt.cost_tokens)
        if attempt.succeeded:
            self.num_skipped = 0
        else:
            self.num_skipped = min(_MAX_SKIPPED_CALLS, 2 * self.num_skipped + 1)
        self.num_to_skip = self.num_skipped


class Proposal(NamedTuple):
    """Drafts for one session's next call."""

    ids: tuple[int, ...]
    survival: tuple[float, ...]
    """Probability that draft i and all before it are accepted; never rises."""


NO_PROPOSAL = Proposal((), ())


class DraftSources:
    """One session's edge chain, suffix drafter and prediction; None for a source that is not used.
    Under a grammar: the tokens that it forces, and those of the sources' drafts that it allows."""

    def __init__(
        self,
        chain: EdgeChain | None,
        drafter: SuffixDrafter | None,
        group_acceptance: EdgeAcceptance,
        constraint: Constraint | None = None,
        *,
        drafts_forced: bool = True,
        prediction: PredictionDrafter | None = None,
    ) -> None:
        """`group_acceptance`: of the edge drafts of the trust group's sessions, which a new session
        starts from and adds to. `drafts_forced`: whether what the constraint forces is drafted."""
        self.chain = chain
        self.accepted_prediction_tokens = 0
        """Drafts of the prediction that were accepted."""
        self.rejected_prediction_tokens = 0
        """Drafts of the prediction that were verified and not accepted."""
        self._prediction = prediction
        self._constraint = constraint
        self._drafts_forced = drafts_forced
        self.backoff = DraftBackoff()
        self._drafter = drafter
        self._group_acceptance = group_acceptance
        self._acceptance = EdgeAcceptance(group_acceptance.rate)
        self._num_seen = 0
        """The session's tokens that the suffix drafter has learned, from the first on."""
        self._unseen: Sequence[int] = ()
        """The tokens behind them, if they are few enough for it to draft."""
        self._is_ready = drafter is None
        """Whether the suffix drafter has learned all tokens but `_unseen`."""
        self._was_asked = True
        """Whether the suffix drafter was asked for the last proposal."""
        self._was_drafted = False
        """Whether the last proposal is only the suffix drafter's."""
        self._was_predicted = False
        """Whether the last proposal is only the prediction's."""
        self._edge_offer: tuple[int, ...] = ()
        """The chain's drafts at the last proposal."""

    @property
    def has_drafter(self) -> bool:
        return self._drafter is not None

    @property
    def drafts_here(self) -> bool:
        """Whether there may be drafts that are none of the edge."""
        return (
            self._drafter is not None
            or self._prediction is not None
            or (self._constraint is not None and self._drafts_forced)
        )

    @property
    def may_propose(self) -> bool:
        """Whether any source may have drafts to propose."""
        return self.drafts_here or (self.chain is not None and bool(self.chain.ids))

    @property
    def _has_none(self) -> bool:
        """Whether no source but the suffix drafter can have drafts."""
        if self._constraint is not None or self._prediction is not None:
            return False
        return self.chain is None or not self.chain.ids

    @property
    def num_edge_drafts(self) -> int:
        """How many of the last proposal's drafts, from the first on, are the edge's."""
        return 0 if self._was_drafted or self._was_predicted else len(self._edge_offer)

    @property
    def follows_prediction(self) -> bool:
        """Whether drafts of the prediction are nearly certain: no others need to be looked for."""
        return self._prediction is not None and self._prediction.is_following

    def num_unseen(self, ids: Sequence[int]) -> int:
        """How many of the session's `ids` the suffix drafter has not learned."""
        return 0 if self._drafter is None else len(ids) - self._num_seen

    def is_ready(self, ids: Sequence[int]) -> bool:
        """Note the session's `ids`, all so far, and return whether the suffix drafter can draft
        behind them. It can if only the last few are not learned: update_estimates() learns them
        later. It cannot if more are missing, as in a prompt: then learn_prompt() is needed."""
        num_seen = self._num_seen
        self._is_ready = self._drafter is None or 0 < num_seen >= len(ids) - MAX_UNSEEN_TOKENS
        self._unseen = ids[num_seen:] if self._is_ready and self._drafter is not None else ()
        return self._is_ready

    def learn_prompt(self, ids: Sequence[int], max_tokens: int) -> int:
        """Let the suffix drafter learn at most max_tokens of `ids` if it is not ready; it drafts
        nothing before. Returns how many it learned."""
        if self.is_ready(ids):
            return 0
        count = min(self.num_unseen(ids), max_tokens)
        self._learn(ids[self._num_seen : self._num_seen + count])
        self.is_ready(ids)
        return count

    def update_estimates(self) -> None:
        """Let the suffix drafter learn committed tokens. If it is not being asked for drafts, it
        waits for several tokens: its tables are then fetched from memory once for all."""
        if self._drafter is not None and (
            self._was_asked or len(self._unseen) >= MAX_UNSEEN_TOKENS // 2
        ):
            self._learn(self._unseen)
            self._unseen = ()
            self._drafter.update_statistics()

    def _learn(self, ids: Sequence[int]) -> None:
        if ids and self._drafter is not None:
            self._drafter.extend(ids)
            self._num_seen += len(ids)

    def propose(
        self,
        max_tokens: int,
        least: float = LEAST_SURVIVAL,
        *,
        ask_drafter: bool = True,
        max_predicted: int = 0,
    ) -> Proposal:
        """At most max_tokens drafts, or max_predicted of the prediction, as long as they are at
        least this likely to survive, from the source of which more are expected to be accepted."""
        self._was_predicted = False
        if not ask_drafter and self._has_none:  # as of most sessions where drafting does not pay
            self._was_asked = self._was_drafted = False
            self._edge_offer = ()
            return NO_PROPOSAL
        proposal = self._drafted(max_tokens, least, ask_drafter=ask_drafter)
        if self._prediction is not None:
            predicted = self._allowed(self._prediction.draft(max_predicted, least))
            self._was_predicted = sum(predicted.survival) > sum(proposal.survival)
            if self._was_predicted:
                self._was_drafted = False
                return predicted
        return proposal

    def _drafted(self, max_tokens: int, least: float, *, ask_drafter: bool) -> Proposal:
        """Drafts that are none of the prediction.

        Either the edge's chain, continued by the suffix drafter, or the suffix drafter's own drafts
        if more of these are expected to be accepted: a chain of bad drafts costs nothing where the
        text repeats itself. Where the grammar forces ids, these come first. None that it forbids
        is proposed.
        """
        self._was_asked = ask_drafter
        forced = self._forced(max_tokens)
        edge = self._edge_chain(max_tokens, forced)
        self._edge_offer = edge
        drafter = self._drafter if ask_drafter and self._is_ready and max_tokens else None
        guess = NO_PROPOSAL
        if drafter and not forced:
            guess = self._allowed(drafter.draft_after(self._unseen, max_tokens, least))
        head = edge if len(edge) >= len(forced) else forced
        survival: tuple[float, ...] = ()
        if head:
            rates = [FORCED_SURVIVAL] * len(forced)
            rates += [self._acceptance.rate] * (len(head) - len(forced))
            survival = tuple(accumulate(rates, float.__mul__))
        self._was_drafted = drafter is not None and sum(guess.survival) >= sum(survival)
        if self._was_drafted:
            return guess
        if drafter is None or len(head) == max_tokens:
            return Proposal(head, survival) if head else NO_PROPOSAL
        more = drafter.draft_after((*self._unseen, *head), max_tokens - len(head), least)
        tail = tuple(survival[-1] * chance for chance in more.survival)
        return self._allowed(Proposal(head + more.ids, survival + tail))

    def _forced(self, max_tokens: int) -> tuple[int, ...]:
        if self._constraint is None or not self._drafts_forced or not max_tokens:
            return ()
        return self._constraint.forced(max_tokens)

    def _edge_chain(self, max_tokens: int, forced: tuple[int, ...]) -> tuple[int, ...]:
        """The edge's drafts, as far as the grammar allows them; none of a chain that contradicts
        forced tokens."""
        edge = tuple(self.chain.ids[:max_tokens]) if self.chain is not None else ()
        if common_prefix_length(edge, forced) < min(len(edge), len(forced)):
            return ()
        return self._valid(edge)

    def _valid(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The longest prefix of these drafts that the grammar allows."""
        if self._constraint is None or not ids:
            return ids
        return ids[: self._constraint.num_valid(ids)]

    def _allowed(self, drafts: Proposal | DraftTokens) -> Proposal:
        ids = self._valid(drafts.ids)
        return Proposal(ids, drafts.survival[: len(ids)]) if ids else NO_PROPOSAL

    def observe(self, num_verified: int, verdict: Verification) -> None:
        """The verdict of a call that verified num_verified drafts of the last proposal, if there
        was one. The edge's acceptance is learned from all that its chain offered, verified or
        not."""
        edge_offer, was_drafted = self._edge_offer, self._was_drafted
        if not (edge_offer or was_drafted or self._prediction is not None):
            return
        self._edge_offer = ()  # the next call may go without a proposal
        self._was_drafted = False
        self._observe_prediction(num_verified, verdict)
        if self._drafter is not None and was_drafted and num_verified:
            self._drafter.observe(num_verified, verdict.accepted)
        tried = right = 0
        for draft, token in zip(edge_offer, verdict.ids, strict=False):
            tried += 1
            if draft != token:
                break
            right += 1
        if tried:
            self._acceptance.observe(tried, right)
            self._group_acceptance.observe(tried, right)

    def _observe_prediction(self, num_verified: int, verdict: Verification) -> None:
        was_predicted, self._was_predicted = self._was_predicted, False
        if self._prediction is None:
            return
        self._prediction.extend(verdict.ids)
        if was_predicted:
            accepted = min(verdict.accepted, num_verified)
            self.accepted_prediction_tokens += accepted
            self.rejected_prediction_tokens += num_verified - accepted


class GroupStatistics(NamedTuple):
    """Statistics of the replies of one trust group."""

    phrases: NgramStatistics
    edge_acceptance: EdgeAcceptance


class GroupStatisticsTable:
    """Found by cache salt, which names a trust group. Nothing passes from one to another."""

    def __init__(self, prior: NgramPrior | None = None, restore: Restore = nothing) -> None:
        """`prior`: n-grams that the model is known to produce, used for all groups; `restore`: what
        was kept of a group."""
        self._restore = restore
        self._books = NgramStore(prior, restore=restore)
        self._acceptances: LruMap[bytes, EdgeAcceptance] = LruMap(MAX_SALTS)

    def of(self, salt: bytes) -> GroupStatistics:
        """The group's statistics. An empty salt is no group: its statistics are dropped with the
        reply."""
        return GroupStatistics(self._books.of(salt), self._edge_acceptance(salt))

    def version_of(self, group: bytes) -> int:
        """Number of changes of a group's statistics; see learnt.GroupStatistics."""
        phrases, acceptance = self._books.known(group), self._acceptances.peek(group)
        learnt = phrases.version if phrases is not None else 0
        return learnt + (acceptance.version if acceptance is not None else 0)

    def learnt_of(self, group: bytes) -> Learnt:
        """A group's statistics to keep; see learnt.GroupStatistics."""
        learnt = self._books.of(group).learnt()
        acceptance = self._edge_acceptance(group)
        return Learnt(learnt.tables, {**learnt.numbers, _EDGE_ACCEPTANCE: acceptance.numbers()})

    def _edge_acceptance(self, salt: bytes) -> EdgeAcceptance:
        found = self._acceptances.get(salt)
        if found is None:
            found = EdgeAcceptance(_EDGE_PRIOR)
            found.restore(self._restore(salt).numbers)
        if salt:
            self._acceptances.put(salt, found)
        return found
