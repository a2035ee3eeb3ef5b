"""The frame decoder gives the same frames however the bytes arrive, and keeps little."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec import varint
from outrider.codec.frames import MIN_MEAN_FRAME_BYTES, FrameDecoder, encode_frame
from outrider.errors import FrameTooLargeError, MalformedFrameError, OutriderError

PAYLOADS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def feed_in_pieces(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feeds `data` cut at `cuts`."""
    edges = [0, *sorted(cuts), len(data)]
    frames: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        frames += decoder.feed(data[start:end])
    return frames


@given(PAYLOADS, st.data())
def test_frames_survive_any_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, payloads))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    decoder = FrameDecoder()
    assert feed_in_pieces(decoder, stream, cuts) == payloads
    assert decoder.at_boundary


def test_at_boundary_only_between_frames() -> None:
    stream = encode_frame(b"x" * 200)
    for cut in range(1, len(stream)):
        decoder = FrameDecoder()
        decoder.feed(stream[:cut])
        assert not decoder.at_boundary
        decoder.feed(stream[cut:])
        assert decoder.at_boundary


def test_the_limit_itself_is_allowed() -> None:
    payload = bytes(1000)
    assert FrameDecoder(max_frame_bytes=1000).feed(encode_frame(payload)) == [payload]


@pytest.mark.parametrize("length", [1001, 2**21, 2**32 - 1])
def test_above_the_limit_is_refused_before_any_payload_is_kept(length: int) -> None:
    header = varint.encode(length)
    decoder = FrameDecoder(max_frame_bytes=1000)
    with pytest.raises(FrameTooLargeError, match="limit of 1000"):
        decoder.feed(header)


def test_too_large_is_known_before_the_length_is_whole() -> None:
    with pytest.raises(FrameTooLargeError):
        FrameDecoder(max_frame_bytes=1000).feed(b"\xff\xff")


def test_an_announced_length_reserves_no_memory() -> None:
    tracemalloc.start()
    try:
        decoders = [FrameDecoder(max_frame_bytes=1 << 30) for _ in range(8)]
        for decoder in decoders:
            decoder.feed(varint.encode(1 << 30) + b"x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00", id="zero"),
        pytest.param(b"\x80\x00", id="zero in two bytes"),
        pytest.param(b"\x85\x00", id="five in two bytes"),
        pytest.param(b"\x80" * 64, id="endless"),
    ],
)
def test_a_bad_length_is_refused_at_every_split(data: bytes) -> None:
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        with pytest.raises(MalformedFrameError):
            feed_in_pieces(decoder, data, [cut])


def test_after_an_error_the_decoder_stays_shut() -> None:
    decoder = FrameDecoder()
    with pytest.raises(MalformedFrameError):
        decoder.feed(b"\x00")
    assert not decoder.at_boundary
    with pytest.raises(MalformedFrameError):
        decoder.feed(encode_frame(b"good"))


@given(st.binary(max_size=200), st.data())
def test_hostile_bytes_end_alike_at_any_cut(stream: bytes, data: st.DataObject) -> None:
    def outcome(cuts: list[int]) -> object:
        decoder = FrameDecoder(max_frame_bytes=50)
        try:
            return feed_in_pieces(decoder, stream, cuts), decoder.at_boundary
        except OutriderError as error:
            return type(error)

    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert outcome(cuts) == outcome([])


def test_frames_of_next_to_nothing_are_bounded() -> None:
    small, large = encode_frame(b"x"), encode_frame(b"x" * 1000)
    assert len(FrameDecoder().feed(small * 5000)) == 5000
    decoder = FrameDecoder(num_free=10)
    assert len(decoder.feed(small * 10)) == 10
    with pytest.raises(MalformedFrameError, match="next to nothing"):
        decoder.feed(small * 1_000_000)
    decoder = FrameDecoder(num_free=10)
    assert len(decoder.feed(large * 500)) == 500, "those that hold something are not counted out"
    # What they had beyond their share, in multiples of 128 bytes, so many small ones may have.
    num_more = (500 * 1000 - 490 * MIN_MEAN_FRAME_BYTES) // MIN_MEAN_FRAME_BYTES
    assert len(decoder.feed(small * num_more)) == num_more
    with pytest.raises(MalformedFrameError, match="next to nothing"):
        decoder.feed(small * 100)


def test_an_empty_frame_cannot_be_sent() -> None:
    with pytest.raises(MalformedFrameError, match="empty"):
        encode_frame(b"")


@pytest.mark.parametrize("limit", [0, -1, 2**32])
def test_the_limit_is_checked(limit: int) -> None:
    with pytest.raises(ValueError, match="max_frame_bytes"):
        FrameDecoder(limit)


def test_what_is_kept_of_a_frame_is_told() -> None:
    decoder = FrameDecoder()
    data = encode_frame(b"x" * 1000)
    assert decoder.feed(data[:600]) == [] and decoder.num_held == 598
    assert decoder.feed(data[600:]) == [b"x" * 1000] and decoder.num_held == 0
