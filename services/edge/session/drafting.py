"""Drafts ahead of the commits: one chain per epoch, grown by a drafter, checked by commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.errors import MalformedFrameError
from services.edge.session.actions import SendDraft
from services.edge.session.control.acceptance import Outcome
from services.edge.session.sources.base import Drafter, Guess


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How far the edge runs ahead."""

    max_lead: int = 32
    """Most drafts ahead of the commits; the region's own limit may be lower."""
    min_survival: float = 0.2
    """No draft less likely than this, counted from the last commit..."""
    first_tokens: int = 4
    """...but for a reply's first tokens..."""
    first_survival: float = 0.01
    """...where this is enough: they are made while the region reads the prompt, and those behind
    the first are there to be shown as soon as it turns out right."""
    absorb_tokens: int = 128
    """Most final ids the drafter learns in one go; bounds the time the loop is held."""

    def least(self, number: int) -> float:
        """Least survival of a draft for the reply's token `number`."""
        return self.first_survival if number < self.first_tokens else self.min_survival


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of one call of `advance`."""

    is_behind: bool = False
    """Not all that is final was learned yet."""
    num_made: int = 0
    """Drafts that the drafter came up with..."""
    took_s: float = 0.0
    """...in this time..."""
    num_kept: int = 0
    """...and how many are likely enough to be in the chain now."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A commit in plain ids, and what it says of the drafts."""

    ids: tuple[int, ...]
    diverged: bool
    """A draft of the chain proved wrong; the chain is gone."""
    outcomes: tuple[Outcome, ...] = ()
    """Of the drafts that are decided now: confirmed, or fallen with the chain."""
    ended_at: int | None = None
    """Depth at which a chain had ended for want of a guess, if the commit went past it."""
    on_its_own: bool = True
    """Nothing that the edge sent had a part in the region's call."""


@dataclass(frozen=True, slots=True)
class _Draft:
    token: int
    survival: float
    """Counted from the last commit, of calibrated chances."""
    source: str
    promise: float
    """Its source's chance that it is right, given all before it are."""


class DraftChain:
    """Drafts for the tokens [committed, committed + n), and which of them were sent.

    An epoch is one contiguous chain: whenever the next frame would not continue the last one, a new
    epoch begins.
    """

    def __init__(
        self,
        drafter: Drafter,
        limits: DraftLimits,
        stop_ids: frozenset[int],
        max_tokens: int,
        chance: Callable[[str, float, int], float] = lambda source, promise, position: promise,
    ) -> None:
        """`chance`: that a draft is right after right ones, from its source, what that promises,
        and the reply's token it is for."""
        self._drafter, self._limits, self._chance = drafter, limits, chance
        self._stop_ids, self._max_tokens = stop_ids, max_tokens
        self._unlearnt: list[int] = []
        self._drafts: list[_Draft] = []
        self._num_confirmed = 0
        # Whether the chain is as long as the drafter can make it.
        self._has_ended = False
        # Where the epoch's next frame begins; None: the epoch is dead.
        self._sent_to: int | None = 0
        # Where its frames ended at most, behind that if some go up again; and before the last one.
        self._reach = self._last_reach = 0
        self._max_lead = limits.max_lead
        self._again = False
        self.committed = self.epoch = 0

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
        self._unlearnt.extend(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """The reply begins with these ids, committed by an earlier run."""
        self.committed = len(ids)
        self._unlearnt.extend(ids)
        self.lose(self.epoch)

    def lose(self, epoch: int) -> None:
        """The region has nothing of what it was sent up to this epoch."""
        if self.epoch <= epoch:
            self._sent_to = None

    def commit(self, epoch: int, base: int, accepted: int, ids: Sequence[int]) -> Resolved:
        """Check the chain against a commit. Raises MalformedFrameError for an impossible one."""
        self._check(epoch, base, accepted)
        drafts = self.ids
        final = (*drafts[:accepted], *ids)
        diverged = final[: len(drafts)] != drafts[: len(final)]
        had_some = epoch == self.epoch and self.num_sent > 0
        resolved = Resolved(
            final,
            diverged,
            self._outcomes(final, diverged),
            self._ended_at(final, diverged),
            on_its_own=not accepted and not (diverged and had_some),
        )
        self.committed += len(final)
        self._unlearnt.extend(final)
        self._drop(len(drafts) if diverged else len(final))
        if diverged:
            self._sent_to = None
        elif self._sent_to is not None and self.committed <= self._reach:
            self._sent_to = max(self._sent_to, self.committed)
        return resolved

    def limit_lead(self, max_lead: int) -> None:
        """The region keeps no more than `max_lead` drafts, and has let go of those beyond that it
        was sent: they go up again. 0 changes nothing."""
        if max_lead:
            self._max_lead = min(self._limits.max_lead, max_lead)
            self._again = self._again or self.num_sent > self._max_lead

    def advance(self, lead: int) -> Progress:
        """Learn what became final, then draft on, up to `lead` ahead."""
        most = self._limits.absorb_tokens
        slice_, self._unlearnt = self._unlearnt[:most], self._unlearnt[most:]
        if slice_:
            self._drafter.extend(slice_)
        if self._unlearnt:
            return Progress(is_behind=True)
        room = min(lead, self._max_lead, self._max_tokens - self.committed) - len(self._drafts)
        if room <= 0 or self.ends_reply:
            return Progress()
        num_before = len(self._drafts)
        guess = self._grow(room)
        return Progress(False, len(guess.ids), guess.took_s, len(self._drafts) - num_before)

    def take_unsent(self) -> SendDraft | None:
        """The drafts not sent so far as one frame; they count as sent."""
        again, self._again = self._again and self._sent_to is not None, False
        start = self.committed + (0 if again else self.num_sent)
        ids = self.ids[start - self.committed : self._max_lead]
        if not ids:
            return None
        joins = again or self._sent_to == start
        self.epoch += not joins
        self._sent_to = start + len(ids)
        self._last_reach = self._reach if joins else 0
        self._reach = max(self._sent_to, self._last_reach)
        # Epoch 0 begins with the reply, before anything was sent.
        return SendDraft(self.epoch, start, ids, continues=joins and start > 0)

    def take_back(self, frame: SendDraft) -> None:
        """The frame taken last could not be sent: its drafts are to be sent once more. The epoch
        that it would have begun never was."""
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

    def _outcomes(self, final: Sequence[int], diverged: bool) -> tuple[Outcome, ...]:
        """Confirmed drafts, and if one is wrong, that and all behind it."""
        outcomes, alive = list[Outcome](), True
        decided = self._drafts if diverged else self._drafts[: len(final)]
        for index, draft in enumerate(decided):
            right = alive and index < len(final) and final[index] == draft.token
            depth = self._num_confirmed + index
            first_wrong = alive and not right
            outcomes.append(
                Outcome(
                    draft.source,
                    self.committed + index,
                    depth,
                    draft.promise,
                    right,
                    first_wrong=first_wrong,
                )
            )
            alive = right
        return tuple(outcomes)

    def _ended_at(self, final: Sequence[int], diverged: bool) -> int | None:
        """Not where there was no chain: who has nothing to send sends nothing in vain."""
        if not self._has_ended or not self._drafts or diverged or len(final) <= len(self._drafts):
            return None
        return self._num_confirmed + len(self._drafts)

    def _grow(self, room: int) -> Guess:
        survival = self._drafts[-1].survival if self._drafts else 1.0
        guess, promised = self._drafter.draft_after(self.ids, room), 1.0
        self._has_ended = guess.ended
        for token, promise, source in zip(
            guess.ids[:room], guess.survival, guess.sources, strict=False
        ):
            chance = promise / promised if promised else 0.0
            position = self.committed + len(self._drafts)
            survival *= self._chance(source, chance, position)
            promised = promise
            if survival < self._limits.least(position):
                self._has_ended = True
                break
            self._drafts.append(_Draft(token, survival, source, chance))
            if token in self._stop_ids:
                break
        return guess

    def _drop(self, count: int) -> None:
        """Forget the first drafts; the rest is as likely as it is given that these were right."""
        gone, self._drafts = self._drafts[:count], self._drafts[count:]
        self._num_confirmed = self._num_confirmed + len(gone) if self._drafts else 0
        if not self._drafts:
            self._has_ended = False
        elif gone:
            given = gone[-1].survival
            self._drafts = [
                _Draft(d.token, min(1.0, d.survival / given), d.source, d.promise)
                for d in self._drafts
            ]
