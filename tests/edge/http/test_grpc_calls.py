"""gRPC's framing and statuses, as its own library reads and writes them."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import unquote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import errors
from outrider.errors import FrameTooLargeError, InvalidRequestError, MalformedFrameError
from outrider.v1 import common_pb2
from services.edge.http.grpc_calls import MessageDecoder, encode, status_of, timeout_ms


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_messages_come_out_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(encode, messages))
    decoder, found, at = MessageDecoder(40), list[bytes](), 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        found += decoder.feed(data[at:cut])
        at = cut
    assert found == messages
    assert decoder.num_held == 0


@given(st.binary(max_size=200))
def test_junk_is_refused_or_held(data: bytes) -> None:
    decoder = MessageDecoder(64)
    try:
        decoder.feed(data)
    except (MalformedFrameError, FrameTooLargeError):
        return
    assert decoder.num_held < 64 + 5


def test_what_is_too_long_is_refused_by_its_length_alone() -> None:
    with pytest.raises(FrameTooLargeError, match="65 bytes"):
        MessageDecoder(64).feed(encode(b"x" * 65)[:5])
    with pytest.raises(MalformedFrameError, match="uncompressed"):
        MessageDecoder(64).feed(b"\x01\0\0\0\x01x")


@pytest.mark.parametrize("kind", [it for it in vars(errors).values() if isinstance(it, type)])
def test_every_error_has_grpcs_status(kind: type) -> None:
    if not issubclass(kind, errors.OutriderError):
        return
    error = kind("line one\nlöst 100%")
    fields = dict(status_of(error))
    code = grpc.StatusCode[error.grpc_code]
    assert int(fields[b"grpc-status"]) == code.value[0]
    text = fields[b"grpc-message"].decode("ascii")
    assert text.isprintable() and unquote(text) == error.message
    detail = common_pb2.ErrorDetail.FromString(b64decode(fields[b"outrider-error-bin"]))
    assert (detail.reason, detail.message) == (error.reason, error.message)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("", 0), ("5S", 5000), ("100m", 100), ("1n", 1), ("1500u", 1), ("99999999H", (1 << 31) - 1)],
)
def test_timeouts(stated: str, expected: int) -> None:
    assert timeout_ms(stated) == expected


@pytest.mark.parametrize("stated", ["S", "5", "123456789S", "-1S", "5 S", "5s"])
def test_what_is_no_timeout_is_refused(stated: str) -> None:
    with pytest.raises(InvalidRequestError, match="grpc-timeout"):
        timeout_ms(stated)
