"""A client of HTTP APIs that costs as little as one can: one connection, which is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final

from bench.harness.load import Answer
from outrider.children import ChildProcess

CHATS: Final = "/v1/chat/completions"
_LINE_LIMIT_BYTES: Final = 1 << 20
_START_LIMIT_S: Final = 180.0
_OK: Final = 200


class _ClosedBeforeError(OSError):
    """The connection was closed before a byte of the answer came."""


class AnsweredError(ValueError):
    """An answer that is no success."""

    def __init__(self, status: int, fields: Mapping[str, str], body: bytes) -> None:
        """`fields`: its headers, names and values in small letters."""
        super().__init__(f"answered {status}: {body[:150]!r}")
        self.status = status
        self.fields = fields


class HttpClient:
    """One connection. Use as an async context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        key: str = "",
        path: str = CHATS,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: how the server is verified; None: the connection is not encrypted."""
        self._address = (host, port)
        self._tls = tls
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
        )
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        writer = self._writer
        self.close()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def chat(self, body: dict[str, Any], into: Answer) -> str:
        """Send a request and read to the end; returns the reply's text. If the request fails,
        `into.error` says why."""
        text = ""
        try:
            async for event in self.events(body):
                if "error" in event:
                    raise ValueError(str(event["error"])[:200])
                if usage := event.get("usage"):
                    into.num_tokens = usage["completion_tokens"]
                parts = (it["delta"].get("content") or "" for it in event.get("choices", ()))
                if part := "".join(parts):
                    into.take(())
                    text += part
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            into.error = f"{type(error).__name__}: {error}"
            self.close()
        if not into.token_s and not into.error:
            into.error = "the reply had no text"
        return text

    async def events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Ask, and read the events of the stream. Raises OSError, EOFError and ValueError."""
        async for line in self.lines(json.dumps(body).encode()):
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])

    async def lines(
        self, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """Ask, with further headers, and read the lines of the answer as they come. Raises OSError,
        EOFError and ValueError; AnsweredError, one of these, where it is no success."""
        rest = b""
        async for part in self._parts(body, headers or {}):
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line

    async def whole(self, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        """Ask, with further headers; the answer's body. Raises as `lines`."""
        return b"".join([part async for part in self._parts(body, headers or {})])

    def close(self) -> None:
        """The next request has a new connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def abort(self) -> None:
        """Drop the connection at once, without waiting for a peer that may be gone."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _parts(self, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The answer's body as it comes. Some servers close a connection that they said they would
        keep, llama.cpp's among them; clients ask again over a new one (RFC 9112, section 9.3.1)."""
        is_kept = self._writer is not None and not self._writer.is_closing()
        try:
            head = await self._asked(body, headers)
        except _ClosedBeforeError:
            if not is_kept:
                raise
            self.close()
            head = await self._asked(body, headers)
        assert self._reader is not None
        first, *rest = head.decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in rest if ": " in line)
        parts = _body(self._reader, fields)
        status = int(first.split()[1])
        if status != _OK:
            raise AnsweredError(status, fields, b"".join([part async for part in parts]))
        async for part in parts:
            yield part
        if fields.get("connection") == "close":
            self.close()

    async def _asked(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The head of the answer, in small letters."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(
                *self._address, limit=_LINE_LIMIT_BYTES, ssl=self._tls
            )
        assert self._reader is not None
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{self._head}{more}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        try:
            return (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if getattr(error, "partial", b""):
                raise
            raise _ClosedBeforeError("the server closed the connection") from error


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncIterator[bytes]:
    if fields.get("transfer-encoding") == "chunked":
        async for part in _chunks(reader):
            yield part
    else:
        yield await reader.readexactly(int(fields.get("content-length", "0")))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """RFC 9112, section 7.1."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


async def until_serving(process: ChildProcess, port: int, path: str = "/health") -> None:
    """Return once a server answers 200 at this path. Raises RuntimeError if its process ends, and
    TimeoutError."""
    asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    async with asyncio.timeout(_START_LIMIT_S):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(asked)
                told = await reader.readline()
                writer.close()
                if b" 200 " in told:
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"it ended with exit status {process.returncode}")
