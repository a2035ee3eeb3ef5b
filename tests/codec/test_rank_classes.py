"""Ranks in classes: one encoding of each sequence, and everything else refused."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.rank_classes import MAX_RANKS, decode, encode, encoded_bounds
from outrider.errors import MalformedFrameError

RANKS: Final = st.lists(st.one_of(st.integers(0, 200), st.integers(0, MAX_RANKS - 1)), max_size=200)


def packed(ranks: list[int]) -> bytes:
    return encode(np.array(ranks, dtype=np.uint32))


@given(RANKS)
def test_round_trip(ranks: list[int]) -> None:
    data = packed(ranks)
    least, most = encoded_bounds(len(ranks))
    assert least <= len(data) <= most
    assert decode(data, len(ranks)).tolist() == ranks


def test_each_rank_has_a_class() -> None:
    edges = [0, 3, 4, 7, 8, 23, 24, 39, 40, 55, 56, 49_151, 49_152, MAX_RANKS - 1]
    assert decode(packed(edges), len(edges)).tolist() == edges
    # Classes 0 and 2, then 3 in two bits and 1 in four.
    assert packed([3, 9]) == bytes([0x20, 0b000111])


@given(st.binary(max_size=80), st.integers(0, 90))
def test_whatever_is_read_would_be_written_so(data: bytes, count: int) -> None:
    try:
        ranks = decode(data, count)
    except MalformedFrameError:
        return
    assert len(ranks) == count and encode(ranks) == data


@given(RANKS.filter(bool), st.data())
def test_truncated_and_extended_data_is_refused(ranks: list[int], draw: st.DataObject) -> None:
    data = packed(ranks)
    kept = draw.draw(st.integers(0, len(data) - 1))
    for damaged in (data[:kept], data + b"\x00", data + b"\x01"):
        with pytest.raises(MalformedFrameError):
            decode(damaged, len(ranks))


def test_a_count_alone_allocates_nothing() -> None:
    with pytest.raises(MalformedFrameError, match="cannot have 4 bytes"):
        decode(b"\x00" * 4, 2**32 - 1)
