"""Attacks over HTTP/1.1: heads that are too many, too long or too slow, and replies that nobody
reads."""

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
REFUSED: Final = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)
"""What ends a connection before an answer came."""
_HELD_S: Final = 4.0
"""Longer than the edge of this bench waits for a head."""


def head(line: str, *fields: bytes) -> bytes:
    """A head with these fields, ended."""
    return b"\r\n".join((line.encode("latin-1"), b"Host: localhost", *fields, b"", b""))


def post(path: str, body: bytes, target: Target) -> bytes:
    """A request with a body of JSON, and the attacker's own key."""
    key = b"Authorization: Bearer " + target.key.encode()
    length = b"Content-Length: %d" % len(body)
    kind = b"Content-Type: application/json"
    return head(f"POST {path} HTTP/1.1", kind, length, key) + body


@contextlib.asynccontextmanager
async def connection(
    target: Target, source: str = SOURCE
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One to the HTTP door from this address, aborted in the end. Raises OSError."""
    reader, writer = await asyncio.open_connection(
        target.host, target.http_port, limit=_LIMIT_BYTES, local_addr=(source, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(
    target: Target, data: bytes, findings: Findings, timeout_s: float, source: str = SOURCE
) -> None:
    """Send these bytes on a connection of their own, and note the answer, or that there is none."""
    try:
        async with asyncio.timeout(timeout_s), connection(target, source) as (reader, writer):
            writer.write(data)
            await answer(reader, findings)
    except TimeoutError:
        findings.count("unanswered, connection open")
    except REFUSED:
        findings.count("closed without an answer")


async def answer(reader: asyncio.StreamReader, findings: Findings) -> int:
    """Note the next answer, and return its status. Those that only say to go on (1xx) are left
    out."""
    status = 0
    while status < 200 and status != 101:
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
    fields = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
    body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
    findings.answered(status, body)
    return status


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
    data = post(CHAT, json.dumps(asked).encode(), target)

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
        await ask(target, cases[number % len(cases)], findings, timeout_s)

    await crowd(seconds, send, num_senders)
