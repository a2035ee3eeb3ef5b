"""LEB128: both implementations against each other, the standard's examples, and hostile input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec import varint
from outrider.errors import MalformedFrameError

U32 = st.one_of(
    st.integers(0, varint.MAX_VALUE),
    st.integers(0, 300),
    st.sampled_from([2**7 - 1, 2**7, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28, 2**32 - 1]),
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    # DWARF 5, table 7.7, and the 32-bit limit.
    [
        (2, "02"),
        (127, "7f"),
        (128, "8001"),
        (129, "8101"),
        (12857, "b964"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_known_encodings(value: int, encoded: str) -> None:
    assert varint.encode(value).hex() == encoded
    assert varint.decode(bytes.fromhex(encoded), max_count=1) == [value]
    assert varint.encoded_length(value) == len(encoded) // 2


@pytest.mark.parametrize("value", [-1, 2**32])
def test_only_u32_is_encoded(value: int) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        varint.encode(value)


@given(st.lists(U32, max_size=60))
def test_round_trip_and_both_paths_agree(values: list[int]) -> None:
    encoded = b"".join(varint.encode(value) for value in values)
    assert varint.encode_array(np.array(values, dtype=np.uint32)) == encoded
    assert varint.decode(encoded, max_count=len(values)) == values
    assert varint.decode_array(encoded, max_count=len(values)).tolist() == values


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_are_read_alike_or_refused_by_both(data: bytes, max_count: int) -> None:
    try:
        values = varint.decode(data, max_count=max_count)
    except MalformedFrameError:
        with pytest.raises(MalformedFrameError):
            varint.decode_array(data, max_count=max_count)
        return
    assert varint.decode_array(data, max_count=max_count).tolist() == values
    # Accepted bytes are the one encoding of what they mean.
    assert b"".join(map(varint.encode, values)) == data


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("80", "cut short"),
        ("0180", "cut short"),
        ("8000", "shortest"),
        ("ff8000", "shortest"),
        ("ffffffffff01", "longer than 5"),
        ("80808080808080808080", "longer than 5|cut short"),
        ("ffffffff10", "above 32 bits"),
    ],
)
def test_hostile_input_is_refused(data: str, complaint: str) -> None:
    for read in (varint.decode, varint.decode_array):
        with pytest.raises(MalformedFrameError, match=complaint):
            read(bytes.fromhex(data), max_count=100)


def test_the_count_is_limited() -> None:
    for read in (varint.decode, varint.decode_array):
        with pytest.raises(MalformedFrameError, match="at most 2"):
            read(b"\1\2\3", max_count=2)
