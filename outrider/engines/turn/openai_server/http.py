"""A client of one HTTP/1.1 server: a connection per request, closed to abort it.

h11 (RFC 9112) reads and writes the messages; this adds sockets and limits.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import h11

from outrider.engines.turn.base import NOT_GIVEN
from outrider.errors import ConfigError, EngineError, ReplicaLostError

_READ_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 20
"""Longest line of a stream that is read; a token with the log probabilities of 20 others has 2
KB."""
MAX_BODY_BYTES: Final = 4 << 20
"""Longest other answer that is read: a server's metrics have some 100 KB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request."""

    status: int
    body: AsyncIterator[bytes]

    async def whole(self) -> bytes:
        """The body. Raises EngineError if it is too long, and what reading it raises."""
        data = b""
        async for piece in self.body:
            data += piece
            if len(data) > MAX_BODY_BYTES:
                raise EngineError(f"the server's answer has more than {MAX_BODY_BYTES} bytes")
        return data

    async def lines(self) -> AsyncIterator[bytes]:
        """The body's lines, without their ends. Raises EngineError if one is too long, and what
        reading it raises."""
        rest = b""
        async for piece in self.body:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
            if len(rest) > MAX_LINE_BYTES:
                raise EngineError(f"the server's stream has a line of {len(rest)} bytes")


class HttpServer:
    """One server's address."""

    def __init__(
        self, url: str, *, key: str = "", ca: Path | None = None, connect_timeout_s: float = 5.0
    ) -> None:
        """`url` with a path puts that before every path asked for. Blocks to read `ca`. Raises
        ConfigError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"server.url has no valid port: {error}") from error
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise ConfigError("server.url names no server; write http://host:port")
        is_https = parts.scheme == "https"
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        """For people, without a password."""
        self._host = parts.hostname
        self._port = port or (443 if is_https else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._key = key
        self._connect_timeout_s = connect_timeout_s
        self._tls: ssl.SSLContext | None = None
        if is_https:
            try:
                self._tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"server.ca {ca} cannot be read: {error}") from error

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: object = None, *, silence_s: float | None = None
    ) -> AsyncIterator[Answer]:
        """Ask; the connection is closed at the end, whether the answer was read or not. `silence_s`
        bounds the time between two pieces of the answer's body, not that to its first.

        Raises ReplicaLostError if the server cannot be reached, ends the connection early, or falls
        silent.
        """
        reader, writer = await self._connect()
        try:
            connection = h11.Connection(h11.CLIENT)
            data = b"" if body is None else json.dumps(body).encode()
            headers = [
                ("host", f"{self._host}:{self._port}"),
                ("accept", "*/*"),
                ("connection", "close"),
                *([("authorization", f"Bearer {self._key}")] if self._key else []),
                *([("content-type", "application/json")] if data else []),
                ("content-length", str(len(data))),
            ]
            start = h11.Request(method=method, target=self._prefix + path, headers=headers)
            sent = [connection.send(start), data and connection.send(h11.Data(data=data))]
            writer.write(b"".join(it for it in (*sent, connection.send(h11.EndOfMessage())) if it))
            stream = _Stream(reader, connection, self.name, silence_s)
            yield Answer(await stream.status(), stream.body())
        except (OSError, h11.ProtocolError) as error:
            raise self._lost(str(error) or type(error).__name__) from error
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, limit=MAX_LINE_BYTES
                )
        except (OSError, TimeoutError) as error:
            lost = self._lost(f"no connection: {error or 'timed out'}")
            lost.metadata[NOT_GIVEN] = "1"
            raise lost from error

    def _lost(self, why: str) -> ReplicaLostError:
        return ReplicaLostError(
            f"the server {self.name} is lost ({why[:200]}); open the session on another replica"
        )


class _Stream:
    """Reads one answer."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        connection: h11.Connection,
        name: str,
        silence_s: float | None,
    ) -> None:
        self._reader = reader
        self._connection = connection
        self._name = name
        self._silence_s = silence_s

    async def status(self) -> int:
        """Of the answer's head."""
        while True:
            event = await self._next(None)
            if isinstance(event, h11.Response):
                return event.status_code
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("it closed the connection without an answer")

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's body."""
        is_silence_bounded = False
        while True:
            event = await self._next(self._silence_s if is_silence_bounded else None)
            if isinstance(event, h11.Data):
                is_silence_bounded = True
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return

    async def _next(self, limit_s: float | None) -> Any:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            try:
                async with asyncio.timeout(limit_s):
                    data = await self._reader.read(_READ_BYTES)
            except TimeoutError as error:
                raise ConnectionResetError(f"nothing came for {limit_s:.0f} s") from error
            self._connection.receive_data(data)
        return event
