"""The text of one reply, token by token, and when it ends: end ids, stop strings, max_tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason


class Detokenizer(Protocol):
    """Incremental detokenization: text comes out once its bytes are whole characters."""

    def push(self, id: int, /) -> str:
        """Text completed by this id; may be empty."""
        ...

    def push_all(self, ids: Sequence[int], /) -> str:
        """The same of several ids, joined."""
        ...

    def finish(self) -> str:
        """The remaining text, with incomplete characters as U+FFFD."""
        ...


class Reply(Protocol):
    """Detects the end of a reply."""

    num_tokens: int
    finished: FinishReason | None

    def push(self, token: int) -> object:
        """The next token."""
        ...


class ReplyEnd:
    """End of a reply without stop strings, whose text is not needed: an end id or max_tokens."""

    def __init__(self, params: SamplingParams, stop_ids: Collection[int]) -> None:
        """`stop_ids` are the model's ids that end a reply."""
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

    @property
    def stop_string(self) -> str:
        """The stop string that ended it; empty: none did."""
        return self._matcher.found_stop

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
        """Text of several tokens at once, sooner than one by one, for tokens behind which the reply
        continues. If it does not, it ended at one of them; nothing may be pushed after that."""
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


class StopMatcher:
    """Finds stop strings in text that arrives in pieces; releases text that none can begin in.

    Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977), one automaton per stop string:
    O(1) amortised per character, and the same answer however the text was cut into pieces.

    The text ends before the stop string that is completed first; of those completed by the
    same character, before the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found_stop = ""
        """The stop string that was found; empty: none yet."""

    @property
    def found(self) -> bool:
        """Whether a stop string was found."""
        return bool(self.found_stop)

    def push(self, text: str) -> str:
        """Text that is now final. Once `found`, everything is, and nothing more is taken."""
        if not self._stops:
            return text
        held = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            length = self._advance(char)
            if length:
                self.found_stop = held[end - length : end]
                self._held = ""
                return held[: end - length]
        keep = max(self._matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> int:
        """Length of the longest stop string this character completes, or 0."""
        longest = 0
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != char:
                matched = self._borders[which][matched - 1]
            matched += stop[matched] == char
            self._matched[which] = matched
            if matched == len(stop):
                longest = max(longest, matched)
        return longest


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
