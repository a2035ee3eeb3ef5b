"""Frames of KV blocks: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.codec.kv import (
    KvDtype,
    KvHeader,
    KvLayout,
    Payload,
    PlaneGroup,
    decode_frame,
    encode_frame,
    max_frame_bytes,
)
from outrider.codec.kv.layout import MAX_BLOCK_BYTES, uniform_layout
from outrider.errors import MalformedFrameError

LAYOUT = uniform_layout(KvDtype.BF16, num_layers=2, num_heads=3, block_tokens=4, head_size=8)
TWO_SHAPES = KvLayout(KvDtype.F32, 4, (PlaneGroup(2, 1, 8), PlaneGroup(4, 2, 4)))
LAYOUTS = (
    LAYOUT,
    TWO_SHAPES,
    uniform_layout(KvDtype.F16, num_layers=1, num_heads=2, block_tokens=2, head_size=4),
)


def header_of(layout: KvLayout, num_blocks: int, payload: Payload = Payload.EXACT) -> KvHeader:
    ids = tuple(range(100, 100 + num_blocks * layout.block_tokens))
    return KvHeader(payload, layout, b"f" * 32, b"v" * 32, b"p" * 16, ids)


def real_numbers(layout: KvLayout, num_blocks: int, seed: int) -> list[bytes]:
    """Blocks of normal numbers, a few channels of which are large, as keys have them."""
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(num_blocks):
        numbers = rng.normal(size=layout.block_values).astype(np.float32)
        numbers[:: layout.groups[0].head_size] *= 30
        blocks.append(as_block(numbers, layout))
    return blocks


def as_block(numbers: np.ndarray, layout: KvLayout) -> bytes:
    """float32 numbers as the layout has them; bf16 cut off."""
    if layout.dtype is KvDtype.F32:
        return numbers.tobytes()
    if layout.dtype is KvDtype.F16:
        return numbers.astype(np.float16).tobytes()
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def as_floats(block: bytes, layout: KvLayout) -> np.ndarray:
    if layout.dtype is KvDtype.F32:
        return np.frombuffer(block, np.float32)
    if layout.dtype is KvDtype.F16:
        return np.frombuffer(block, np.float16).astype(np.float32)
    return (np.frombuffer(block, np.uint16).astype(np.uint32) << 16).view(np.float32)


@given(st.data(), st.sampled_from(LAYOUTS), st.integers(0, 3))
def test_lossless_frames_hold_every_bit(
    data: st.DataObject, layout: KvLayout, num_blocks: int
) -> None:
    size = layout.block_bytes
    blocks = [data.draw(st.binary(min_size=size, max_size=size)) for _ in range(num_blocks)]
    header = header_of(layout, num_blocks)
    frame = decode_frame(encode_frame(header, blocks))
    assert frame.header == header
    assert list(frame.blocks()) == blocks


def scaled_parts(numbers: np.ndarray, layout: KvLayout) -> Iterator[tuple[np.ndarray, int]]:
    """The keys and the values of each group, [planes, heads, tokens, head size], and the axis along
    which they share a step."""
    begin = 0
    for group in layout.groups:
        shape = (group.num_planes, group.num_heads, layout.block_tokens, group.head_size)
        end = begin + int(np.prod(shape))
        planes = numbers[begin:end].reshape(shape)
        yield planes[0::2], 2
        yield planes[1::2], 3
        begin = end


def through_q8(block: bytes, layout: KvLayout) -> bytes:
    (out,) = decode_frame(encode_frame(header_of(layout, 1, Payload.Q8), [block])).blocks()
    return out


NUMBERS = st.one_of(
    st.floats(-300, 300, width=32),
    st.floats(-60_000, 60_000, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, 65504.0]),
)


@given(st.data(), st.sampled_from(LAYOUTS), st.floats(0, 1000))
def test_quantised_numbers_are_off_by_half_a_step_at_most(
    data: st.DataObject, layout: KvLayout, middle: float
) -> None:
    """A step is a 254th of what lies between the least and the largest number that share it, or a
    32,000th of the larger one, rounded up by a sixteenth at most."""
    size = layout.block_values
    drawn = np.array(data.draw(st.lists(NUMBERS, min_size=8, max_size=8)), np.float32)
    numbers = np.random.default_rng(int(abs(drawn).sum())).choice(drawn, size) + np.float32(middle)
    if layout.dtype is KvDtype.F16:
        numbers = numbers.clip(-65504, 65504)
    block = as_block(numbers, layout)
    before, after = as_floats(block, layout), as_floats(through_q8(block, layout), layout)
    rounding = {KvDtype.F32: 2.0**-22, KvDtype.BF16: 2.0**-8, KvDtype.F16: 2.0**-10}[layout.dtype]
    for (one, axis), (other, _) in zip(
        scaled_parts(before, layout), scaled_parts(after, layout), strict=True
    ):
        spread = one.max(axis=axis, keepdims=True) - one.min(axis=axis, keepdims=True)
        largest = np.abs(one).max(axis=axis, keepdims=True)
        step = np.maximum(spread / 254, largest / 32_000) * (1 + 2**-4)
        allowed = step * 0.502 + (np.abs(one) + step) * rounding + 1e-37
        assert (np.abs(one - other) <= allowed).all()
        assert (other[one == 0] == 0).all()


@given(st.integers(0, 1 << 32))
def test_what_travels_again_changes_by_less_than_the_first_time(seed: int) -> None:
    (block,) = real_numbers(TWO_SHAPES, 1, seed)
    once = through_q8(block, TWO_SHAPES)
    twice = through_q8(once, TWO_SHAPES)
    first, second, third = (as_floats(it, TWO_SHAPES) for it in (block, once, twice))
    assert np.abs(third - second).sum() < np.abs(second - first).sum()


def test_keys_that_lie_far_from_zero_keep_their_differences() -> None:
    """As rotated channels of low frequency do: one sign, and little between its numbers."""
    layout = uniform_layout(KvDtype.F32, num_layers=1, num_heads=1, block_tokens=32, head_size=2)
    numbers = np.zeros(layout.block_values, np.float32)
    numbers[:64] = 100 + np.random.default_rng(5).uniform(-1, 1, 64)
    out = as_floats(through_q8(numbers.tobytes(), layout), layout)
    assert np.abs(out - numbers).max() < 2 / 254


@pytest.mark.parametrize("layout", LAYOUTS, ids=["bf16", "two shapes", "f16"])
@given(data=st.data())
def test_whatever_the_bits_are_a_valid_block_comes_out(
    layout: KvLayout, data: st.DataObject
) -> None:
    """Numbers that no model has: infinite, none, the largest there are."""
    size = layout.block_bytes
    out = through_q8(data.draw(st.binary(min_size=size, max_size=size)), layout)
    assert len(out) == size and np.isfinite(as_floats(out, layout)).all()


def test_numbers_that_are_all_zero_stay_so() -> None:
    blocks = [bytes(LAYOUT.block_bytes)]
    for payload in Payload:
        assert list(decode_frame(encode_frame(header_of(LAYOUT, 1, payload), blocks)).blocks()) == (
            blocks
        )


@given(st.integers(0, 10_000), st.integers(0, 255))
@settings(max_examples=100)
def test_no_changed_byte_is_taken_for_kv(at: int, value: int) -> None:
    blocks = real_numbers(LAYOUT, 2, seed=1)
    data = bytearray(encode_frame(header_of(LAYOUT, 2), blocks))
    at %= len(data)
    changed = data[at] != value
    data[at] = value
    try:
        out = list(decode_frame(bytes(data)).blocks())
    except MalformedFrameError:
        assert changed
    else:
        assert out == blocks and not changed


@given(st.integers(0, 10_000))
def test_a_frame_cut_anywhere_is_refused(end: int) -> None:
    data = encode_frame(header_of(LAYOUT, 2), real_numbers(LAYOUT, 2, seed=1))
    with pytest.raises(MalformedFrameError):
        list(decode_frame(data[: end % len(data)]).blocks())


@given(st.binary(max_size=300))
def test_no_garbage_is_a_frame(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        list(decode_frame(b"OKV\x01" + data).blocks())


def test_bytes_behind_the_last_block_are_refused() -> None:
    data = encode_frame(header_of(LAYOUT, 1), real_numbers(LAYOUT, 1, seed=1))
    with pytest.raises(MalformedFrameError, match="behind its last block"):
        list(decode_frame(data + b"x").blocks())


def with_section(section: bytes) -> bytes:
    """A frame of one block with another section, whose checksums are right."""
    whole = encode_frame(header_of(LAYOUT, 1), real_numbers(LAYOUT, 1, seed=1))
    begin = decode_frame(whole).begin
    from outrider.codec import varint

    head = varint.encode(len(section)) + struct.pack("<I", zlib.crc32(section))
    return whole[:begin] + head + section


@pytest.mark.parametrize("claimed", [LAYOUT.block_values - 1, 1 << 40])
def test_a_section_that_would_unpack_to_another_size_is_refused_before_it_does(
    claimed: int,
) -> None:
    # A frame header of zstd (RFC 8878, section 3.1.1.1) with an 8-byte content size.
    lying = struct.pack("<IBBQ", zstandard.MAGIC_NUMBER, 0b1100_0000, 0, claimed)
    with pytest.raises(MalformedFrameError, match="another size"):
        list(decode_frame(with_section(lying + bytes(LAYOUT.block_values))).blocks())


@pytest.mark.parametrize(
    "layout",
    [
        KvLayout(KvDtype.BF16, 4, ()),
        KvLayout(KvDtype.BF16, 0, (PlaneGroup(2, 1, 8),)),
        KvLayout(KvDtype.BF16, 4, (PlaneGroup(3, 1, 8),)),
        KvLayout(KvDtype.BF16, 1 << 16, (PlaneGroup(2, 1 << 16, 1 << 16),)),
        KvLayout(KvDtype.BF16, 32, (PlaneGroup(1 << 14, 1, 1),)),
    ],
    ids=["nothing", "no tokens", "no values", "absurd", "planes"],
)
def test_layouts_that_no_engine_has_are_refused(layout: KvLayout) -> None:
    with pytest.raises(MalformedFrameError):
        layout.check()
    with pytest.raises(MalformedFrameError):
        decode_frame(encode_frame(KvHeader(Payload.EXACT, layout, b"", b"", b"", ()), []))


def test_the_largest_block_is_allowed() -> None:
    layout = KvLayout(KvDtype.BF16, 32, (PlaneGroup(2, 1 << 16, MAX_BLOCK_BYTES >> 23),))
    layout.check()
    assert layout.block_bytes == MAX_BLOCK_BYTES


@given(st.sampled_from(LAYOUTS), st.sampled_from(Payload), st.integers(0, 1 << 32))
def test_no_frame_of_a_block_is_longer_than_the_most(
    layout: KvLayout, payload: Payload, seed: int
) -> None:
    """Nothing is harder to pack than noise."""
    rng = np.random.default_rng(seed)
    ids = tuple(rng.integers(0, 1 << 32, layout.block_tokens).tolist())
    header = KvHeader(payload, layout, b"f" * 64, b"v" * 64, b"p" * 64, ids)
    assert len(encode_frame(header, [rng.bytes(layout.block_bytes)])) <= max_frame_bytes(layout)


def test_what_does_not_fit_its_header_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="ids do not fill"):
        encode_frame(header_of(LAYOUT, 1), [])
    with pytest.raises(ValueError, match="bytes, its layout"):
        encode_frame(header_of(LAYOUT, 1), [b"short"])


def test_lossless_real_numbers_are_smaller() -> None:
    layout = uniform_layout(KvDtype.BF16, num_layers=8, num_heads=3, block_tokens=32, head_size=64)
    blocks = real_numbers(layout, 1, seed=3)
    data = encode_frame(header_of(layout, 1), blocks)
    assert layout.block_bytes / len(data) > 1.3
