"""The draft model's KV of ended replies, for the next turn of the same chat (pure).

The next turn's prompt repeats the last prompt and reply and continues them. So the KV of a reply
that ended is kept within its trust group, and the next reply with that beginning takes it over. It
is taken rather than shared: a chat continues only its own last turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.edge.drafter.kv import KvSequence

Ids = npt.NDArray[np.int32]


class Found(NamedTuple):
    """Kept KV, cropped to the common beginning with the requested text."""

    kv: KvSequence
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Kept:
    group: bytes
    ids: Ids
    """Ids whose KV it is."""
    kv: KvSequence


class KeptKv:
    """Sequences without a session, the one kept longest ago given up first."""

    def __init__(self, max_sequences: int, block_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._block_tokens = block_tokens
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        """By sequence."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, group: bytes, ids: Sequence[int], kv: KvSequence) -> list[KvSequence]:
        """Keep the KV of `ids`. Returns the KV that is not kept, for the caller to free: `kv`
        itself for a session without group, or the oldest if there are too many."""
        kv.crop(len(ids))
        if not group or not kv.length:
            return [kv]
        known = np.array(ids[: kv.length], np.int32)
        self._kept[kv.sequence] = _Kept(group, known, kv)
        return [self.pop() for _ in range(len(self._kept) - self._max_sequences)]

    def take(self, group: bytes, ids: Sequence[int]) -> Found | None:
        """The KV of the group that covers most of the beginning of `ids`, which the caller owns
        now. None where none has at least half of its tokens there: it is another chat's, which will
        want it. Shared blocks are there to be read, so all of theirs have to be there too."""
        asked = np.array(ids, np.int32)
        best: tuple[int, _Kept] | None = None
        for kept in reversed(self._kept.values()):
            if kept.group == group:
                common = common_tokens(kept.ids, asked)
                least = max(len(kept.ids) / 2, kept.kv.num_shared * self._block_tokens)
                if common >= least and (best is None or common > best[0]):
                    best = common, kept
        if best is None:
            return None
        num_tokens, found = best
        del self._kept[found.kv.sequence]
        found.kv.crop(num_tokens)
        return Found(found.kv, num_tokens)

    def pop(self) -> KvSequence:
        """Give up the oldest. Raises KeyError without any."""
        return self._kept.popitem(last=False)[1].kv


def common_tokens(a: Ids, b: Ids) -> int:
    """How many tokens both begin with."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
