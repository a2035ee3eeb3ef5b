"""HTTP/3 on one connection, against aioquic's client in memory: what is answered, refused and cut
off, and that every bound holds when it is filled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, ProtocolError, Setting, encode_frame
from hypothesis import given
from hypothesis import strategies as st

from services.edge.http3.exchange import Phase
from services.edge.http3.webtransport import SETTINGS
from services.edge.quic import certificate
from tests.edge.http3.client import Response, request_headers
from tests.edge.http3.pair import Pair

Make = Callable[..., Pair]


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("http3")
    return certificate.ensure(folder, (), certificate.utc_now())


@pytest.fixture
def make(identity: tuple[Path, Path]) -> Make:
    return lambda **settings: Pair(*identity, **settings)


def settled(pair: Pair) -> None:
    """Nothing is held for the client any more."""
    assert pair.session._streams == {} and pair.budget.num_bytes == 0 and pair.host.num_held == 0
    assert pair.quic._unread == {} and pair.quic.num_unread_bytes == 0
    h3 = pair.session._framing._h3
    assert h3._stream.keys() <= {2, 6, 10} and h3.num_frames == {}, "nothing but control streams"


def test_settings_tell_of_the_limit_and_of_no_table(make: Make) -> None:
    pair = make(max_header_bytes=5000)
    assert pair.h3.received_settings == {
        Setting.MAX_FIELD_SECTION_SIZE: 5000,
        Setting.QPACK_MAX_TABLE_CAPACITY: 0,
        Setting.QPACK_BLOCKED_STREAMS: 0,
        Setting.DUMMY: 1,
        **SETTINGS,
    }
    received = make(webtransport=False).h3.received_settings
    assert received is not None and received.keys().isdisjoint(SETTINGS)


def test_a_request_is_answered_and_nothing_is_left(make: Make) -> None:
    pair = make()
    response = pair.ask("POST", "/x?y=1", b"question")
    (stream,) = pair.host.begun
    assert pair.session.receive(stream, pair.now) == {
        "type": "http.request",
        "body": b"question",
        "more_body": False,
    }
    pair.answer(stream, b"answer")
    assert (response.status, response.body) == (200, b"answer")
    assert response.headers[b"date"] == b"now" and response.ended.is_set()
    settled(pair)


def test_a_response_before_the_end_of_the_request_stops_it(make: Make) -> None:
    pair = make()
    response = pair.ask("POST", "/", b"part", ends=False)
    pair.answer(pair.host.begun[0], b"enough")
    assert response.body == b"enough" and response.reset_code is None
    assert response.stop_code == ErrorCode.H3_NO_ERROR
    pair.deliver()
    settled(pair)


def test_what_an_application_does_not_read_gives_the_client_no_room(make: Make) -> None:
    pair = make()
    big = bytes(2 << 20)
    pair.ask("POST", "/", big)
    (stream,) = pair.host.begun
    window = 256 << 10
    assert stream.exchange is not None
    assert window - 1500 <= stream.exchange.num_unread_bytes <= window
    assert pair.budget.num_bytes <= window + 4096
    got = 0
    while got < len(big):
        message = pair.session.receive(stream, pair.now)
        assert message is not None
        got += len(message["body"])
        pair.deliver()
        assert stream.exchange.num_unread_bytes <= window
    pair.answer(stream)
    settled(pair)


def test_streams_that_nobody_reads_do_not_stop_others_of_less_than_a_window(make: Make) -> None:
    pair = make()
    for _ in range(3):
        pair.ask("POST", "/", bytes(1 << 20))
    assert 3 * (256 << 10) - 1000 < pair.quic.num_unread_bytes <= 3 * (256 << 10)
    response = pair.ask("POST", "/", b"small")
    pair.answer(pair.host.begun[-1], b"done")
    assert response.body == b"done"


def test_a_slow_reader_holds_an_application_up_and_is_cut_off(make: Make) -> None:
    pair = make(max_budget=4 << 20, max_unsent_bytes=10_000, write_timeout_s=5.0)
    response = pair.ask()
    (stream,) = pair.host.begun
    pair.client._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
    pair.client._write_connection_limits = lambda **_: None  # type: ignore[method-assign]
    woken: list[bool] = []
    stream.wake = lambda: woken.append(True)
    pair.answer(stream, bytes(1 << 20), more=True)
    while not pair.session.must_wait(stream):
        pair.go_on(stream, bytes(8000), more=True)
    held = pair.budget.num_bytes
    assert 10_000 < held < 10_000 + 8000 + 2048 + 100
    pair.pass_time(4.0)
    assert pair.session.must_wait(stream) and [response.reset_code] == [None]
    pair.pass_time(2.0)
    assert woken and not pair.session.must_wait(stream), "it is let go"
    assert [response.reset_code] == [ErrorCode.H3_REQUEST_CANCELLED]
    assert pair.session.receive(stream, pair.now) == {"type": "http.disconnect"}
    pair.session.returned(stream, pair.now)
    settled(pair)


def test_a_response_that_is_not_acknowledged_in_time_is_dropped(make: Make) -> None:
    pair = make(max_budget=4 << 20, write_timeout_s=5.0)
    pair.ask()
    (stream,) = pair.host.begun
    pair.client._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
    pair.client._write_connection_limits = lambda **_: None  # type: ignore[method-assign]
    pair.answer(stream, bytes((1 << 20) + 5000))
    assert pair.budget.num_bytes > 0 and pair.session.num_requests == 1
    pair.pass_time(6.0)
    settled(pair)


def test_a_client_that_is_gone_is_told_at_once_and_its_application_cancelled_late(
    make: Make,
) -> None:
    pair = make(cancel_grace_s=3.0)
    for give_up in (pair.client.reset_stream, pair.client.stop_stream):
        response = pair.ask("POST", "/", b"part", ends=False)
        stream = pair.host.begun[-1]
        pair.answer(stream, b"begin", more=True)
        give_up(response.stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        pair.deliver()
        assert pair.session.receive(stream, pair.now) == {"type": "http.disconnect"}
        assert pair.session.num_running == 1, "the application still counts"
        assert pair.pass_time(2.0) == []
        assert pair.pass_time(2.0) == [stream]
        pair.session.returned(stream, pair.now)
        pair.deliver()
        settled(pair)


def test_the_end_of_the_connection_tells_all(make: Make) -> None:
    pair = make()
    pair.ask("POST", "/", b"part", ends=False)
    pair.ask()
    pair.session.lost()
    for stream in pair.host.begun:
        assert pair.session.receive(stream, pair.now) == {"type": "http.disconnect"}
        pair.session.send(stream, {"type": "http.response.start", "status": 200}, pair.now)
        pair.session.returned(stream, pair.now)
    assert pair.host.num_held == 0 and pair.budget.num_bytes == 0


def test_a_malformed_request_ends_its_stream_alone(make: Make) -> None:
    pair = make()
    other = pair.ask()
    response = pair.ask(headers=[(b"connection", b"close")])
    assert response.reset_code == ErrorCode.H3_MESSAGE_ERROR and response.sections == []
    assert len(pair.host.begun) == 1
    pair.answer(pair.host.begun[0], b"unharmed")
    assert other.body == b"unharmed" and pair.closed is None
    settled(pair)


@pytest.mark.parametrize("told", [2, 20])
def test_a_body_of_another_length_than_told_is_malformed(make: Make, told: int) -> None:
    pair = make()
    response = pair.ask("POST", "/", b"12345", [(b"content-length", b"%d" % told)])
    assert response.reset_code == ErrorCode.H3_MESSAGE_ERROR
    for stream in pair.host.begun:  # it may have begun before the end came
        pair.session.returned(stream, pair.now)
    pair.deliver()
    settled(pair)


def test_trailers_of_a_request_are_checked_and_left(make: Make) -> None:
    for trailers, code in (([(b"x", b"1")], None), ([(b":path", b"/")], 0x10E)):
        pair = make()
        response = pair.ask("POST", "/", b"body", ends=False)
        pair.h3.send_headers(response.stream_id, trailers, True)
        pair.deliver()
        (stream,) = pair.host.begun
        assert response.reset_code == code
        message = pair.session.receive(stream, pair.now)
        assert message is not None
        assert message["type"] == ("http.disconnect" if code else "http.request")
        if not code:
            assert message == {"type": "http.request", "body": b"body", "more_body": False}


def test_a_request_that_ends_before_its_headers_is_incomplete(make: Make) -> None:
    pair = make()
    assert pair.raw(b"", ends=True).reset_code == ErrorCode.H3_REQUEST_INCOMPLETE
    grease = encode_frame(0x21, b"ignored")
    assert pair.raw(grease, ends=True).reset_code == ErrorCode.H3_REQUEST_INCOMPLETE
    settled(pair)


def test_unknown_frames_and_streams_are_ignored(make: Make) -> None:
    pair = make()
    response = pair.open()
    pair.client.send_stream_data(response.stream_id, encode_frame(0x21, bytes(2000)))
    pair.h3.send_headers(response.stream_id, request_headers("POST", "/"))
    pair.client.send_stream_data(response.stream_id, encode_frame(0x40, b"x"))
    pair.h3.send_data(response.stream_id, b"body", True)
    pair.raw_control(encode_uint_var(0x21) + b"anything")
    pair.deliver()
    message = pair.session.receive(pair.host.begun[0], pair.now)
    assert message == {"type": "http.request", "body": b"body", "more_body": False}


FAULTS: dict[str, tuple[Callable[[Pair], Any], int]] = {
    "headers that are no QPACK": (
        lambda p: p.raw(encode_frame(FrameType.HEADERS, b"\xff" * 20)),
        ErrorCode.QPACK_DECOMPRESSION_FAILED,
    ),
    "headers by a table that is not there": (
        lambda p: p.raw(encode_frame(FrameType.HEADERS, b"\x02\x00\x80")),
        ErrorCode.QPACK_DECOMPRESSION_FAILED,
    ),
    "an insertion into a table that is not there": (
        lambda p: p.client.send_stream_data(6, b"\xc0\x01a"),
        ErrorCode.QPACK_ENCODER_STREAM_ERROR,
    ),
    "a table larger than allowed": (
        lambda p: p.client.send_stream_data(6, b"\x3f\xe1\x1f"),
        ErrorCode.QPACK_ENCODER_STREAM_ERROR,
    ),
    "an acknowledgement of nothing": (
        lambda p: p.client.send_stream_data(10, b"\x3f\xe1\x1f"),
        ErrorCode.QPACK_DECODER_STREAM_ERROR,
    ),
    "a push promise": (
        lambda p: p.raw(encode_frame(FrameType.PUSH_PROMISE, b"\x00\x00\x00")),
        ErrorCode.H3_FRAME_UNEXPECTED,
    ),
    "a push stream": (lambda p: p.raw_control(b"\x01\x00"), ErrorCode.H3_STREAM_CREATION_ERROR),
    "SETTINGS on a request stream": (
        lambda p: p.raw(encode_frame(FrameType.SETTINGS, b"")),
        ErrorCode.H3_FRAME_UNEXPECTED,
    ),
    "DATA before HEADERS": (
        lambda p: p.raw(encode_frame(FrameType.DATA, b"x")),
        ErrorCode.H3_FRAME_UNEXPECTED,
    ),
    "a frame of HTTP/2": (lambda p: p.raw(encode_frame(0x8, b"")), ErrorCode.H3_FRAME_UNEXPECTED),
    "a frame that is cut off": (
        lambda p: p.raw(encode_uint_var(FrameType.HEADERS) + b"\x10\x00", ends=True),
        ErrorCode.H3_FRAME_ERROR,
    ),
    "a stream of a session that can be none": (
        lambda p: p.raw(encode_uint_var(FrameType.WEBTRANSPORT_STREAM) + b"\x01"),
        ErrorCode.H3_ID_ERROR,
    ),
    "a stream that turns into one of a session": (
        lambda p: p.raw(
            encode_frame(0x21, b"") + encode_uint_var(FrameType.WEBTRANSPORT_STREAM) + b"\x00"
        ),
        ErrorCode.H3_FRAME_ERROR,
    ),
    "a second control stream": (
        lambda p: p.raw_control(b"\x00"),
        ErrorCode.H3_STREAM_CREATION_ERROR,
    ),
    "the end of the control stream": (
        lambda p: p.client.send_stream_data(2, b"", True),
        ErrorCode.H3_CLOSED_CRITICAL_STREAM,
    ),
    "a reset of the control stream": (
        lambda p: p.client.reset_stream(2, 0),
        ErrorCode.H3_CLOSED_CRITICAL_STREAM,
    ),
    "a stop of our control stream": (
        lambda p: p.client.stop_stream(3, 0),
        ErrorCode.H3_CLOSED_CRITICAL_STREAM,
    ),
    "a control frame of a gigabyte": (
        lambda p: p.client.send_stream_data(2, b"\x0d" + encode_uint_var(1 << 30) + bytes(5000)),
        ErrorCode.H3_EXCESSIVE_LOAD,
    ),
    "ignored bytes without end on a control stream": (
        lambda p: p.client.send_stream_data(2, encode_frame(0x21, bytes(70_000))),
        ErrorCode.H3_EXCESSIVE_LOAD,
    ),
    "ignored bytes without end on a request stream": (
        lambda p: p.raw(encode_frame(0x21, bytes(40_000))),
        ErrorCode.H3_EXCESSIVE_LOAD,
    ),
    "empty frames without end": (
        lambda p: p.raw(encode_frame(0x21, b"") * 1025),
        ErrorCode.H3_EXCESSIVE_LOAD,
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_broken_protocol_ends_the_connection(make: Make, case: str) -> None:
    pair = make()
    attack, code = FAULTS[case]
    attack(pair)
    pair.deliver()
    assert pair.fault is not None and pair.fault.code == code
    assert pair.closed is not None and pair.closed.error_code == code
    assert pair.host.begun == []


def test_a_body_in_tiny_frames_is_too_much(make: Make) -> None:
    pair = make()
    response = pair.ask("POST", "/", ends=False)
    pair.client.send_stream_data(response.stream_id, encode_frame(FrameType.DATA, b"x") * 20_000)
    pair.deliver()
    assert pair.fault is not None and pair.fault.code == ErrorCode.H3_EXCESSIVE_LOAD


def test_a_body_in_small_frames_is_none(make: Make) -> None:
    pair = make()
    response = pair.ask("POST", "/", ends=False)
    for size, num in ((1, 1000), (70, 3000)):
        frames = encode_frame(FrameType.DATA, bytes(size)) * num
        pair.client.send_stream_data(response.stream_id, frames)
        pair.deliver()
        assert pair.fault is None
        message = pair.session.receive(pair.host.begun[0], pair.now)
        assert message is not None and len(message["body"]) == size * num


FLOODS: dict[str, Callable[[Pair], Any]] = {
    "a long field": lambda p: p.ask(headers=[(b"x", b"y" * 3000)]),
    "many fields": lambda p: p.ask(headers=[(b"x", b"y")] * 30),
    "a static field for each byte": lambda p: p.raw(
        encode_frame(FrameType.HEADERS, b"\x00\x00" + b"\xd1" * 1900)
    ),
    "a frame longer than a section": lambda p: p.raw(
        encode_uint_var(FrameType.HEADERS) + encode_uint_var(1 << 40) + bytes(100)
    ),
}


@pytest.mark.parametrize("case", FLOODS)
def test_a_header_section_above_the_limit_is_refused(make: Make, case: str) -> None:
    pair = make(max_header_bytes=2000, max_headers=20)
    response = FLOODS[case](pair)
    assert response.status == 431 and response.body == b"" and response.ended.is_set()
    assert pair.host.begun == [] and pair.closed is None
    again = pair.ask()
    pair.answer(pair.host.begun[0], b"fine")
    assert again.body == b"fine"


def test_a_frame_that_is_not_whole_counts_in_the_budget(make: Make) -> None:
    pair = make(max_budget=40_000)
    partial = encode_uint_var(FrameType.HEADERS) + encode_uint_var(16_000) + bytes(12_000)
    first, second = pair.raw(partial), pair.raw(partial)
    assert 2 * 12_000 < pair.budget.num_bytes <= 40_000
    third = pair.raw(partial)
    assert third.reset_code == ErrorCode.H3_EXCESSIVE_LOAD
    assert first.reset_code is second.reset_code is None
    assert pair.budget.num_bytes <= 40_000


def test_bodies_and_responses_count_in_the_budget(make: Make) -> None:
    pair = make(max_budget=100_000)
    posted = pair.ask("POST", "/", bytes(200_000))
    assert posted.reset_code == ErrorCode.H3_EXCESSIVE_LOAD
    (stream,) = pair.host.begun
    assert pair.session.receive(stream, pair.now) == {"type": "http.disconnect"}
    pair.session.returned(stream, pair.now)
    response = pair.ask()
    pair.client._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
    pair.answer(pair.host.begun[1], bytes(200_000))
    assert response.reset_code == ErrorCode.H3_EXCESSIVE_LOAD
    settled(pair)


def test_headers_and_bodies_have_to_come_in_time(make: Make) -> None:
    pair = make(header_timeout_s=3.0, body_timeout_s=5.0)
    headers = pair.raw(encode_uint_var(FrameType.HEADERS) + b"\x40")
    body = pair.ask("POST", "/", b"1", ends=False)
    (stream,) = pair.host.begun
    assert pair.session.receive(stream, pair.now) is not None
    pair.pass_time(100.0)
    assert headers.status == 408
    assert body.sections == [], "it is the application that does not read"
    for number in range(5):
        assert pair.session.receive(stream, pair.now) is None
        pair.pass_time(1.2)
        if number < 4:
            pair.h3.send_data(body.stream_id, b"x", False)
            pair.deliver()
            assert pair.session.receive(stream, pair.now) is not None
    assert body.status == 408 and body.body.endswith(b": /\n"), "as the host words it"
    assert pair.session.receive(stream, pair.now) == {"type": "http.disconnect"}
    pair.session.returned(stream, pair.now)
    pair.deliver()
    settled(pair)


def test_requests_of_a_connection_are_bounded_until_their_application_is_done(make: Make) -> None:
    pair = make(max_requests_per_connection=3)
    first = [pair.ask() for _ in range(3)]
    full = pair.ask()
    assert full.status == 503 and full.headers[b"retry-after"] == b"1"
    assert full.body.endswith(b": /\n"), "as the host words it"
    head = pair.ask("HEAD")
    assert head.status == 503 and head.body == b""
    for response in first:  # their clients leave, their applications do not
        pair.client.stop_stream(response.stream_id, 0)
    pair.deliver()
    assert pair.ask().status == 503 and len(pair.host.begun) == 3
    pair.session.returned(pair.host.begun[0], pair.now)
    pair.ask()
    assert len(pair.host.begun) == 4


def test_an_edge_that_is_full_says_so(make: Make) -> None:
    pair = make()
    pair.host.has_room = False
    assert pair.ask().status == 503
    pair.host.max_streams = 0
    assert pair.ask().reset_code == ErrorCode.H3_REQUEST_REJECTED
    settled(pair)


def test_after_goaway_requests_under_way_end_and_new_ones_are_rejected(make: Make) -> None:
    pair = make()
    before = pair.ask()
    pair.session.drain()
    pair.session.drain()
    control = bytes(pair.quic._streams[3].sender._buffer)
    assert control.endswith(encode_frame(FrameType.GOAWAY, encode_uint_var(4)))
    assert control.count(encode_frame(FrameType.GOAWAY, encode_uint_var(4))) == 1
    after = pair.ask()
    assert after.reset_code == ErrorCode.H3_REQUEST_REJECTED
    pair.answer(pair.host.begun[0], b"served")
    assert before.body == b"served" and len(pair.host.begun) == 1
    settled(pair)


def test_resets_without_end_leave_nothing(make: Make) -> None:
    pair = make()
    for number in range(300):
        response = pair.open()
        if number % 3:
            section = request_headers("GET", "/")
            pair.h3.send_headers(response.stream_id, section, number % 3 == 2)
        pair.client.reset_stream(response.stream_id, 0)
        if number % 3 == 2:
            pair.client.stop_stream(response.stream_id, 0)
        pair.deliver()
        for stream in pair.host.begun:
            if stream.exchange is not None and stream.is_running:
                assert stream.exchange.phase is Phase.GONE
                pair.session.returned(stream, pair.now)
        pair.deliver()
        pair.now += 0.01
    assert pair.fault is None and pair.host.most_held <= 2
    settled(pair)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_of_a_request_stream_do_no_harm(
    identity: tuple[Path, Path], data: bytes, ends: bool
) -> None:
    pair = Pair(*identity)
    pair.raw(data, ends=ends)
    if pair.fault is None:
        response = pair.ask()
        pair.answer(pair.host.begun[-1], b"fine")
        assert response.body == b"fine"


@given(st.lists(st.tuples(st.sampled_from([2, 6, 10, 14]), st.binary(max_size=60)), max_size=4))
def test_any_bytes_of_control_streams_do_no_harm(
    identity: tuple[Path, Path], pieces: list[tuple[int, bytes]]
) -> None:
    pair = Pair(*identity)
    for stream_id, data in pieces:
        pair.client.send_stream_data(stream_id, data)
        pair.deliver()
    if pair.fault is None:
        response = pair.ask()
        pair.answer(pair.host.begun[-1], b"fine")
        assert response.body == b"fine"


def test_unidirectional_streams_are_few_at_a_time(make: Make) -> None:
    pair = make()
    for _ in range(20):
        pair.raw_control(encode_uint_var(0x21))
    ours = [it for it in pair.quic._streams if it % 4 == 2]
    assert len(ours) == 8, "three of HTTP/3 and five others; the rest wait"
    pair = make()
    for _ in range(20):
        stream_id = pair.raw_control(encode_uint_var(0x21))
        pair.client.send_stream_data(stream_id, b"", True)
        pair.deliver()
    assert pair.quic._local_max_streams_uni.used == 23, "those that have ended make room"


CLIENT = ("ask", "begin", "partial", "piece", "end", "reset", "stop")
APPLICATION = ("start", "body", "last", "read", "return", "abort", "late", "drain")
OPERATIONS = st.tuples(st.sampled_from([*CLIENT, *APPLICATION]), st.integers(0, 3))


class Play:
    """A client and applications that do anything at any time."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.open: list[Response] = []
        """On which the client may still send."""

    def client(self, what: str, which: int) -> None:
        # aioquic's client knows which streams are over.
        with contextlib.suppress(ValueError, RuntimeError, ProtocolError):
            self._client(what, which)
        self.pair.deliver()

    def _client(self, what: str, which: int) -> None:
        pair, quic = self.pair, self.pair.client
        if what == "ask":
            pair.ask()
        elif what == "begin":
            self.open.append(pair.ask("POST", "/", b"begin", ends=False))
        elif what == "partial":
            self.open.append(pair.raw(encode_uint_var(FrameType.HEADERS) + b"\x40\x80"))
        elif which < len(self.open):
            stream_id = self.open[which].stream_id
            if what == "piece":
                pair.h3.send_data(stream_id, bytes(3000), False)
            elif what == "end":
                pair.h3.send_data(stream_id, b"", True)
            elif what == "reset":
                quic.reset_stream(stream_id, 0)
            elif what == "stop":
                quic.stop_stream(stream_id, 0)

    def application(self, what: str, which: int) -> None:
        pair, session = self.pair, self.pair.session
        running = [it for it in pair.host.begun if it.is_running]
        if what == "late":
            for stream in pair.pass_time(20.0):
                session.returned(stream, pair.now)
        elif what == "drain":
            session.drain()
        elif which < len(running):
            stream = running[which]
            body = {"type": "http.response.body", "body": bytes(5000)}
            with contextlib.suppress(RuntimeError):
                if what == "start":
                    session.send(stream, {"type": "http.response.start", "status": 200}, pair.now)
                elif what == "body":
                    session.send(stream, {**body, "more_body": True}, pair.now)
                elif what == "last":
                    session.send(stream, body, pair.now)
                elif what == "read":
                    session.receive(stream, pair.now)
                elif what == "return":
                    session.returned(stream, pair.now)
                elif what == "abort":
                    session.abort(stream, pair.now)
        pair.deliver()


@given(st.lists(OPERATIONS, max_size=30))
def test_whatever_clients_and_applications_do_nothing_is_left(
    identity: tuple[Path, Path], operations: list[tuple[str, int]]
) -> None:
    pair = Pair(*identity, max_budget=60_000, max_requests_per_connection=4)
    play = Play(pair)
    for what, which in operations:
        play.client(what, which)
        play.application(what, which)
        held = sum(it.num_held_bytes for it in pair.session._streams.values())
        assert pair.budget.num_bytes == held <= 60_000
        assert pair.session.num_running <= 4
        assert pair.quic.num_unread_bytes == sum(pair.quic._unread.values())
    assert pair.fault is None
    for stream in pair.host.begun:
        if stream.is_running:
            pair.session.returned(stream, pair.now)
    for response in play.open:
        with contextlib.suppress(ValueError):
            pair.client.reset_stream(response.stream_id, 0)
    pair.deliver()
    pair.pass_time(100.0)
    settled(pair)
