"""A client of `/v1/chat/completions` that costs as little as one can, with one connection for each
stream, which is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

_LINE_LIMIT_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Stream:
    """One reply, as it came. Times in seconds on time.perf_counter."""

    asked_at: float
    text_at: list[float] = field(default_factory=list)
    """Of events that had text."""
    text: str = ""
    num_tokens: int = 0
    error: str = ""

    @property
    def ttft_ms(self) -> float:
        return (self.text_at[0] - self.asked_at) * 1000

    @property
    def gaps_ms(self) -> list[float]:
        """Between events that had text: inter-token latency as the reader sees it."""
        pairs = zip(self.text_at, self.text_at[1:], strict=False)
        return [(after - before) * 1000 for before, after in pairs]


class _ClosedBeforeError(OSError):
    """The connection was closed before a byte of the answer came."""


class HttpClient:
    """One connection."""

    def __init__(self, host: str, port: int, key: str = "") -> None:
        self._address = (host, port)
        self._head = f"Host: {host}:{port}\r\nContent-Type: application/json\r\n" + (
            f"Authorization: Bearer {key}\r\n" if key else ""
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
        self._close()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def chat(self, body: dict[str, Any]) -> Stream:
        """Ask, and read to the end. An answer that is none is told in `error`."""
        is_kept = await self._open()
        done = Stream(time.perf_counter())
        data = json.dumps(body).encode()
        try:
            try:
                await self._ask(data, done)
            except _ClosedBeforeError:
                # Some servers close a connection that they said they would keep, llama.cpp's among
                # them; clients ask again over a new one (RFC 9112, section 9.3.1).
                if not is_kept:
                    raise
                self._close()
                await self._open()
                await self._ask(data, done)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            done.error = f"{type(error).__name__}: {error}"
            self._close()
        if not done.text_at and not done.error:
            done.error = "the reply had no text"
        return done

    async def lines(self, body: bytes) -> AsyncIterator[bytes]:
        """Ask, and read the lines of the answer as they come. Raises OSError, EOFError and
        ValueError."""
        await self._open()
        async for line in self._lines(body):
            yield line

    async def _ask(self, data: bytes, done: Stream) -> None:
        async for line in self._lines(data):
            if line.startswith(b"data: {"):
                _take(json.loads(line[len(b"data: ") :]), done)

    async def _open(self) -> bool:
        """Whether there is a connection that was used before; else there is a new one."""
        is_kept = self._writer is not None and not self._writer.is_closing()
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(
                *self._address, limit=_LINE_LIMIT_BYTES
            )
        return is_kept

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _lines(self, body: bytes) -> AsyncIterator[bytes]:
        """The lines of the answer, whose body is chunked (RFC 9112, section 7.1). Raises ValueError
        for another one."""
        reader, writer = self._reader, self._writer
        assert reader is not None and writer is not None
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if getattr(error, "partial", b""):
                raise
            raise _ClosedBeforeError("the server closed the connection") from error
        status, _, _ = answer.partition(b"\r\n")
        if b" 200 " not in status:
            raise ValueError(f"answered {status.decode(errors='replace')}")
        if b"transfer-encoding: chunked" not in answer:
            raise ValueError("the answer is not a stream")
        rest = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            rest += (await reader.readexactly(size + 2))[:-2]
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield line
        await reader.readuntil(b"\r\n")
        if b"connection: close" in answer:
            self._close()


def _take(event: dict[str, Any], into: Stream) -> None:
    """Raises ValueError for an event that tells of an error."""
    if "error" in event:
        raise ValueError(str(event["error"])[:200])
    if usage := event.get("usage"):
        into.num_tokens = usage["completion_tokens"]
    text = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
    if text:
        into.text_at.append(time.perf_counter())
        into.text += text
