"""Prompts of few different ids in long runs, so that they share, branch and fill pieces."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes

SALTS = st.sampled_from([b"", b"tenant"])
IDS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 5, 16, 17])), min_size=1, max_size=3
).map(lambda runs: [token for token, count in runs for _ in range(count)])


def packed(ids: Sequence[int]) -> bytes:
    """As little-endian u32."""
    return struct.pack(f"<{len(ids)}I", *ids)


def hashes(ids: Sequence[int], salt: bytes = b"", block_tokens: int = 1) -> list[bytes]:
    """Of the full blocks."""
    return list(block_hashes(ids, block_tokens, salt))
