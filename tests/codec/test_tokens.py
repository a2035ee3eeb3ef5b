"""Token blocks: round trips, and everything else refused."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec import varint
from outrider.codec.ranks import RankTable
from outrider.codec.tokens import (
    MIN_CLASSES,
    RANKED,
    Block,
    TokenCodec,
    TokenCoder,
    negotiate,
)
from outrider.errors import BadTokenBlockError

DIGEST = bytes(range(32))
SIZE = 49_152
LIMIT = 10_000


def make_coder(size: int = SIZE, digest: bytes = DIGEST, seed: int = 0) -> TokenCoder:
    top = np.random.default_rng(seed).choice(size, size // 12, replace=False)
    return TokenCoder(digest, size, RankTable(digest, size, top.tolist()))


CODER = make_coder()
WIDE = make_coder(200_000)
IDS = st.lists(st.integers(0, SIZE - 1), max_size=8)
LONG_IDS = st.builds(
    lambda seed, n: np.random.default_rng(seed).integers(0, SIZE, n).tolist(),
    st.integers(0, 2**32),
    st.integers(0, 2000),
)
CODECS = st.sampled_from(TokenCodec)


@given(st.one_of(IDS, LONG_IDS), CODECS)
def test_round_trip(ids: list[int], codec: TokenCodec) -> None:
    block = CODER.encode(ids, codec)
    assert block.count == len(ids)
    assert CODER.decode(block, max_count=len(ids)) == tuple(ids)


@given(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=4), CODECS)
def test_a_token_alone_is_written_as_with_others(ids: list[int], codec: TokenCodec) -> None:
    packs_as = TokenCodec.RANK_VARINT if codec in RANKED else TokenCodec.VARINT
    pieces = [CODER.number_bytes(token, codec) for token in ids]
    assert b"".join(pieces) == CODER.pack(ids, packs_as)
    assert varint.decode(pieces[0], max_count=1) == [CODER.number(ids[0], codec)]
    checksum = None
    for token in ids:
        checksum = CODER.checksum((token,), checksum)
    assert checksum == CODER.checksum(ids)


@given(st.lists(st.integers(0, 199_999), max_size=200), CODECS)
def test_a_large_vocabulary_round_trips_without_u16(ids: list[int], codec: TokenCodec) -> None:
    if codec is TokenCodec.U16:
        assert codec not in WIDE.supported
        with pytest.raises(BadTokenBlockError, match="token codec 3"):
            WIDE.encode(ids, codec)
    else:
        assert WIDE.decode(WIDE.encode(ids, codec), max_count=200) == tuple(ids)


@pytest.mark.parametrize("num_ids", [94, 95, 96, 97, 766, 767, 768, 769])
@pytest.mark.parametrize("codec", [it for it in TokenCodec if it != TokenCodec.RANK_CLASSES])
def test_the_short_and_the_long_path_write_the_same(num_ids: int, codec: TokenCodec) -> None:
    ids = np.random.default_rng(num_ids).integers(0, SIZE, num_ids).tolist()
    whole = CODER.encode(ids, codec)
    pieces = [CODER.encode(ids[at : at + 40], codec) for at in range(0, num_ids, 40)]
    assert whole.payload == b"".join(piece.payload for piece in pieces)
    assert CODER.decode(whole, max_count=num_ids) == tuple(ids)


def test_classes_are_for_many_ids_and_never_for_few() -> None:
    ids = np.random.default_rng(1).integers(0, SIZE, MIN_CLASSES).tolist()
    many, few = (CODER.encode(some, TokenCodec.RANK_CLASSES) for some in (ids, ids[1:]))
    assert (many.codec, few.codec) == (TokenCodec.RANK_CLASSES, TokenCodec.RANK_VARINT)
    for count in (MIN_CLASSES - 1, 1, 0):
        block = Block(TokenCodec.RANK_CLASSES, count, 0, many.payload[:count])
        with pytest.raises(BadTokenBlockError, match="in classes"):
            CODER.decode(block, max_count=LIMIT)
    assert TokenCodec.RANK_CLASSES not in TokenCoder(DIGEST, SIZE).supported


def test_the_layouts_are_those_of_the_wire() -> None:
    ids = [5, 300, 49_151]
    checksum = zlib.crc32(np.array(ids, "<u4").tobytes(), zlib.crc32(DIGEST))
    assert CODER.encode(ids, TokenCodec.VARINT) == Block(
        TokenCodec.VARINT, 3, checksum, bytes.fromhex("05 ac02 ffff02")
    )
    assert CODER.encode(ids, TokenCodec.U16).payload == bytes.fromhex("0500 2c01 ffbf")
    ranked = TokenCoder(DIGEST, SIZE, RankTable(DIGEST, SIZE, [49_151, 300]))
    assert ranked.encode(ids).payload == bytes.fromhex("07 01 00")


def test_the_best_codec_is_the_default() -> None:
    assert CODER.encode([1]).codec is TokenCodec.RANK_VARINT
    plain = TokenCoder(DIGEST, SIZE)
    assert plain.supported == (TokenCodec.VARINT, TokenCodec.U16)
    assert plain.encode([1]).codec is TokenCodec.VARINT


@given(st.one_of(IDS, LONG_IDS).filter(bool), CODECS, st.data())
def test_any_flipped_bit_is_refused(ids: list[int], codec: TokenCodec, data: st.DataObject) -> None:
    block = CODER.encode(ids, codec)
    bit = data.draw(st.integers(0, 8 * len(block.payload) - 1))
    payload = bytearray(block.payload)
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadTokenBlockError):
        CODER.decode(replace(block, payload=bytes(payload)), max_count=LIMIT)


@given(IDS.filter(bool), CODECS, st.binary(min_size=1, max_size=4), st.data())
def test_truncated_and_extended_blocks_are_refused(
    ids: list[int], codec: TokenCodec, tail: bytes, data: st.DataObject
) -> None:
    block = CODER.encode(ids, codec)
    kept = data.draw(st.integers(0, len(block.payload) - 1))
    for payload in (block.payload[:kept], block.payload + tail):
        with pytest.raises(BadTokenBlockError):
            CODER.decode(replace(block, payload=payload), max_count=LIMIT)
    for count in (len(ids) - 1, len(ids) + 1):
        with pytest.raises(BadTokenBlockError):
            CODER.decode(replace(block, count=count), max_count=LIMIT)


@given(
    st.one_of(st.integers(-2, 5), st.just(60)),
    st.integers(-2, 140),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=100),
)
def test_made_up_blocks_never_decode_to_something_else(
    codec: int, count: int, checksum: int, payload: bytes
) -> None:
    block = Block(codec, count, checksum, payload)
    try:
        ids = CODER.decode(block, max_count=130)
    except BadTokenBlockError:
        return
    assert CODER.encode(ids, TokenCodec(codec)) == block


@pytest.mark.parametrize("codec", TokenCodec)
@pytest.mark.parametrize("num_ids", [1, 200])
def test_ids_outside_the_vocabulary_are_refused(codec: TokenCodec, num_ids: int) -> None:
    small = make_coder(1000)
    for bad in (1000, 1001, 16_383):
        ids = [*range(num_ids - 1), bad]
        with pytest.raises(BadTokenBlockError, match="outside the vocabulary of 1000"):
            small.encode(ids, codec)
        ranked = codec is TokenCodec.RANK_CLASSES and num_ids >= MIN_CLASSES
        ids = [*range(max(num_ids - 1, 0)), *([60_000] if ranked else [bad])]
        written = codec if ranked or codec is TokenCodec.U16 else TokenCodec.VARINT
        block = replace((WIDE if ranked else CODER).encode(ids, written), codec=codec)
        if codec is TokenCodec.RANK_CLASSES and not ranked:
            continue
        with pytest.raises(BadTokenBlockError, match="outside the vocabulary of 1000"):
            small.decode(block, max_count=LIMIT)
    for bad in (-1, 2**32):
        with pytest.raises(BadTokenBlockError, match="outside the vocabulary"):
            CODER.encode([bad], codec)


@pytest.mark.parametrize("codec", TokenCodec)
def test_the_count_is_limited_before_anything_is_decoded(codec: TokenCodec) -> None:
    block = CODER.encode(range(100), codec)
    with pytest.raises(BadTokenBlockError, match="at most 99"):
        CODER.decode(block, max_count=99)
    with pytest.raises(BadTokenBlockError, match="cannot have 1000000 bytes"):
        CODER.decode(replace(block, payload=bytes(1_000_000)), max_count=LIMIT)


def test_another_vocabulary_or_table_is_noticed() -> None:
    ids = [1, 2, 3, 30_000]
    other_vocabulary = make_coder(digest=bytes(32))
    for codec in TokenCodec:
        with pytest.raises(BadTokenBlockError, match="checksum"):
            other_vocabulary.decode(CODER.encode(ids, codec), max_count=LIMIT)
    with pytest.raises(BadTokenBlockError, match="checksum"):
        make_coder(seed=1).decode(CODER.encode(ids), max_count=LIMIT)


def test_a_table_of_another_size_is_no_table() -> None:
    with pytest.raises(ValueError, match="a vocabulary of another size"):
        TokenCoder(DIGEST, SIZE, RankTable(DIGEST, SIZE - 1, [1]))


def test_negotiation_takes_the_peers_first_wish() -> None:
    assert negotiate([99, 3, 1], CODER.supported) is TokenCodec.U16
    assert negotiate([1, 2], TokenCoder(DIGEST, SIZE).supported) is TokenCodec.VARINT
    assert negotiate([], CODER.supported) is TokenCodec.VARINT


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(BadTokenBlockError, match=r"reads \[99, 3\].*writes \[60, 1, 2\]"):
        negotiate([99, 3], WIDE.supported)
