"""Which bytes of a connection may be parsed, and which clients are refused, with times given."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import FrameTooLargeError, HeadTooLargeError, OutriderError, OverloadedError
from services.edge.http.frame_gate import (
    HTTP1_PIECE_BYTES,
    MAX_FRAME_BYTES,
    PIECE_WEIGHT,
    PREFACE,
    FrameGate,
    FrameLimits,
)

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, UNKNOWN = 6, 7, 8, 9, 0x99
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8
LIMITS = FrameLimits(control_frames_per_s=10.0, resets_per_s=2.0, burst_s=10.0)
"""100 control frames at once, 20 resets."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """As RFC 9113, section 4.1, has it."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def passed(gate: FrameGate, data: bytes, now: float = 0.0) -> list[bytes]:
    """The pieces of all that came."""
    gate.receive(data)
    pieces = []
    while not gate.is_empty:
        pieces.append(gate.next_piece(now))
    return pieces


def http2(limits: FrameLimits = LIMITS) -> FrameGate:
    """Whose client has sent the preface."""
    gate = FrameGate(limits, 0.0)
    assert b"".join(passed(gate, PREFACE)) == PREFACE and gate.is_http2
    return gate


def num_passed(gate: FrameGate, data: bytes, now: float = 0.0, most: int = 100_000) -> int:
    """How many times these frames pass before the client is refused."""
    for count in range(most):
        try:
            passed(gate, data, now)
        except OverloadedError:
            return count
    return most


EMPTY = {
    "ping": frame(PING, bytes(8)),
    "settings": frame(SETTINGS),
    "acknowledged settings": frame(SETTINGS, flags=1),
    "goaway": frame(GOAWAY, bytes(8)),
    "window update": frame(WINDOW_UPDATE, b"\0\0\0\1"),
    "unknown": frame(UNKNOWN),
    "empty data": frame(DATA, stream=1),
    "small data": frame(DATA, b"x" * 63, stream=1),
    "data that ends nothing": frame(DATA, flags=END_STREAM, stream=1),
    "padding": frame(DATA, b"\xff" + bytes(255), flags=PADDED, stream=1),
    "continuation": frame(CONTINUATION, stream=1),
}


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
def test_frames_that_carry_nothing_have_a_budget(data: bytes) -> None:
    assert num_passed(http2(), data) == 100
    gate = http2()
    assert num_passed(gate, data, most=100) == 100
    assert num_passed(gate, data, now=1.0) == 10, "ten more in a second"


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
def test_a_client_within_its_rate_goes_on_for_ever(data: bytes) -> None:
    gate = http2()
    for tenth in range(1, 1001):
        assert passed(gate, data, tenth / 10)


def test_large_frames_of_control_count_as_several() -> None:
    assert num_passed(http2(), frame(UNKNOWN, bytes(64 * 9))) == 10
    assert num_passed(http2(), frame(SETTINGS, bytes(6 * 1000))) == 1


def test_priorities_count_as_ten() -> None:
    assert num_passed(http2(), frame(PRIORITY, bytes(5), stream=3)) == 10


def test_resets_have_a_budget_of_their_own() -> None:
    pair = frame(HEADERS, b"\x82", flags=END_HEADERS, stream=1) + frame(
        RST_STREAM, bytes(4), stream=1
    )
    gate = http2()
    assert num_passed(gate, pair) == 20
    assert num_passed(http2(), EMPTY["ping"] + pair) == 20


def test_streams_that_the_client_has_the_server_reset_count_too() -> None:
    gate = http2()
    for _ in range(20):
        gate.sent(frame(RST_STREAM, bytes(4), stream=1), 0.0)
    assert passed(gate, EMPTY["ping"])
    gate.sent(frame(PING, bytes(8)) + frame(RST_STREAM, bytes(4), stream=1), 0.0)
    with pytest.raises(OverloadedError, match="2 streams a second"):
        passed(gate, EMPTY["ping"])


def test_window_updates_are_free_for_what_was_sent() -> None:
    gate = http2()
    for _ in range(10_000):
        gate.sent(frame(DATA, b"a token", stream=1), 0.0)
        passed(gate, 4 * EMPTY["window update"])
    assert num_passed(gate, EMPTY["window update"]) == 100
    gate = http2()
    for _ in range(10_000):
        gate.sent(frame(DATA, b"a token", stream=1), 0.0)
    assert num_passed(gate, EMPTY["window update"]) == 4096 + 100, "what is free is bounded"


def test_requests_and_bodies_are_not_counted() -> None:
    gate = http2()
    request = (
        frame(HEADERS, bytes(100), flags=END_HEADERS, stream=1)
        + frame(DATA, bytes(64), stream=1)
        + frame(DATA, bytes(MAX_FRAME_BYTES), stream=1)
        + EMPTY["data that ends nothing"]  # here it does
    )
    assert num_passed(gate, request, most=2000) == 2000


def test_a_block_of_headers_is_bounded() -> None:
    whole = frame(HEADERS, bytes(MAX_FRAME_BYTES), flags=END_HEADERS, stream=1)
    assert passed(http2(), whole)
    begun = frame(HEADERS, bytes(MAX_FRAME_BYTES), stream=1)
    with pytest.raises(HeadTooLargeError):
        passed(http2(), begun + frame(CONTINUATION, b"x", stream=1))


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    gate = http2()
    with pytest.raises(FrameTooLargeError):
        passed(gate, frame(DATA, bytes(MAX_FRAME_BYTES + 1), stream=1)[:9])
    with pytest.raises(FrameTooLargeError):
        passed(http2(), b"\xff\xff\xff" + frame(PING)[3:])


def test_a_piece_is_some_frames_or_one_request() -> None:
    ping, request = EMPTY["ping"], frame(HEADERS, bytes(50), flags=END_HEADERS, stream=1)
    pieces = passed(http2(), 70 * ping)
    assert [len(piece) // len(ping) for piece in pieces] == [PIECE_WEIGHT, PIECE_WEIGHT, 6]
    assert passed(http2(), 3 * request) == 3 * [request]
    assert passed(http2(), ping + request + ping) == [ping + request, ping]


def test_nothing_is_scanned_behind_the_limit() -> None:
    gate = http2()
    gate.receive(1000 * EMPTY["ping"])
    pieces = []
    with pytest.raises(OverloadedError):
        while True:
            pieces.append(gate.next_piece(0.0))
    assert len(b"".join(pieces)) == 100 * len(EMPTY["ping"])


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\n\nSM\r\n\r\n",
        b" " + PREFACE,
        b"\x16\x03\x01",
        PREFACE[:-1] + b"x",
    ],
)
def test_what_does_not_begin_with_the_preface_passes_as_it_is(beginning: bytes) -> None:
    gate = FrameGate(LIMITS, 0.0)
    data = beginning + 10_000 * EMPTY["ping"]
    assert b"".join(passed(gate, data)) == data and not gate.is_http2
    gate.sent(1000 * frame(RST_STREAM), 0.0)
    assert passed(gate, PREFACE + 1000 * EMPTY["ping"]) and not gate.is_http2


FRAMES = st.lists(
    st.builds(
        frame,
        st.integers(0, 12),
        st.binary(max_size=100),
        flags=st.integers(0, 255),
        stream=st.integers(0, 9),
    ),
    max_size=40,
)


@given(FRAMES, st.lists(st.integers(1, 60), max_size=200), st.booleans())
def test_bytes_pass_unchanged_and_are_counted_alike_however_they_come(
    frames: list[bytes], sizes: list[int], has_preface: bool
) -> None:
    data = (PREFACE if has_preface else b"GET ") + b"".join(frames)

    def run(parts: list[bytes]) -> tuple[bytes, str]:
        gate, out = FrameGate(LIMITS, 0.0), b""
        try:
            for part in parts:
                for piece in passed(gate, part):
                    assert piece
                    out += piece
        except OutriderError as error:
            return b"", type(error).__name__
        return out, ""

    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    parts.append(data[at:])
    whole, why = run([data])
    assert run([part for part in parts if part]) == (whole, why)
    assert why or whole == data


@given(st.binary(max_size=300))
def test_garbage_passes_or_is_refused(data: bytes) -> None:
    gate = http2()
    try:
        assert b"".join(passed(gate, data)) == data
    except OutriderError as error:
        assert str(error)


def test_http1_passes_in_pieces_and_whole() -> None:
    data = b"POST / HTTP/1.1\r\n\r\n" + 10_000 * b"1\r\na\r\n"
    gate = FrameGate(LIMITS, 0.0)
    pieces = passed(gate, data)
    assert b"".join(pieces) == data
    assert len(pieces) > 5 and max(map(len, pieces)) == HTTP1_PIECE_BYTES
