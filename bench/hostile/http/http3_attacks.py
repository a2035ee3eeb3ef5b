"""Attacks over HTTP/3: garbage in frames, settings and QPACK, frames where they are forbidden,
requests that are reset, never end, or would be two in HTTP/1.1."""

from __future__ import annotations

import json
import random
from typing import Final

from aioquic.h3.connection import FrameType

from bench.hostile.http.sending import Ration, key_of
from bench.hostile.http.wire3 import (
    DECODER_STREAM,
    ENCODER_STREAM,
    OTHER_STREAM,
    Http3,
    frame,
    on_connections,
    pseudo,
    section,
    settings,
)
from bench.hostile.quic_client import reset_frame, stop_frame, stream_frame, varint
from bench.hostile.target import Findings, Target

_STREAMS: Final = 40
"""Requests of one connection: fewer than the edge allows to be open."""
_GONE_S: Final = 1.0
_QPACK_ENCODER: Final = b"\x02"
_QPACK_DECODER: Final = b"\x03"


async def rapid_resets(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests of chats that a key allows, each reset in the packet that begins it."""
    key = (b"authorization", b"Bearer " + key_of(target).encode())
    kind = (b"content-type", b"application/json")
    begun = section(*pseudo(b"POST", b"/v1/chat/completions"), key, kind)
    chat = {"messages": [{"role": "user", "content": "Go on for ever."}], "max_tokens": 400}
    begun += frame(FrameType.DATA, json.dumps(chat).encode())

    async def use(connection: Http3, numbers: list[int]) -> None:
        for at, number in enumerate(numbers):
            stream_id = 4 * at
            whole = stream_frame(stream_id, 0, begun, fin=bool(number % 2))
            ends = (stop_frame(stream_id), reset_frame(stream_id, len(begun)))
            await connection.send((whole, *ends))
        await connection.until(lambda: False, 0.1)

    await on_connections(target, ration, findings, _STREAMS, use)


async def qpack_garbage(target: Target, ration: Ration, findings: Findings) -> None:
    """Header sections and QPACK instructions of random bytes, references to tables that are empty,
    integers and strings without an end."""
    chance = random.Random(30)
    bad = (
        b"\x00\x00\xbf", b"\x00\x00\x10", b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x00\x00\x27\xff\xff\xff\xff\x0fx", b"\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
        b"\x00\x00\x2f\xff\xff\xff", b"", b"\x00", b"\x00\x00" + b"\xd1" * 9000,
        b"\x00\x00" + b"\x51\x00" * 3000,
    )  # fmt: skip
    instructions = (
        b"\x3f\xff\xff\xff\xff\x0f", b"\xc0\x05value", b"\x00" * 40, b"\x80\x00",
        b"\x4f\xff\xff\xff\xff", b"\x3f\xe1\x1f" + b"\x43abc\x05value" * 50,
    )  # fmt: skip
    answers = (b"\x80", b"\xff" * 20, b"\x00", b"\x40", b"\x3f\xff\xff\xff\x0f")

    async def use(connection: Http3, numbers: list[int]) -> None:
        streams = []
        for number in numbers:
            kind = number % 4
            if kind == 0:
                payload = chance.randbytes(chance.randrange(1, 300))
            else:
                payload = bad[number // 4 % len(bad)]
            if kind == 2:
                told = _QPACK_ENCODER + instructions[number // 4 % len(instructions)]
                connection.put_stream(ENCODER_STREAM, told)
            elif kind == 3:
                told = _QPACK_DECODER + answers[number // 4 % len(answers)]
                connection.put_stream(DECODER_STREAM, told)
            streams.append(connection.begin_request(frame(FrameType.HEADERS, payload)))
        await connection.until_over(streams, _GONE_S)

    await on_connections(target, ration, findings, 2, use)


async def blocked_streams(target: Target, ration: Ration, findings: Findings) -> None:
    """Header sections that wait for entries of QPACK's dynamic table, which never come."""

    async def use(connection: Http3, numbers: list[int]) -> None:
        connection.put_stream(ENCODER_STREAM, _QPACK_ENCODER)
        streams = [
            # Required Insert Count 1 + number, a base, and the newest entry of the table.
            connection.begin_request(frame(FrameType.HEADERS, bytes((2 + number % 60, 0, 0x80))))
            for number in numbers
        ]
        await connection.until_over(streams, _GONE_S)

    await on_connections(target, ration, findings, 5, use)


async def damaged_frames(target: Target, ration: Ration, findings: Findings) -> None:
    """Request streams of random bytes, of lengths that lie, of variable-length integers that are
    longer than they need to be or stop midway."""
    chance = random.Random(31)
    get = section(*pseudo())
    cases = (
        b"\xff", b"\xc0\x00\x00", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff", b"\x01\x40",
        b"\xc0\x00\x00\x00\x00\x00\x00\x01" + get[1:], b"\x40\x01" + get[1:], get[:-3], b"",
        get + b"\x00\x05xx", get + b"\x00\xff\xff\xff\xff\xff\xff\xff\xffx", get + get,
        get + b"\x40", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00" + get, bytes(500),
    )  # fmt: skip

    async def use(connection: Http3, numbers: list[int]) -> None:
        streams = []
        for number in numbers:
            is_random = number % 2
            data = chance.randbytes(chance.randrange(1, 800)) if is_random else b""
            data = data or cases[number // 2 % len(cases)]
            streams.append(connection.begin_request(data, end=number % 3 != 0))
        await connection.until_over(streams, 0.5)

    await on_connections(target, ration, findings, 2, use)


async def forbidden_frames(target: Target, ration: Ration, findings: Findings) -> None:
    """Frames that a request stream must not have, in every order: SETTINGS, GOAWAY, pushes, push
    ids, those of HTTP/2, DATA before HEADERS, WebTransport; and thousands that are to be
    ignored."""
    get = section(*pseudo())
    cases = (
        settings((6, 1)), frame(FrameType.GOAWAY, b"\x00"), frame(FrameType.CANCEL_PUSH, b"\x00"),
        frame(FrameType.MAX_PUSH_ID, b"\x05"), frame(FrameType.PUSH_PROMISE, b"\x00" + get),
        frame(FrameType.DATA, b"x"), frame(0x2, b"x"), frame(0x6, bytes(8)), frame(0x8, b"x"),
        frame(0x9, b"x"), frame(0x41, b"x"), frame(0x21, b"x" * 20_000), frame(0x21) * 3000,
        get + frame(FrameType.DATA) * 3000, get + section((b":path", b"/other")),
        get + section((b"x", b"y")) + frame(FrameType.DATA, b"x"), frame(0xF0700, b"x" * 20),
        get + settings(), get + frame(FrameType.PUSH_PROMISE, b"\x00" + get),
    )  # fmt: skip

    async def use(connection: Http3, numbers: list[int]) -> None:
        data = cases[numbers[0] % len(cases)]
        await connection.until_over([connection.begin_request(data)], _GONE_S)

    await on_connections(target, ration, findings, 1, use)


async def control_streams(target: Target, ration: Ration, findings: Findings) -> None:
    """Control streams gone wrong: huge SETTINGS, settings twice or forbidden, no SETTINGS at first,
    two control streams, push ids that shrink, a control stream that ends, push streams, streams of
    unknown types that go on for ever."""
    hello = b"\x00" + settings()
    controls = (
        b"\x00" + frame(FrameType.SETTINGS, random.Random(32).randbytes(3000)),
        b"\x00\x04\xff\xff\xff\xff\xff",
        b"\x00" + settings(*((1000 + key, key) for key in range(900))),
        b"\x00" + settings((1, 4096), (1, 4096)), b"\x00" + settings((2, 1)),
        b"\x00" + settings((1, 1 << 60), (7, 1 << 60)), b"\x00" + settings((6, 0)),
        b"\x00" + frame(FrameType.GOAWAY, b"\x00"), hello + settings(),
        hello + frame(FrameType.DATA, b"x"), hello + frame(FrameType.HEADERS, b"x"),
        hello + frame(FrameType.MAX_PUSH_ID, b"\x08") + frame(FrameType.MAX_PUSH_ID, b"\x01"),
        hello + frame(FrameType.CANCEL_PUSH, b"\x3f"), hello + frame(FrameType.GOAWAY, b"\x01"),
        hello + frame(0x21, b"x" * 60_000), hello + frame(0x21) * 20_000, b"\x01x", b"\x40",
        b"\x54\x00x" * 10, b"\x21" + bytes(60_000), b"\x00\x40\x04\x00", b"\x02" + b"\x00" * 100,
        hello + frame(0x0F0700, b"\x00u=1,i") * 2000, b"\x00" + frame(0x2, b"x"),
    )  # fmt: skip

    async def use(connection: Http3, numbers: list[int]) -> None:
        number = numbers[0]
        case = controls[number % len(controls)]
        connection.control(case)
        if number % 3 == 1:
            connection.put_stream(OTHER_STREAM, hello)
        elif number % 3 == 2:
            connection.put_stream(ENCODER_STREAM, _QPACK_ENCODER, end=True)
        stream_id = connection.begin_request(section(*pseudo()))
        await connection.until_over([stream_id], 0.5)

    await on_connections(target, ration, findings, 1, use, greeting=b"")


async def header_floods(target: Target, ration: Ration, findings: Findings) -> None:
    """Header sections of thousands of fields, of many kilobytes, and ones that are small on the
    wire alone."""
    cases = (
        section(*pseudo(), *(((b"x", b"y"),) * 3000)),
        section(*pseudo(), (b"x", b"y" * 60_000)),
        section(*pseudo(path=b"/" + b"x" * 40_000)),
        section(*pseudo(), *(((b"cookie", b"z" * 100),) * 500)),
        frame(FrameType.HEADERS, b"\x00\x00" + b"\xd1" * 16_000),
        section(*pseudo()) + section(*(((b"x", b"y"),) * 500)),
    )

    async def use(connection: Http3, numbers: list[int]) -> None:
        streams = [connection.begin_request(cases[it % len(cases)]) for it in numbers]
        await connection.until_over(streams, 3.0)

    await on_connections(target, ration, findings, 10, use)


async def ambiguous_fields(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests that become two where HTTP/3 is translated to HTTP/1.1: line ends, lengths and
    codings in fields, names in upper case, pseudo header fields twice, late or missing."""
    get, post = pseudo(), pseudo(b"POST", b"/tokenize")
    body = frame(FrameType.DATA, b"GET /hidden HTTP/1.1\r\n\r\n")
    cases = (
        section(*get, (b"x", b"y\r\nHost: other")), section(*get, (b"x\r\ny", b"z")),
        section(*get, (b"x", b"y\x00z")), section(*get, (b"X", b"y")), section(*get, (b"", b"y")),
        section(*get, (b"x", b" y ")), section(*post, (b"transfer-encoding", b"chunked")) + body,
        section(*post, (b"connection", b"close")) + body,
        section(*post, (b"content-length", b"0")) + body,
        section(*post, (b"content-length", b"5"), (b"content-length", b"6")) + body,
        section(*post, (b"content-length", b"+5")) + body,
        section(*post, (b"content-length", b"9" * 30)) + body,
        section(*post, (b"content-length", b"99")) + body,
        section(*get, (b":path", b"/other")), section((b"x", b"y"), *get), section(*get[:3]),
        section(*pseudo(path=b"")), section(*pseudo(path=b"hidden")), section(*pseudo(path=b"*")),
        section(*pseudo(path=b"/a b HTTP/1.1\r\nx: y")), section(*pseudo(path=b"/\xff\x00")),
        section(*pseudo(b"GET / HTTP/1.1\r\nx:")), section(*pseudo(b"")),
        section(*pseudo(b"CONNECT")), section((b":method", b"CONNECT"), (b":authority", b"e:1")),
        section(*pseudo(b"CONNECT"), (b":protocol", b"webtransport")),
        section(*get, (b":status", b"200")), section(*get, (b"host", b"other")),
        section(*get, (b"te", b"gzip")), section(*get, (b"upgrade", b"h2c")),
        section(*pseudo(b"OPTIONS", b"*")), section(*pseudo(b"HEAD", b"/openapi.json")),
        section(*pseudo(path=b"/%00%0d%0a")), section(*pseudo(path=b"/../../etc/passwd")),
    )  # fmt: skip

    async def use(connection: Http3, numbers: list[int]) -> None:
        streams = [connection.begin_request(cases[it % len(cases)]) for it in numbers]
        await connection.until_over(streams, _GONE_S)

    await on_connections(target, ration, findings, 10, use)


async def slow_bodies(target: Target, ration: Ration, findings: Findings) -> None:
    """Bodies of chats that a key allows, and header sections, that begin and never end."""
    key = (b"authorization", b"Bearer " + key_of(target).encode())
    kind = (b"content-type", b"application/json")
    begun = section(*pseudo(b"POST", b"/v1/chat/completions"), key, kind)

    async def use(connection: Http3, numbers: list[int]) -> None:
        streams = []
        for number in numbers:
            data = begun + frame(FrameType.DATA, b"{") if number % 2 else b"\x01" + varint(500)
            streams.append(connection.begin_request(data, end=False))
        await connection.until_over(streams, 8.0)

    await on_connections(target, ration, findings, _STREAMS, use)
