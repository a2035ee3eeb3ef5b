"""The drafts ahead of the commits: one chain per epoch, made by a drafter, checked by commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from outrider.bounds import NonNegativeInt, between
from outrider.errors import MalformedFrameError
from outrider.session.region import Draft
from services.edge.session.acceptance import DraftOutcome
from services.edge.session.draft_sources import Drafter, Guess
from services.edge.session.events import MAX_LEAD


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How many drafts are made, and how likely they have to be."""

    max_lead: Annotated[int, between(0, MAX_LEAD)] = 32
    """Most drafts ahead of the commits; the region's own limit may be lower."""
    min_survival: Annotated[float, between(0.01, 1)] = 0.2
    """Least probability of a draft, counted from the last commit."""
    first_tokens: NonNegativeInt = 4
    first_survival: Annotated[float, between(0.01, 1)] = 0.01
    """The same for the reply's first `first_tokens`: they are made while the region prefills, and
    those behind the first can be shown as soon as it is committed."""
    absorb_tokens: int = 128
    """Most final ids that the drafter learns per `advance`; bounds the time the loop is blocked."""

    def least(self, position: int) -> float:
        """Least survival of a draft for position `position` of the reply."""
        return self.first_survival if position < self.first_tokens else self.min_survival


class DraftProgress(NamedTuple):
    """The result of `advance`."""

    is_behind: bool = False
    """Final ids remain to be learned; nothing was drafted."""
    num_made: int = 0
    """Drafts made."""
    took_s: float = 0.0
    """Time that making them took."""
    num_kept: int = 0
    """Those of them that are likely enough to be in the chain."""


class CheckedDrafts(NamedTuple):
    """Result of checking the chain's drafts against a commit."""

    diverged: bool = False
    """A draft of the chain proved wrong; the chain was dropped."""
    outcomes: tuple[DraftOutcome, ...] = ()
    """Outcomes of the drafts that were confirmed, or dropped with the chain."""
    ended_at: int | None = None
    """Depth at which the drafter had nothing to add to the chain, if the commit went past it."""
    on_its_own: bool = True
    """No draft of the edge had a part in the region's call."""


NOTHING_CHECKED: Final = CheckedDrafts()
"""Result for a commit when the chain had no draft."""


@dataclass(frozen=True, slots=True)
class _Draft:
    token: int
    survival: float
    """Counted from the last commit, of calibrated chances."""
    source: str
    confidence: float
    """The probability its source gave it, given that all before it are right."""


class DraftChain:
    """Drafts for the positions [committed, committed + n) of a reply, and which of them were sent.

    An epoch is one contiguous chain: whenever the next frame would not continue the last one, a new
    epoch begins.
    """

    def __init__(
        self,
        drafter: Drafter,
        limits: DraftLimits,
        stop_ids: frozenset[int],
        max_tokens: int,
        chance: Callable[[str, float, int], float] = lambda source, confidence, position: (
            confidence
        ),
    ) -> None:
        """`chance`: the calibrated probability of a draft given that those before it are right,
        from its source, its confidence and its position in the reply."""
        self._drafter = drafter
        self._limits = limits
        self._chance = chance
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._unlearned: list[int] = []
        """Final ids that the drafter has not learned yet."""
        self._drafts: list[_Draft] = []
        self._num_confirmed = 0
        """Drafts of the chain that were committed already."""
        self._has_ended = False
        """Whether the chain is as long as the drafter can make it."""
        self._sent_to: int | None = 0
        """Position where the epoch's next frame begins; None: the epoch is over."""
        self._reach = 0
        """Highest position that a frame of the epoch ended at; above `_sent_to` while drafts are to
        be sent again."""
        self._last_reach = 0
        """The same before the last frame."""
        self._max_lead = limits.max_lead
        self._resend = False
        """Whether the region dropped drafts it was sent: they are to be sent again."""
        self.committed = 0
        """Final tokens."""
        self.epoch = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """[n] the drafts."""
        return tuple(draft.token for draft in self._drafts)

    @property
    def survival(self) -> tuple[float, ...]:
        """[n] probability that each draft and all before it are right, never rising."""
        return tuple(draft.survival for draft in self._drafts)

    @property
    def ends_reply(self) -> bool:
        """Whether the last draft is a token that ends the reply."""
        return bool(self._drafts) and self._drafts[-1].token in self._stop_ids

    @property
    def num_sent(self) -> int:
        """Drafts of the chain that the region has been sent."""
        return max(0, (self._sent_to or 0) - self.committed)

    def learn(self, ids: Sequence[int]) -> None:
        """Ids before the reply: the prompt."""
        self._unlearned.extend(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """The reply begins with these ids, committed by an earlier run."""
        self.committed = len(ids)
        self._unlearned.extend(ids)
        self.lose(self.epoch)

    def lose(self, epoch: int) -> None:
        """The region has no drafts of this epoch or any before it."""
        if self.epoch <= epoch:
            self._sent_to = None

    def commit(
        self, epoch: int, base: int, accepted: int, ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], CheckedDrafts]:
        """Check the chain against a commit; returns the ids that it makes final. Raises
        MalformedFrameError for an impossible one."""
        self._check(epoch, base, accepted)
        if not self._drafts and not accepted:
            self._commit_undrafted(ids)
            return ids, NOTHING_CHECKED
        drafts = self.ids
        final = (*drafts[:accepted], *ids)
        diverged = final[: len(drafts)] != drafts[: len(final)]
        had_some = epoch == self.epoch and self.num_sent > 0
        checked = CheckedDrafts(
            diverged,
            self._outcomes(final, diverged),
            self._ended_at(final, diverged),
            on_its_own=not accepted and not (diverged and had_some),
        )
        self.committed += len(final)
        self._unlearned.extend(final)
        self._drop(len(drafts) if diverged else len(final))
        if diverged:
            self._sent_to = None
        elif self._sent_to is not None and self.committed <= self._reach:
            self._sent_to = max(self._sent_to, self.committed)
        return final, checked

    def _commit_undrafted(self, final: tuple[int, ...]) -> None:
        """Do what `commit` does, faster, for an empty chain."""
        self.committed += len(final)
        self._unlearned.extend(final)
        self._has_ended = False
        self._num_confirmed = 0
        if self._sent_to is not None and self.committed <= self._reach:
            self._sent_to = max(self._sent_to, self.committed)

    @property
    def num_unlearned(self) -> int:
        """Final ids that the drafter has not learned yet."""
        return len(self._unlearned)

    def limit_lead(self, max_lead: int) -> None:
        """The region keeps at most `max_lead` drafts and has dropped any others, which are sent
        again. 0 changes nothing."""
        if max_lead:
            self._max_lead = min(self._limits.max_lead, max_lead)
            self._resend = self._resend or self.num_sent > self._max_lead

    def advance(self, lead: int) -> DraftProgress:
        """Learn the tokens that became final, then add drafts, up to `lead` ahead of the
        commits."""
        most = self._limits.absorb_tokens
        if self._unlearned:
            self._drafter.extend(self._unlearned[:most])
            self._unlearned = self._unlearned[most:]
        if self._unlearned:
            return DraftProgress(is_behind=True)
        room = min(lead, self._max_lead, self._max_tokens - self.committed) - len(self._drafts)
        if room <= 0 or self.ends_reply:
            return DraftProgress()
        num_before = len(self._drafts)
        guess = self._grow(room)
        return DraftProgress(False, len(guess.ids), guess.took_s, len(self._drafts) - num_before)

    def take_unsent(self) -> Draft | None:
        """The drafts not sent so far as one frame; they count as sent."""
        # What the region dropped may have been committed meanwhile, and more.
        resend = self._resend and self._sent_to is not None and self.committed <= self._reach
        self._resend = False
        start = self.committed + (0 if resend else self.num_sent)
        ids = self.ids[start - self.committed : self._max_lead]
        if not ids:
            return None
        joins = resend or self._sent_to == start
        self.epoch += not joins
        self._sent_to = start + len(ids)
        self._last_reach = self._reach if joins else 0
        self._reach = max(self._sent_to, self._last_reach)
        # Epoch 0 begins with the reply, before anything was sent.
        return Draft(self.epoch, start, ids, continues=joins and start > 0)

    def requeue(self, frame: Draft) -> None:
        """The frame taken last could not be sent: its drafts are unsent again. If it was the first
        of its epoch, the next frame begins another one."""
        self._sent_to = frame.base if frame.continues or not frame.base else None
        self._reach = self._last_reach

    def _check(self, epoch: int, base: int, accepted: int) -> None:
        if base != self.committed:
            raise MalformedFrameError(
                f"the region committed from token {base}, not from {self.committed}"
            )
        num_sent = max(0, self._reach - self.committed)
        if accepted and (epoch != self.epoch or accepted > num_sent):
            raise MalformedFrameError(
                f"the region accepted {accepted} drafts of epoch {epoch}; "
                f"it was sent {num_sent} of epoch {self.epoch}"
            )

    def _outcomes(self, final: Sequence[int], diverged: bool) -> tuple[DraftOutcome, ...]:
        """Outcomes of the confirmed drafts; if one was wrong, also of it and all drafts behind
        it."""
        outcomes, alive = list[DraftOutcome](), True
        decided = self._drafts if diverged else self._drafts[: len(final)]
        for index, draft in enumerate(decided):
            right = alive and index < len(final) and final[index] == draft.token
            depth = self._num_confirmed + index
            first_wrong = alive and not right
            outcomes.append(
                DraftOutcome(
                    draft.source,
                    self.committed + index,
                    depth,
                    draft.confidence,
                    right,
                    first_wrong=first_wrong,
                )
            )
            alive = right
        return tuple(outcomes)

    def _ended_at(self, final: Sequence[int], diverged: bool) -> int | None:
        """None also where there was no chain: then nothing was drafted in vain."""
        if not self._has_ended or not self._drafts or diverged or len(final) <= len(self._drafts):
            return None
        return self._num_confirmed + len(self._drafts)

    def _grow(self, room: int) -> Guess:
        survival = self._drafts[-1].survival if self._drafts else 1.0
        guess, before = self._drafter.draft_after(self.ids, room, self._is_wanted), 1.0
        self._has_ended = guess.ended
        for token, raw_survival, source in zip(
            guess.ids[:room], guess.survival, guess.sources, strict=False
        ):
            confidence = raw_survival / before if before else 0.0
            position = self.committed + len(self._drafts)
            survival *= self._chance(source, confidence, position)
            before = raw_survival
            if survival < self._limits.least(position):
                self._has_ended = True
                break
            self._drafts.append(_Draft(token, survival, source, confidence))
            if token in self._stop_ids:
                break
        return guess

    def _is_wanted(self, source: str, confidence: float) -> bool:
        """Whether a next draft of this source and confidence is likely enough."""
        survival = self._drafts[-1].survival if self._drafts else 1.0
        position = self.committed + len(self._drafts)
        return survival * self._chance(source, confidence, position) >= self._limits.least(position)

    def _drop(self, count: int) -> None:
        """Drop the first `count` drafts; the survival of the rest takes them as right."""
        gone, self._drafts = self._drafts[:count], self._drafts[count:]
        self._num_confirmed = self._num_confirmed + len(gone) if self._drafts else 0
        if not self._drafts:
            self._has_ended = False
        elif gone:
            given = gone[-1].survival
            self._drafts = [
                _Draft(d.token, min(1.0, d.survival / given), d.source, d.confidence)
                for d in self._drafts
            ]
