"""When a prompt that is being typed is worth another prefill, and how much of it (pure).

What two texts in a row have in common, as ids, will most likely still be there when the user is
done: that leaves out the template's end and the word under the cursor by itself, whatever the
vocabulary. Only one text is tokenized and one prefill runs at a time; of the texts that come
meanwhile the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from outrider.speculation.verification import common_prefix_length

if TYPE_CHECKING:
    from outrider.models.chat import Message


@dataclass(frozen=True, slots=True)
class PrefillPolicy:
    """What a prefill ahead has to be worth."""

    min_new_tokens: int = 16
    """About what a call computes beside others at no cost; fewer are not worth a session."""
    max_context_tokens: int = 8192
    is_on: bool = True


class State(Enum):
    """Whether the plan goes on."""

    OPEN = auto()
    CLOSED = auto()


class PrefillPlan:
    """One prompt that is being typed. Each verb returns what is to be done next, if anything."""

    def __init__(self, policy: PrefillPolicy) -> None:
        self._policy = policy
        self._latest: tuple[Message, ...] | None = None
        self._is_tokenizing = False
        self._ids: tuple[int, ...] = ()
        self._stable = 0
        self._num_computed = 0
        self.is_running = False
        """Whether a region computes."""
        self.state = State.OPEN if policy.is_on else State.CLOSED

    def typed(self, messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """The text changed: what to tokenize now; None if that has to wait."""
        if self.state is State.CLOSED:
            return None
        self._latest = messages
        return self._next_text()

    def tokenized(self, ids: Sequence[int] | None) -> tuple[Message, ...] | None:
        """The ids of the text, None if it could not be tokenized: what to tokenize next."""
        self._is_tokenizing = False
        if ids is not None:
            fresh = tuple(ids[: self._policy.max_context_tokens - 1])
            self._stable = common_prefix_length(self._ids, fresh)
            self._ids = fresh
            self._num_computed = min(self._num_computed, self._stable)
        return self._next_text()

    @property
    def num_due(self) -> int:
        """New tokens that a region is to compute now; 0: none, or too few."""
        gain = self._stable - self._num_computed
        idle = self.state is State.OPEN and not self.is_running
        return gain if idle and gain >= self._policy.min_new_tokens else 0

    def next_prefill(self) -> tuple[int, ...] | None:
        """The ids that a region is to compute now, with those computed; they count as under
        way."""
        if not self.num_due:
            return None
        self.is_running = True
        self._num_computed = self._stable
        return self._ids[: self._stable]

    def ended(self, *, well: bool) -> None:
        """The region is done; if not `well`, nothing further is tried."""
        self.is_running = False
        if not well:
            self.state = State.CLOSED

    def close(self) -> bool:
        """The user sent the prompt, or left: whether there is something to cancel."""
        self.state = State.CLOSED
        was_running, self.is_running = self.is_running, False
        return was_running

    def _next_text(self) -> tuple[Message, ...] | None:
        if self._is_tokenizing or self._latest is None or self.state is State.CLOSED:
            return None
        text, self._latest = self._latest, None
        self._is_tokenizing = True
        return text
