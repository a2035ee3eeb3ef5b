"""The log probabilities of a chat, packed so that they can be sent again (pure).

A token's values take kilobytes as objects; packed, each likely token takes twelve bytes and its
text. Beyond `max_bytes` the oldest tokens' are dropped.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from outrider.session.types import ScoredToken, TokenLogprobs

MAX_BYTES: Final = 512 << 10
"""Limit for one chat: some 1,600 tokens with 20 likely ones each, or 20,000 with none."""
_ENTRY_BYTES: Final = 48
"""Bytes that Python adds to each packed token."""
_HEAD = struct.Struct("<IfI")
"""Id, log probability, bytes of text."""


class LogprobLog:
    """Those of the last tokens of a reply, packed. `append` alone changes it."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._packed: deque[bytes] = deque()
        self.num_bytes = 0
        """Estimated size in memory."""

    def __len__(self) -> int:
        """Tokens whose log probabilities are kept: the last ones of the reply."""
        return len(self._packed)

    def append(self, logprobs: Iterable[TokenLogprobs]) -> None:
        """Add the log probabilities of the reply's next tokens."""
        for at in logprobs:
            packed = b"".join(map(_pack, (at.chosen, *at.top)))
            self._packed.append(packed)
            self.num_bytes += len(packed) + _ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= len(self._packed.popleft()) + _ENTRY_BYTES

    def some(self, begin: int, count: int) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of up to `count` kept tokens, from index `begin` among those kept."""
        end = min(len(self._packed), begin + count)
        return tuple(_unpack(self._packed[at]) for at in range(begin, end))


def _pack(token: ScoredToken) -> bytes:
    return _HEAD.pack(token.id, token.logprob, len(token.text)) + token.text


def _unpack(packed: bytes) -> TokenLogprobs:
    chosen, *top = _tokens(packed)
    return TokenLogprobs(chosen, tuple(top))


def _tokens(packed: bytes) -> Iterator[ScoredToken]:
    at = 0
    while at < len(packed):
        token, logprob, length = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        yield ScoredToken(token, logprob, packed[at : at + length])
        at += length
