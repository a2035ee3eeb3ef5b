"""The text of one reply, token by token, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from outrider.sampling.params import SamplingParams
from outrider.sampling.stops import StopMatcher
from outrider.session_types import FinishReason


class Detokenizer(Protocol):
    """Incremental detokenization: text comes out once its bytes are whole characters."""

    def push(self, id: int, /) -> str:
        """Text completed by this id; may be empty."""
        ...

    def push_all(self, ids: Sequence[int], /) -> str:
        """The same of several ids, joined."""
        ...

    def finish(self) -> str:
        """What is left, incomplete characters as U+FFFD."""
        ...


class Reply(Protocol):
    """What tells when a reply is over."""

    num_tokens: int
    finished: FinishReason | None

    def push(self, token: int) -> object:
        """The next token."""
        ...


class ReplyEnd:
    """Of a reply without stop strings, whose text nobody reads here: an end id or max_tokens."""

    def __init__(self, params: SamplingParams, stop_ids: Collection[int]) -> None:
        """As of ReplyText."""
        self._stop_ids = _end_ids(params, stop_ids)
        self._max_tokens = params.max_tokens
        self.num_tokens = 0
        self.finished: FinishReason | None = None

    def push(self, token: int) -> None:
        """The next token."""
        self.num_tokens += 1
        if token in self._stop_ids:
            self.finished = FinishReason.STOP
        elif self.num_tokens == self._max_tokens:
            self.finished = FinishReason.LENGTH


class ReplyText:
    """Ends at an end id, a stop string or max_tokens, whichever comes first.

    The ending id counts as a token. The text has neither the end id nor the stop string.
    """

    def __init__(
        self, params: SamplingParams, stop_ids: Collection[int], detokenizer: Detokenizer
    ) -> None:
        """`stop_ids` are the model's own end ids; `params.ignore_eos` disables only these."""
        self._stop_ids = _end_ids(params, stop_ids)
        self._max_tokens = params.max_tokens
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(params.stop)
        self.num_tokens = 0
        self.finished: FinishReason | None = None

    def push(self, token: int) -> str:
        """Text made final by this id; the rest of it too if the id ends the reply."""
        assert self.finished is None, "the reply is over"
        self.num_tokens += 1
        if token in self._stop_ids:
            self.finished = FinishReason.STOP
            return self._drain()
        text = self._matcher.push(self._detokenizer.push(token))
        if self._matcher.found:
            self.finished = FinishReason.STOP
        elif self.num_tokens == self._max_tokens:
            text += self._drain()
            # What the end flushes, U+FFFD for half a character, may be a stop string itself.
            self.finished = FinishReason.STOP if self._matcher.found else FinishReason.LENGTH
        return text

    def push_all(self, tokens: Sequence[int]) -> str:
        """The pieces of each, joined, sooner than one by one. The reply is to go on behind them: if
        it does not, it ended before the last of them, or there. Nothing is pushed after that."""
        self.num_tokens += len(tokens)
        if self.num_tokens >= self._max_tokens:
            self.finished = FinishReason.LENGTH
        if not self._stop_ids.isdisjoint(tokens):
            self.finished = FinishReason.STOP
        text = self._matcher.push(self._detokenizer.push_all(tokens))
        if self._matcher.found:
            self.finished = FinishReason.STOP
        return text

    def flush(self) -> str:
        """The text held back, for a reply that ends from outside (cancelled, deadline)."""
        return "" if self.finished else self._drain()

    def _drain(self) -> str:
        text = self._matcher.push(self._detokenizer.finish())
        return text if self._matcher.found else text + self._matcher.flush()


def reply_end(
    params: SamplingParams, stop_ids: Collection[int], new_detokenizer: Callable[[], Detokenizer]
) -> Reply:
    """Reads the text only if stop strings ask for it."""
    return (
        ReplyText(params, stop_ids, new_detokenizer())
        if params.stop
        else ReplyEnd(params, stop_ids)
    )


def _end_ids(params: SamplingParams, stop_ids: Collection[int]) -> frozenset[int]:
    own = () if params.ignore_eos else stop_ids
    return frozenset(own) | frozenset(params.stop_ids)
