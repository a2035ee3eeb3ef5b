"""Ids out of token blocks, as long as they can be read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.ranks import RankTable
from outrider.codec.tokens import TokenCodec, TokenCoder
from services.router.prefix_index.prompt import TokenIdReader

DIGEST = b"\x01" * 32
SIZE = 1000
TABLE = RankTable(DIGEST, SIZE, [7, 3, 900])
CODER = TokenCoder(DIGEST, SIZE, TABLE)


def reader() -> TokenIdReader:
    made = TokenIdReader()
    made.add_table(DIGEST, TABLE)
    return made


@given(st.lists(st.integers(0, SIZE - 1), max_size=300), st.sampled_from(TokenCodec))
def test_every_codec_is_read(ids: list[int], codec: TokenCodec) -> None:
    block = CODER.encode(ids, codec)
    read = reader().read(block.codec, block.count, block.payload, DIGEST)
    assert read == struct.pack(f"<{len(ids)}I", *ids)


@pytest.mark.parametrize(
    ("codec", "count", "payload", "digest"),
    [
        (TokenCodec.RANK_VARINT, 1, b"\x01", b"\x02" * 32),
        (TokenCodec.RANK_VARINT, 1, b"\xe8\x07", DIGEST),
        (TokenCodec.VARINT, 1, b"\x80", DIGEST),
        (TokenCodec.VARINT, 1, b"\x01\x01", DIGEST),
        (99, 1, b"\x01", DIGEST),
    ],
    ids=["other vocabulary", "no such rank", "cut short", "more than announced", "unknown codec"],
)
def test_what_cannot_be_read_is_nothing(
    codec: int, count: int, payload: bytes, digest: bytes
) -> None:
    assert reader().read(codec, count, payload, digest) == b""


def test_a_vocabulary_without_a_table_is_learned_as_that() -> None:
    made = TokenIdReader()
    made.add_table(DIGEST, None)
    assert made.read(TokenCodec.RANK_VARINT, 1, b"\x01", DIGEST) == b""
