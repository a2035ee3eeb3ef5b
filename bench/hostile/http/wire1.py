"""HTTP/1.1 from an attacker's side: any bytes are sent, and answers are read as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from bench.hostile.http.sending import ANSWER_S, SOURCE, Answer, note
from bench.hostile.target import Findings, Target

_LIMIT_BYTES: Final = 1 << 20
_REFUSED: Final = (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError)
"""What ends a connection before an answer came."""


class Http1:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_ending = False
        """The last answer said that the edge closes."""

    async def send(self, data: bytes) -> None:
        """Raises OSError where the edge has closed."""
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, timeout_s: float = ANSWER_S) -> Answer:
        """The next answer; those that only say to go on (1xx) are left out. Raises EOFError if the
        connection was closed, TimeoutError, ValueError."""
        async with asyncio.timeout(timeout_s):
            while True:
                head = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
                status = int(head[0].split(b" ")[1])
                if status >= 200 or status == 101:
                    break
            fields = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
            self.is_ending = fields.get(b"connection") == b"close"
            return Answer(
                status, fields.get(b"x-request-id", b"").decode(), await self._body(fields)
            )

    async def _body(self, fields: dict[bytes, bytes]) -> bytes:
        if b"content-length" in fields:
            return await self._reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"transfer-encoding") != b"chunked":
            return b""
        pieces = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readuntil(b"\r\n")
        return b"".join(pieces)

    async def next_byte(self) -> bytes:
        """Empty once the edge has closed."""
        return await self._reader.read(1)

    def abort(self) -> None:
        """Close at once, without a word."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def http1(target: Target) -> AsyncIterator[Http1]:
    """A connection, which is aborted in the end. Raises OSError."""
    reader, writer = await asyncio.open_connection(
        target.host, target.http_port, limit=_LIMIT_BYTES, local_addr=(SOURCE, 0)
    )
    try:
        yield Http1(reader, writer)
    finally:
        writer.transport.abort()


async def exchange(target: Target, data: bytes, findings: Findings) -> list[Answer]:
    """Send these bytes on a connection of their own, and read one answer to them."""
    return await exchanges(target, data, findings, last_id="")


async def exchanges(
    target: Target, data: bytes, findings: Findings, *, last_id: str, timeout_s: float = ANSWER_S
) -> list[Answer]:
    """Send these bytes on a connection of their own, and read answers up to that to the request
    `last_id` ("": one), the end of the connection, or of the time."""
    answers: list[Answer] = []
    try:
        async with asyncio.timeout(timeout_s), http1(target) as connection:
            sending = asyncio.create_task(connection.send(data))
            try:
                while not answers or (last_id and answers[-1].request_id != last_id):
                    answers.append(await connection.answer(timeout_s))
                    note(findings, answers[-1])
            finally:
                sending.cancel()
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await sending
    except TimeoutError:
        findings.count("unanswered, connection open" if not answers else "connection left open")
    except _REFUSED:
        findings.count("closed without an answer" if not answers else "closed after the answer")
    return answers


def head(line: str, *fields: bytes) -> bytes:
    """A head with these fields, ended."""
    return b"\r\n".join((line.encode("latin-1"), b"Host: edge", *fields, b"", b""))


def post(path: str, body: bytes, *fields: bytes) -> bytes:
    """A request with a body of JSON."""
    return (
        head(
            f"POST {path} HTTP/1.1",
            *(b"Content-Type: application/json", b"Content-Length: %d" % len(body), *fields),
        )
        + body
    )


class Asker:
    """Sends well-framed requests, one after the other, over a connection that is kept."""

    def __init__(self, target: Target, findings: Findings) -> None:
        self._target = target
        self._findings = findings
        self._stack = contextlib.AsyncExitStack()
        self._connection: Http1 | None = None

    async def ask(self, data: bytes, timeout_s: float = ANSWER_S) -> Answer | None:
        """The answer, which is noted; None: there was none."""
        try:
            if self._connection is None:
                self._connection = await self._stack.enter_async_context(http1(self._target))
            connection = self._connection
            async with asyncio.timeout(timeout_s):
                sending = asyncio.create_task(connection.send(data))
                try:
                    answer = await connection.answer(timeout_s)
                    is_over = connection.is_ending or not sending.done()
                finally:
                    sending.cancel()
                    with contextlib.suppress(OSError, asyncio.CancelledError):
                        await sending
        except TimeoutError:
            self._findings.count("unanswered, connection open")
            await self.close()
            return None
        except _REFUSED:
            self._findings.count("closed without an answer")
            await self.close()
            return None
        if is_over:
            await self.close()
        note(self._findings, answer)
        return answer

    async def close(self) -> None:
        """The next request goes over another connection."""
        await self._stack.aclose()
        self._connection = None
