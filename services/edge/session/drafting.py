"""Drafts ahead of the commits: one chain per epoch, grown by a drafter, checked by commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.errors import MalformedFrameError
from services.edge.session.actions import SendDraft


class Guess(Protocol):
    """A continuation: n ids and, for each, the probability that it and all before it are right."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def survival(self) -> tuple[float, ...]: ...


class Drafter(Protocol):
    """A source of guesses (outrider.speculation.suffix.SuffixDrafter)."""

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        ...

    def draft_after(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess:
        """Guess on after the final ids and these."""
        ...


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How far the edge runs ahead."""

    max_lead: int = 32
    """Most drafts ahead of the commits; the region's own limit may be lower."""
    min_survival: float = 0.2
    """No draft less likely than this, counted from the last commit."""
    absorb_tokens: int = 128
    """Most final ids the drafter learns in one go; bounds the time the loop is held."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A commit in plain ids."""

    ids: tuple[int, ...]
    diverged: bool
    """A draft of the chain proved wrong; the chain is gone."""


class DraftChain:
    """Drafts for the tokens [committed, committed + n), and which of them were sent.

    Only `commit`, `advance` and `take_unsent` change it. An epoch is one contiguous chain:
    whenever the next frame would not continue the last one, a new epoch begins.
    """

    def __init__(
        self, drafter: Drafter, limits: DraftLimits, stop_ids: frozenset[int], max_tokens: int
    ) -> None:
        self._drafter = drafter
        self._limits = limits
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._unlearnt: list[int] = []
        self._ids: list[int] = []
        self._survival: list[float] = []
        # Where the epoch's next frame begins; None: the epoch is dead.
        self._sent_to: int | None = 0
        self._max_lead = limits.max_lead
        self.committed = 0
        self.epoch = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """[n] the drafts."""
        return tuple(self._ids)

    @property
    def survival(self) -> tuple[float, ...]:
        """[n] probability that each draft and all before it are right, never rising."""
        return tuple(self._survival)

    @property
    def ends_reply(self) -> bool:
        """Whether the last draft is a token that ends the reply."""
        return bool(self._ids) and self._ids[-1] in self._stop_ids

    @property
    def num_sent(self) -> int:
        """Drafts of the chain that the region has been sent."""
        return max(0, (self._sent_to or 0) - self.committed)

    def learn(self, ids: Sequence[int]) -> None:
        """Ids before the reply: the prompt."""
        self._unlearnt.extend(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """The reply begins with these ids, committed by an earlier run; nothing else is done."""
        self.committed = len(ids)
        self._unlearnt.extend(ids)
        self._sent_to = None  # the region knows of no chain that a frame could continue

    def commit(self, epoch: int, base: int, accepted: int, ids: Sequence[int]) -> Resolved:
        """Check the chain against a commit. Raises MalformedFrameError for an impossible one."""
        if base != self.committed:
            raise MalformedFrameError(
                f"the region committed from token {base}, not from {self.committed}"
            )
        if accepted and (epoch != self.epoch or accepted > self.num_sent):
            raise MalformedFrameError(
                f"the region accepted {accepted} drafts of epoch {epoch}; "
                f"it was sent {self.num_sent} of epoch {self.epoch}"
            )
        final = (*self._ids[:accepted], *ids)
        diverged = final[: len(self._ids)] != tuple(self._ids[: len(final)])
        self.committed += len(final)
        self._unlearnt.extend(final)
        self._drop(len(self._ids) if diverged else len(final))
        if diverged:
            self._sent_to = None
        return Resolved(final, diverged)

    def limit_lead(self, max_lead: int) -> None:
        """The region keeps no more than `max_lead` drafts; 0 changes nothing."""
        if max_lead:
            self._max_lead = min(self._limits.max_lead, max_lead)

    def advance(self) -> bool:
        """Learn what became final, then draft on. True if learning is not yet done."""
        slice_, self._unlearnt = (
            self._unlearnt[: self._limits.absorb_tokens],
            self._unlearnt[self._limits.absorb_tokens :],
        )
        if slice_:
            self._drafter.extend(slice_)
        if self._unlearnt:
            return True
        room = min(self._max_lead, self._max_tokens - self.committed) - len(self._ids)
        if room > 0 and not self.ends_reply:
            self._grow(room)
        return False

    def take_unsent(self) -> SendDraft | None:
        """The drafts not sent so far as one frame; they count as sent."""
        start = self.committed + self.num_sent
        ids = tuple(self._ids[self.num_sent :])
        if not ids:
            return None
        joins = self._sent_to == start
        if not joins:
            self.epoch += 1
        self._sent_to = start + len(ids)
        # Epoch 0 begins with the reply, before anything was sent.
        return SendDraft(self.epoch, start, ids, continues=joins and start > 0)

    def _grow(self, room: int) -> None:
        before = self._survival[-1] if self._survival else 1.0
        guess = self._drafter.draft_after(self._ids, room)
        for token, survival in zip(guess.ids[:room], guess.survival, strict=False):
            if before * survival < self._limits.min_survival:
                return
            self._ids.append(token)
            self._survival.append(before * survival)
            if token in self._stop_ids:
                return

    def _drop(self, count: int) -> None:
        """Forget the first drafts; the rest is as likely as it is given that these were right."""
        given = self._survival[min(count, len(self._survival)) - 1] if count and self._ids else 1.0
        del self._ids[:count]
        self._survival = [min(1.0, s / given) for s in self._survival[count:]]
