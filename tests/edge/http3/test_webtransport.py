"""WebTransport on one connection, against aioquic's client in memory: capsules, sessions, whose
their streams are, and that every bound holds when it is filled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, StreamType
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from services.edge.http3.exchange import H3Code
from services.edge.http3.webtransport import DRAIN, CapsuleReader, Close, http_code
from services.edge.quic import certificate
from tests.edge.http3.client import Response
from tests.edge.http3.pair import Pair

Make = Callable[..., Pair]
CLOSE = 0x2843


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("webtransport")
    return certificate.ensure(folder, (), certificate.utc_now())


@pytest.fixture
def make(identity: tuple[Path, Path]) -> Make:
    return lambda **settings: Pair(*identity, **settings)


def capsule(kind: int, payload: bytes) -> bytes:
    return encode_uint_var(kind) + encode_uint_var(len(payload)) + payload


def connect(
    pair: Pair, path: str = "/session", protocol: str = "webtransport", *, ends: bool = False
) -> Response:
    response = pair.open()
    section = [
        (b":method", b"CONNECT"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", path.encode()),
        (b":protocol", protocol.encode()),
        (b"origin", b"https://page.example"),
    ]
    pair.h3.send_headers(response.stream_id, section, ends)
    pair.deliver()
    return response


def say(pair: Pair, session: Response, data: bytes, *, ends: bool = False) -> None:
    pair.h3.send_data(session.stream_id, data, ends)
    pair.deliver()


def stream_of(session_id: int, data: bytes = b"") -> bytes:
    return encode_uint_var(FrameType.WEBTRANSPORT_STREAM) + encode_uint_var(session_id) + data


# Capsules and codes.

CODES = st.integers(0, 2**32 - 1)
CLOSES = st.builds(Close, CODES, st.text(max_size=250))
OTHERS = st.tuples(
    st.sampled_from([0, 0x17, 0x78AE, 0x190B4D3D, 0x190B4D3F, 0x190B4D44, 2**61]),
    st.binary(max_size=300),
)


@given(st.lists(OTHERS, max_size=5), CLOSES, st.data())
def test_capsules_are_read_however_they_are_cut(
    others: list[tuple[int, bytes]], close: Close, data: st.DataObject
) -> None:
    whole = b"".join(capsule(*it) for it in others) + close.capsule()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    reader = CapsuleReader()
    found = [
        it
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        if (it := reader.feed(whole[begin:end])) is not None
    ]
    assert found == [close] and reader.at_boundary
    with pytest.raises(MalformedFrameError):
        reader.feed(b"x")


@given(st.binary(max_size=4000), st.integers(1, 64))
def test_any_bytes_are_read_or_refused_and_little_of_them_is_kept(data: bytes, step: int) -> None:
    reader = CapsuleReader()
    try:
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
            assert reader.num_held <= 16 + 4 + 1024
    except MalformedFrameError:
        pass


def test_a_capsule_of_any_length_is_skipped_and_not_kept() -> None:
    reader = CapsuleReader()
    reader.feed(encode_uint_var(0x29) + encode_uint_var(1 << 40))
    for _ in range(100):
        assert reader.feed(bytes(10_000)) is None
        assert reader.num_held == 0 and not reader.at_boundary


@pytest.mark.parametrize(
    "bad",
    [
        capsule(CLOSE, b"abc"),
        capsule(CLOSE, bytes(4) + bytes(1025)),
        encode_uint_var(CLOSE) + encode_uint_var(1 << 30),
        capsule(CLOSE, bytes(4) + b"\xff"),
        capsule(0x190B4D3E, b"\0\0"),
        capsule(0x190B4D42, b"\0\0"),
    ],
)
def test_malformed_and_forbidden_capsules_are_refused(bad: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        CapsuleReader().feed(bad)


def test_a_reason_is_cut_between_characters() -> None:
    told = CapsuleReader().feed(Close(7, "é" * 600 + "x").capsule())
    assert told == Close(7, "é" * 512)
    told = CapsuleReader().feed(Close(7, "x" + "é" * 600).capsule())
    assert told == Close(7, "x" + "é" * 511)


@given(CODES, CODES)
def test_error_codes_are_told_apart_and_never_one_that_is_reserved(one: int, other: int) -> None:
    first, second = http_code(one), http_code(other)
    assert (first == second) == (one == other) and (first < second) == (one < other)
    assert 0x52E4A40FA8DB <= first <= 0x52E5AC983162
    assert (first - 0x21) % 0x1F


def test_the_bounds_of_error_codes_are_those_of_the_draft() -> None:
    assert (http_code(0), http_code(2**32 - 1)) == (0x52E4A40FA8DB, 0x52E5AC983162)
    for code in (-1, 2**32):
        with pytest.raises(ValueError, match="32 bits"):
            http_code(code)


# Sessions.


@pytest.mark.parametrize("protocol", ["webtransport", "webtransport-h3"])
def test_a_session_is_opened_and_its_streams_are_the_hosts(make: Make, protocol: str) -> None:
    pair = make()
    session = connect(pair, protocol=protocol)
    assert session.status == 200 and pair.host.sessions == [session.stream_id]
    assert pair.session.num_requests == 0, "an open session is no request under way"
    for cut in (1, 2, 3, 5):
        pair.host.session_data.clear()
        whole = stream_of(session.stream_id, b"frame")
        stream = pair.raw(whole[:cut])
        pair.client.send_stream_data(stream.stream_id, whole[cut:], True)
        pair.deliver()
        told = pair.host.session_data
        assert b"".join(data for _, data, _ in told) == b"frame"
        assert {number for number, _, _ in told} == {stream.stream_id} and told[-1][2]
    assert pair.fault is None


def test_a_long_first_piece_of_a_stream_is_passed_on_whole(make: Make) -> None:
    pair = make()
    session = connect(pair)
    data = bytes(range(256)) * 40
    stream = pair.raw(stream_of(session.stream_id, data[:1000]))
    told = pair.host.session_data
    assert told[0][0] == stream.stream_id and told[0][1] == data[: len(told[0][1])]
    assert stream.stream_id not in pair.session._streams


def test_a_stream_without_data_is_told_of_at_once(make: Make) -> None:
    pair = make()
    session = connect(pair)
    stream = pair.raw(stream_of(session.stream_id))
    assert pair.host.session_data == [(stream.stream_id, b"", False)]


@pytest.mark.parametrize(
    ("path", "protocol", "status"),
    [("/session", "websocket", 501), ("/elsewhere", "webtransport", 404)],
)
def test_what_opens_no_session_is_told_by_a_status(
    make: Make, path: str, protocol: str, status: int
) -> None:
    pair = make()
    assert connect(pair, path, protocol).status == status
    assert pair.host.sessions == [] and pair.fault is None


def test_an_edge_without_sessions_offers_none(make: Make) -> None:
    pair = make(webtransport=False)
    assert connect(pair).status == 501
    pair.raw(stream_of(0, b"x"))
    assert pair.fault is not None and pair.fault.code == ErrorCode.H3_FRAME_UNEXPECTED


def test_a_connection_has_one_session_and_others_are_rejected(make: Make) -> None:
    pair = make()
    first = connect(pair)
    for _ in range(50):
        assert connect(pair).reset_code == ErrorCode.H3_REQUEST_REJECTED
    assert pair.host.sessions == [first.stream_id] and pair.host.num_held == 1
    assert len(pair.session._streams) == 1
    say(pair, first, Close().capsule(), ends=True)
    again = connect(pair)
    assert again.status == 200 and pair.host.sessions == [first.stream_id, again.stream_id]


def test_streams_without_their_session_are_rejected_and_nothing_is_kept(make: Make) -> None:
    pair = make()
    connect(pair)
    for number in range(300):
        response = pair.raw(stream_of(400 + 4 * number, b"data"), ends=True)
        assert response.reset_code == H3Code.WEBTRANSPORT_STREAM_REJECTED.value
    assert pair.host.session_data == [] and len(pair.session._streams) == 1
    assert pair.host.num_held == 1 and pair.fault is None


def test_half_a_header_of_a_stream_has_its_time(make: Make) -> None:
    pair = make(header_timeout_s=5.0)
    connect(pair)
    response = pair.raw(encode_uint_var(FrameType.WEBTRANSPORT_STREAM))
    pair.pass_time(6.0)
    assert response.stop_code is not None and pair.host.num_held == 1
    assert pair.host.closed_sessions == [], "a session itself may be open for long"


def test_unidirectional_streams_of_a_session_are_not_read(make: Make) -> None:
    pair = make()
    session = connect(pair)
    head = encode_uint_var(StreamType.WEBTRANSPORT) + encode_uint_var(session.stream_id)
    stream_id = pair.client.get_next_available_stream_id(is_unidirectional=True)
    told = pair.responses[stream_id] = Response(stream_id)
    pair.client.send_stream_data(stream_id, head + b"data")
    pair.deliver()
    assert told.stop_code == H3Code.WEBTRANSPORT_STREAM_REJECTED.value
    assert pair.host.session_data == [] and pair.fault is None


@pytest.mark.parametrize("with_capsule", [True, False])
def test_a_session_that_its_client_ends_is_over_on_both_sides(
    make: Make, with_capsule: bool
) -> None:
    pair = make()
    session = connect(pair)
    data = Close(9, "enough").capsule() if with_capsule else b""
    say(pair, session, data, ends=True)
    told = Close(9, "enough") if with_capsule else Close()
    assert pair.host.closed_sessions == [(session.stream_id, told)]
    assert session.ended.is_set() and session.reset_code is None
    pair.deliver()
    assert pair.session._streams == {} and pair.budget.num_bytes == 0 and pair.host.num_held == 0


@pytest.mark.parametrize(
    "how", ["reset", "stop", "garbage", "half a capsule", "more after its end"]
)
def test_a_session_that_is_cut_off_is_gone(make: Make, how: str) -> None:
    pair = make()
    session = connect(pair)
    number = session.stream_id
    if how == "reset":
        pair.client.reset_stream(number, ErrorCode.H3_REQUEST_CANCELLED)
    elif how == "stop":
        pair.client.stop_stream(number, ErrorCode.H3_REQUEST_CANCELLED)
    elif how == "garbage":
        say(pair, session, capsule(CLOSE, b"x"))
    elif how == "half a capsule":
        say(pair, session, b"\x68", ends=True)
    else:
        say(pair, session, Close(1).capsule())
        say(pair, session, b"more")
    pair.deliver()
    expected = Close(1) if how == "more after its end" else None
    assert pair.host.closed_sessions == [(number, expected)] and pair.fault is None
    if how in ("garbage", "half a capsule", "more after its end"):
        assert session.reset_code == ErrorCode.H3_MESSAGE_ERROR or how == "more after its end"


def test_a_client_that_does_not_end_a_closed_session_loses_it_in_time(make: Make) -> None:
    pair = make(close_timeout_s=2.0)
    session = connect(pair)
    pair.session.close_session(Close(0x101, "bye"), pair.now)
    pair.deliver()
    assert CapsuleReader().feed(session.body) == Close(0x101, "bye") and session.ended.is_set()
    before = session.stop_code
    assert before is None and pair.session.num_timed == 1
    pair.pass_time(3.0)
    after = session.stop_code
    assert after == ErrorCode.H3_NO_ERROR and pair.session.num_timed == 0
    pair.client.reset_stream(session.stream_id, ErrorCode.H3_NO_ERROR)
    pair.deliver()
    assert pair.session._streams == {} and pair.budget.num_bytes == 0 and pair.host.num_held == 0


def test_what_still_comes_on_streams_of_a_session_that_is_over_is_ignored(make: Make) -> None:
    pair = make()
    session = connect(pair)
    stream = pair.raw(stream_of(session.stream_id, b"begin"))
    pair.host.owned_streams.clear()
    pair.session.close_session(Close(), pair.now)
    pair.session.discard(stream.stream_id, pair.now, has_ended=False)
    pair.client.send_stream_data(stream.stream_id, b"\x00\x01garbage")
    pair.deliver()
    assert stream.reset_code == H3Code.WEBTRANSPORT_SESSION_GONE.value
    assert stream.stop_code == H3Code.WEBTRANSPORT_SESSION_GONE.value and pair.fault is None
    pair.client.reset_stream(stream.stream_id, 0)
    pair.deliver()
    assert stream.stream_id not in pair.session._streams


def test_an_edge_that_stops_says_so_to_the_session_and_takes_no_other(make: Make) -> None:
    pair = make()
    session = connect(pair)
    pair.session.drain()
    pair.session.send_capsule(DRAIN, pair.now)
    pair.deliver()
    assert session.body == DRAIN
    stream = pair.raw(stream_of(session.stream_id, b"late"))
    assert pair.host.session_data == [(stream.stream_id, b"late", False)], "refused in words"
    assert connect(pair).reset_code == ErrorCode.H3_REQUEST_REJECTED
    assert pair.ask().reset_code == ErrorCode.H3_REQUEST_REJECTED


def test_a_flood_of_capsules_ends_the_connection(make: Make) -> None:
    for piece in (capsule(0x29, bytes(1000)), capsule(0x29, b"")):
        pair = make()
        session = connect(pair)
        for _ in range(2000):
            if pair.fault is not None:
                break
            say(pair, session, piece)
        assert pair.fault is not None and pair.fault.code == ErrorCode.H3_EXCESSIVE_LOAD
        assert pair.budget.num_bytes <= 8192


def test_a_session_opens_only_from_a_whole_request(make: Make) -> None:
    pair = make()
    response = connect(pair, ends=True)
    assert response.status == 200
    assert pair.host.closed_sessions == [(response.stream_id, Close())]
    for bad in ([(b":protocol", b"webtransport")], []):
        other = pair.open()
        section = [(b":method", b"CONNECT"), (b":authority", b"localhost"), *bad]
        pair.h3.send_headers(other.stream_id, section, False)
        pair.deliver()
        assert other.reset_code == ErrorCode.H3_MESSAGE_ERROR or other.status == 501
    other = pair.ask(headers=[])
    assert pair.fault is None and not other.ended.is_set()
