"""One reply's way through its grammar."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher

from outrider.errors import InvalidRequestError, InvalidSamplingError
from outrider.sampling.constraint import Mask
from services.inference.grammars.token_table import UNWRITABLE, TokenTable

SLOW_MASK_S = 2e-3
"""CPU time. Masks that take longer on average are computed for one row per call: no drafts are
looked at, so the other sessions of the call wait for one of them only."""
_SMOOTHING = 0.1


class FreshMatchers(Protocol):
    """Source of new matchers for one grammar (CompiledGrammar)."""

    def sharing(self) -> LLMatcher:
        """A matcher that shares the lexer of all others, with its cache and its limits."""
        ...

    def alone(self) -> LLMatcher | None:
        """One with a lexer of its own, since the shared one is worn out; None where it would take
        so long to make that others had to wait for it."""
        ...


class GrammarMatcher:
    """A Constraint (outrider.sampling.constraint). One thread uses it.

    Masks are llguidance's: where the text is certain, one id is allowed, the one with which the
    model itself would write it; else all whose bytes the grammar allows. They depend only on the
    committed ids. Looking at drafts moves the matcher and rolls it back; if that fails, a fresh one
    is given the committed ids, and no drafts are looked at any more.

    Replies that share a compiled grammar share llguidance's lexer, which never recovers from an
    error: a draft of this reply, or another reply, may have taken it to its limits. So a reply
    fails only if a lexer of its own fails too.
    """

    def __init__(self, table: TokenTable, fresh: FreshMatchers, *, can_roll_back: bool) -> None:
        self._table = table
        self._fresh = fresh
        self._matcher = fresh.sharing()
        self._is_alone = False
        self._looks_ahead = can_roll_back
        self._ids: list[int] = []
        """The committed ones, but for the end."""
        self._drafts: tuple[int, ...] = ()
        self._masks: list[Mask] = []
        """Masks at the position where `_drafts` begin, and behind each of them."""
        self._num_taken = 0
        """Drafts that were committed since."""
        self._mask_s = 0.0
        """CPU time of one mask, smoothed."""

    @property
    def allows_all(self) -> bool:
        """Never known without a mask; see Constraint."""
        return False

    def allowed(self) -> Mask:
        """The mask of allowed ids; see Constraint."""
        if self._num_taken >= len(self._masks):
            self._compute(())
            if not self._masks and self._goes_alone():
                self._compute(())
            if not self._masks:
                raise InvalidSamplingError(_problem(self._matcher, len(self._ids)))
        return self._masks[self._num_taken]

    def advance(self, token: int) -> None:
        """Commit an id; see Constraint. The id that ends the reply is not passed to the matcher:
        llguidance consumes it only in some states, and no mask is needed behind it."""
        if token in self._table.ends:
            if not (self._matcher.is_accepting() or self._matcher.is_stopped()):
                raise _not_allowed(len(self._ids))
            return
        was_complete = self._is_complete()
        if not self._matcher.consume_token(token):
            if was_complete or self._is_not_allowed():
                raise _not_allowed(len(self._ids))
            if not (self._goes_alone() and self._matcher.consume_token(token)):
                if self._is_not_allowed():
                    raise _not_allowed(len(self._ids))
                raise InvalidSamplingError(_problem(self._matcher, len(self._ids)))
        self._ids.append(token)
        if self._drafts[self._num_taken : self._num_taken + 1] == (token,):
            self._num_taken += 1
        else:
            self._forget_masks()

    def prepare(self, drafts: Sequence[int]) -> None:
        """Compute masks ahead of time; see Constraint."""
        self._compute(self._before_end(drafts) if self._is_fast else ())

    def num_valid(self, drafts: Sequence[int]) -> int:
        """How many of the drafts are allowed; see Constraint."""
        if not drafts or not self._is_fast:
            return 0
        if self._is_complete():
            return int(drafts[0] in self._table.ends)
        text = self._before_end(drafts)
        num_valid = self._matcher.validate_tokens(list(drafts[: len(text) + 1]))
        return 0 if self._restarted() else num_valid

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """The forced ids; see Constraint."""
        if not self._is_fast:
            return ()
        end = () if self._table.end is None else (self._table.end,)
        if self._is_complete():
            return end[:max_tokens]
        ids = self._before_end(self._matcher.compute_ff_tokens())[:max_tokens]
        if not ids:
            self._restarted()
            return ()
        num_consumed = self._matcher.try_consume_tokens(list(ids))
        completes = num_consumed == len(ids) and self._matcher.is_stopped()
        self._matcher.rollback(num_consumed)
        if self._restarted():
            return ()
        return (*ids, *end)[:max_tokens] if completes else ids

    @property
    def _is_fast(self) -> bool:
        """Whether drafts may be looked at."""
        return self._looks_ahead and self._mask_s <= SLOW_MASK_S

    def _is_not_allowed(self) -> bool:
        """Whether it broke since the grammar has no such id there."""
        return "satisfy the grammar" in self._matcher.get_error()

    def _is_complete(self) -> bool:
        """Whether nothing but the end can come."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _before_end(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The ids in front of the first one that ends the reply."""
        ends = self._table.ends
        at = next((at for at, token in enumerate(ids) if token in ends), len(ids))
        return tuple(ids[:at])

    def _compute(self, drafts: tuple[int, ...]) -> None:
        """The masks here and behind each draft, as far as they are valid; none after an error."""
        begin = time.thread_time()
        num_bytes = -(-self._table.size // 32) * 4
        packed = np.zeros((1 + len(drafts), num_bytes), dtype=np.uint8)
        if drafts:
            self._matcher.unsafe_compute_mask_ptr_with_draft_token(  # type: ignore[attr-defined]
                packed.ctypes.data, num_bytes, list(drafts)
            )
        else:
            self._matcher.unsafe_compute_mask_ptr(packed.ctypes.data, num_bytes)
        self._forget_masks()
        if self._matcher.is_error():
            if drafts:
                self._restarted()
            return
        bits = np.unpackbits(packed, axis=1, count=self._table.size, bitorder="little")
        # Behind a draft that is not allowed there is no mask.
        self._masks = [mask for mask in bits.view(np.bool_) if mask.any()]
        self._drafts = drafts[: len(self._masks) - 1]
        took_s = (time.thread_time() - begin) / max(1, len(self._masks))
        self._mask_s += (took_s - self._mask_s) * _SMOOTHING

    def _forget_masks(self) -> None:
        self._drafts, self._masks, self._num_taken = (), [], 0

    def _restarted(self) -> bool:
        """Whether looking at drafts broke the matcher; a fresh one is in its place then."""
        if not self._matcher.is_error():
            return False
        self._restart(self._fresh.sharing())
        return True

    def _goes_alone(self) -> bool:
        """Whether a matcher that broke by its cost was replaced by one that shares nothing."""
        if self._is_alone or _cannot_be_written(self._matcher.get_error()):
            return False
        self._is_alone = True
        fresh = self._fresh.alone()
        if fresh is None:
            return False
        self._restart(fresh)
        return not self._matcher.is_error()

    def _restart(self, fresh: LLMatcher) -> None:
        self._looks_ahead = False
        self._forget_masks()
        self._matcher = fresh
        if self._ids:
            self._matcher.consume_tokens(self._ids)


def _not_allowed(num_tokens: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"token {num_tokens} of the reply is not allowed by its grammar; resume only with what "
        "was committed under the same grammar"
    )


def _cannot_be_written(message: str) -> bool:
    return "NoExtension" in message or UNWRITABLE in message


def _problem(matcher: LLMatcher, num_tokens: int) -> str:
    """llguidance's own message has parts of the grammar and of the reply."""
    if _cannot_be_written(matcher.get_error()):
        return (
            f"after {num_tokens} tokens of the reply no token of this model's vocabulary can go on "
            "in the grammar; allow other characters there"
        )
    return (
        f"after {num_tokens} tokens of the reply the grammar costs more than its limits allow; "
        "simplify it, above all repetitions with large bounds"
    )
