"""Targets of a load test: an edge over the native protocol, or an endpoint of the OpenAI chat
API."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from outrider.cli.bench.report import Reply
from outrider.cli.edge_choice import ChosenEdge
from outrider.errors import InvalidRequestError, UnavailableError

_MAX_LINE_BYTES: Final = 1 << 20
_MAX_HEADERS: Final = 200
_DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How every request asks."""

    model: str = ""
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0


class RequestFailedError(Exception):
    """A request has no reply, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Target(Protocol):
    """Something that answers prompts."""

    async def ask(self, prompt: str, reply: Reply, clock: Callable[[], float]) -> None:
        """Fill in what comes. Raises OutriderError and RequestFailedError for a request that
        fails."""


@asynccontextmanager
async def edge_target(chosen: ChosenEdge, asked: RequestSettings) -> AsyncIterator[Target]:
    """Over QUIC, all requests on one connection. Raises UnavailableError."""
    from outrider.client import connect

    where = chosen.address
    async with connect(
        where.host,
        where.port,
        ca=where.ca,
        insecure=where.insecure,
        key=chosen.caller.key,
        user=chosen.caller.user,
    ) as client:
        yield _Edge(client, asked)


class _Edge:
    def __init__(self, client: Any, asked: RequestSettings) -> None:
        from outrider.client import SamplingParams

        self._client = client
        self._asked = asked
        self._sampling = SamplingParams(
            temperature=asked.temperature, seed=asked.seed, max_tokens=asked.max_tokens
        )

    async def ask(self, prompt: str, reply: Reply, clock: Callable[[], float]) -> None:
        from outrider.client import Committed, Message, Provisional

        messages = [Message("user", prompt)]
        async with self._client.chat(
            messages, sampling=self._sampling, model=self._asked.model
        ) as chat:
            async for event in chat:
                if isinstance(event, Provisional | Committed) and event.text:
                    reply.shown_s = clock() if reply.shown_s is None else reply.shown_s
                if isinstance(event, Committed):
                    reply.num_tokens += len(event.ids)
                    if event.text:
                        reply.text_s.append(clock())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the OpenAI chat API: /chat/completions below a URL such as
    http://127.0.0.1:8080/v1."""

    host: str
    port: int
    is_tls: bool
    path: str
    key: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises InvalidRequestError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise InvalidRequestError(f"--url takes http://HOST:PORT/v1, not {url!r}")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/") + "/chat/completions"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, path)


@asynccontextmanager
async def endpoint_target(endpoint: Endpoint, asked: RequestSettings) -> AsyncIterator[Target]:
    """Over HTTP. Raises UnavailableError where nothing listens."""
    target = _OpenAi(endpoint, asked)
    await target.check()
    yield target


class _OpenAi:
    """One connection per request: none waits for another, and none finds a closed one."""

    def __init__(self, endpoint: Endpoint, asked: RequestSettings) -> None:
        self._endpoint = endpoint
        self._asked = asked
        self._tls = ssl.create_default_context() if endpoint.is_tls else None

    async def check(self) -> None:
        """Raises UnavailableError where nothing listens."""
        _, writer = await self._connected()
        writer.close()

    async def ask(self, prompt: str, reply: Reply, clock: Callable[[], float]) -> None:
        """Stream one reply."""
        reader, writer = await self._connected()
        try:
            writer.write(self._request(prompt))
            await _read_reply(reader, reply, clock)
        except (OSError, EOFError) as error:
            raise RequestFailedError("CONNECTION_BROKE") from error
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise RequestFailedError("MALFORMED_ANSWER") from error
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        it = self._endpoint
        try:
            return await asyncio.open_connection(
                it.host, it.port, ssl=self._tls, limit=_MAX_LINE_BYTES
            )
        except OSError as error:
            raise UnavailableError(
                f"nothing answers at {it.host}:{it.port} ({error.strerror or error}); check --url"
            ) from error

    def _request(self, prompt: str) -> bytes:
        it, asked = self._endpoint, self._asked
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "seed": asked.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if asked.model:
            body["model"] = asked.model
        payload = json.dumps(body).encode()
        head = [
            f"POST {it.path} HTTP/1.1",
            f"Host: {it.host}:{it.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
            "Connection: close",
        ]
        if it.key:
            head.append(f"Authorization: Bearer {it.key}")
        return "\r\n".join([*head, "", ""]).encode() + payload


async def _read_reply(
    reader: asyncio.StreamReader, reply: Reply, clock: Callable[[], float]
) -> None:
    status, is_chunked = await _read_head(reader)
    if status != 200:
        raise RequestFailedError(f"HTTP_{status}")
    lines = _chunked_lines(reader) if is_chunked else _plain_lines(reader)
    async for line in lines:
        data = line[5:].strip().decode() if line.startswith(b"data:") else ""
        if data == _DONE:
            break
        if data:
            _take(json.loads(data), reply, clock())
    # Where nobody counts the tokens, a piece of text stands for one.
    reply.num_tokens = reply.num_tokens or len(reply.text_s)


def _take(chunk: dict[str, Any], reply: Reply, now: float) -> None:
    if chunk.get("error"):
        raise RequestFailedError("ERROR_IN_STREAM")
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning")):
            reply.text_s.append(now)
    if usage := chunk.get("usage"):
        reply.num_tokens = int(usage.get("completion_tokens", 0))


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the body is chunked (RFC 9112)."""
    line = await reader.readline()
    if not line:
        raise EOFError
    status = int(line.split()[1])
    is_chunked = False
    for _ in range(_MAX_HEADERS):
        line = (await reader.readline()).strip().lower()
        if not line:
            return status, is_chunked
        is_chunked |= line.startswith(b"transfer-encoding:") and b"chunked" in line
    raise RequestFailedError("TOO_MANY_HEADERS")


async def _plain_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while line := await reader.readline():
        yield line


async def _chunked_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a chunked body; a line may begin in one chunk and end in another."""
    rest = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, rest = rest.split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise RequestFailedError("LINE_TOO_LONG")
        for line in whole:
            yield line
    if rest:
        yield rest
