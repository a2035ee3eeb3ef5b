"""A client of HTTP APIs that costs as little as one can: one connection, which is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final

from bench.harness.load import Answer
from outrider.children import ChildProcess

CHATS: Final = "/v1/chat/completions"
_LINE_LIMIT_BYTES: Final = 1 << 20
_START_LIMIT_S: Final = 180.0


class _ClosedBeforeError(OSError):
    """The connection was closed before a byte of the answer came."""


class HttpClient:
    """One connection. Use as an async context manager."""

    def __init__(self, host: str, port: int, key: str = "", path: str = CHATS) -> None:
        self._address = (host, port)
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

    async def lines(self, body: bytes) -> AsyncIterator[bytes]:
        """Ask, and read the lines of the answer as they come. Raises OSError, EOFError and
        ValueError."""
        rest = b""
        async for part in self._parts(body):
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line

    async def whole(self, body: bytes) -> bytes:
        """Ask; the answer's body. Raises OSError, EOFError and ValueError."""
        return b"".join([part async for part in self._parts(body)])

    def close(self) -> None:
        """The next request has a new connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _parts(self, body: bytes) -> AsyncIterator[bytes]:
        """The answer's body as it comes. Some servers close a connection that they said they would
        keep, llama.cpp's among them; clients ask again over a new one (RFC 9112, section 9.3.1)."""
        is_kept = self._writer is not None and not self._writer.is_closing()
        try:
            head = await self._asked(body)
        except _ClosedBeforeError:
            if not is_kept:
                raise
            self.close()
            head = await self._asked(body)
        reader = self._reader
        assert reader is not None
        status, _, fields = head.partition(b"\r\n")
        names = dict(field.split(b": ", 1) for field in fields.split(b"\r\n") if b": " in field)
        if names.get(b"transfer-encoding") == b"chunked":
            if b" 200 " not in status:
                raise ValueError(f"answered {status.decode(errors='replace')}")
            async for part in _chunks(reader):
                yield part
        else:
            data = await reader.readexactly(int(names.get(b"content-length", b"0")))
            if b" 200 " not in status:
                raise ValueError(f"answered {status.decode(errors='replace')}: {data[:150]!r}")
            yield data
        if names.get(b"connection") == b"close":
            self.close()

    async def _asked(self, body: bytes) -> bytes:
        """The head of the answer, in small letters."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(
                *self._address, limit=_LINE_LIMIT_BYTES
            )
        assert self._reader is not None
        self._writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            return (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if getattr(error, "partial", b""):
                raise
            raise _ClosedBeforeError("the server closed the connection") from error


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
