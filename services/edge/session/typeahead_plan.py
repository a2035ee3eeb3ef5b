"""When a prompt that is being typed is worth another prefill, and how much of it.

The token prefix that two consecutive texts have in common is most likely part of the final prompt:
this leaves out the end of the chat template and the word under the cursor, whatever the vocabulary.
One text is tokenized and one prefill runs at a time; of the texts that arrive meanwhile only the
last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.speculation.verification import common_prefix_length

if TYPE_CHECKING:
    from outrider.models.chat import Message


@dataclass(frozen=True, slots=True)
class TypeaheadPolicy:
    """When a typed prompt is prefilled."""

    min_new_tokens: int = 16
    """Least tokens per prefill: about what a call of the model takes in beside others at no cost;
    fewer are not worth a session."""
    max_context_tokens: int = 8192
    is_on: bool = True


class TypeaheadPlan:
    """One prompt that is being typed. Methods return what is to be done next, if anything."""

    def __init__(self, policy: TypeaheadPolicy) -> None:
        self._policy = policy
        self._latest: tuple[Message, ...] | None = None
        self._is_tokenizing = False
        self._ids: tuple[int, ...] = ()
        self._stable = 0
        self._num_computed = 0
        self.is_running = False
        """Whether a prefill is under way."""
        self.is_open = policy.is_on
        """Whether further prefills may come."""

    def typed(self, messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """The text changed. Returns the text to tokenize now; None: that has to wait."""
        if not self.is_open:
            return None
        self._latest = messages
        return self._next_text()

    def tokenized(self, ids: Sequence[int] | None) -> tuple[Message, ...] | None:
        """The text was tokenized to `ids`, None if that failed. Returns the text to tokenize next,
        if any."""
        self._is_tokenizing = False
        if ids is not None:
            fresh = tuple(ids[: self._policy.max_context_tokens - 1])
            self._stable = common_prefix_length(self._ids, fresh)
            self._ids = fresh
            self._num_computed = min(self._num_computed, self._stable)
        return self._next_text()

    @property
    def num_computed(self) -> int:
        """Leading tokens of the newest text that the region was asked to compute."""
        return self._num_computed

    @property
    def num_due(self) -> int:
        """New tokens to prefill now; 0: none, or too few."""
        gain = self._stable - self._num_computed
        idle = self.is_open and not self.is_running
        return gain if idle and gain >= self._policy.min_new_tokens else 0

    def next_prefill(self) -> tuple[int, ...] | None:
        """The ids to prefill now, those prefilled before included; None: `num_due` is 0."""
        if not self.num_due:
            return None
        self.is_running = True
        self._num_computed = self._stable
        return self._ids[: self._stable]

    def ended(self, *, well: bool) -> None:
        """The prefill ended; if not `well`, no other one follows."""
        self.is_running = False
        if not well:
            self.is_open = False

    def close(self) -> bool:
        """The user sent the prompt, or left. Returns whether a prefill has to be cancelled."""
        self.is_open = False
        was_running, self.is_running = self.is_running, False
        return was_running

    def _next_text(self) -> tuple[Message, ...] | None:
        if self._is_tokenizing or self._latest is None or not self.is_open:
            return None
        text, self._latest = self._latest, None
        self._is_tokenizing = True
        return text
