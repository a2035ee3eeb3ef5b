"""A limit of a reply's reasoning. Pure.

Once the reasoning has as many tokens as it may, the ids of the tag that ends it are the only ones
allowed, one after another. With a grammar, whose texts have whole characters, a character that the
last token has begun is completed first. That is a function of the prompt and the committed ids, so
drafts, other replicas and the reference come to the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from outrider.errors import InvalidRequestError
from outrider.reply_parsing.reasoning import ReasoningMeter
from outrider.sampling.constraint import Constraint, Mask


class ThinkingBudget:
    """A Constraint (outrider.sampling.constraint): of its own, and of the reply's grammar."""

    def __init__(
        self,
        max_tokens: int,
        end_ids: Callable[[int], tuple[int, ...]],
        meter: ReasoningMeter,
        vocabulary_size: int,
        grammar: Constraint | None = None,
    ) -> None:
        """`max_tokens` of reasoning, the tags not counted; `end_ids`: those of the tag that ends
        it, behind so many of its characters; `meter`: of a reply with no token yet."""
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._meter = meter
        self._grammar = grammar
        self._any = np.ones(vocabulary_size, dtype=np.bool_)
        self._num_committed = 0
        self._ending = self._end()
        """Ids that have to come next."""

    @property
    def allows_all(self) -> bool:
        """Whether any id may come next; see Constraint."""
        return not self._ending and (self._grammar is None or self._grammar.allows_all)

    def allowed(self) -> Mask:
        """The mask of allowed ids; see Constraint."""
        if self._ending:
            only = np.zeros_like(self._any)
            only[self._ending[0]] = True
            return only
        return self._any if self._grammar is None else self._grammar.allowed()

    def advance(self, token: int) -> None:
        """Commit an id; see Constraint."""
        if self._ending and token != self._ending[0]:
            raise InvalidRequestError(
                f"token {self._num_committed} of the reply goes on in reasoning that is as long as "
                "it may be; resume only with what was committed under the same limit"
            )
        if self._grammar is not None:
            self._grammar.advance(token)
        self._num_committed += 1
        self._meter.push(token)
        if self._ending:
            self._ending = self._ending[1:]
        else:
            self._ending = self._end()

    def prepare(self, drafts: Sequence[int]) -> None:
        """Compute masks ahead of time; see Constraint."""
        if self._grammar is not None:
            self._grammar.prepare(drafts)

    def num_valid(self, drafts: Sequence[int]) -> int:
        """How many of the drafts are allowed; see Constraint. Of drafts within reasoning none
        behind its last token counts, though it may end before."""
        for at, (draft, wanted) in enumerate(zip(drafts, self._ending, strict=False)):
            if draft != wanted:
                return at
        if not self._ending and self._meter.is_thinking:
            drafts = drafts[: max(0, self._max_tokens - self._meter.num_tokens)]
        return len(drafts) if self._grammar is None else self._grammar.num_valid(drafts)

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """The forced ids; see Constraint."""
        if self._ending:
            return self._ending[:max_tokens]
        return () if self._grammar is None else self._grammar.forced(max_tokens)

    def _end(self) -> tuple[int, ...]:
        """The ids that end reasoning that is as long as it may be; of a tag that the reply has
        begun, the rest."""
        meter = self._meter
        is_used_up = meter.is_thinking and meter.num_tokens >= self._max_tokens
        if self._grammar is not None and meter.is_within_character:
            return ()
        return self._end_ids(meter.num_tag_chars) if is_used_up else ()
