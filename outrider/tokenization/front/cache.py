"""What texts became, for the texts that come again.

Texts between two control tokens are kept, whole: a control token is a hard boundary of the
tokenizer, so their ids do not depend on what stands around them. A stretch that begins or ends
anywhere else (a role tag apart from the message behind it) would not be exact.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

_ENTRY_BYTES: Final = 256
"""Of one entry, besides text and ids: three objects' heads and a place in the table."""


_Key: TypeAlias = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How much is kept."""

    max_entries: int = 16_384
    max_bytes: int = 64 << 20
    max_text_bytes: int = 64 << 10
    """A longer text is not kept. System prompts and role tags come again, and system prompts may
    be long; what is longer still is a document that is asked about once."""


class SegmentCache:
    """Least recently used texts go first; a scope's texts are found in that scope alone. Not
    thread-safe."""

    def __init__(self, policy: CachePolicy) -> None:
        self._policy = policy
        self._ids: OrderedDict[_Key, array[int]] = OrderedDict()
        self.num_bytes = 0
        """Memory of all entries, within a few per cent."""

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, text: str, scope: bytes = b"") -> array[int] | None:
        """The ids of `text`, which are not to be changed; None if it is not kept."""
        key = scope, text
        ids = self._ids.get(key)
        if ids is not None:
            self._ids.move_to_end(key)
        return ids

    def put(self, text: str, ids: array[int], scope: bytes = b"") -> None:
        """Keep the ids of `text`, if it is not too long."""
        key = scope, text
        size = _num_bytes(key, ids)
        policy = self._policy
        if text.__sizeof__() > policy.max_text_bytes or size > policy.max_bytes:
            return
        before = self._ids.pop(key, None)
        if before is not None:
            self.num_bytes -= _num_bytes(key, before)
        self._ids[key] = ids
        self.num_bytes += size
        while len(self._ids) > policy.max_entries or self.num_bytes > policy.max_bytes:
            self.num_bytes -= _num_bytes(*self._ids.popitem(last=False))

    def clear(self) -> None:
        """Forget everything."""
        self._ids.clear()
        self.num_bytes = 0


def _num_bytes(key: _Key, ids: array[int]) -> int:
    scope, text = key
    return len(scope) + text.__sizeof__() + len(ids) * ids.itemsize + _ENTRY_BYTES
