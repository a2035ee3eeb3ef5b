"""HTTP clients for the tests: the official one, a plain one, and one that sends what it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from httpx2 import AsyncClient
from openai import AsyncOpenAI

from outrider.models.vocabulary import Vocabulary
from services.edge.access.config import AccessConfig
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.running import REPLY, Running, running

KEY = text_of("acme")
USER = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"model": "small", "messages": [USER]}


TENANTS = (TenantConfig("acme"), TenantConfig("bolt"))


@asynccontextmanager
async def serving_http(
    words: Vocabulary, folder: Path, reply: str = REPLY, **config: Any
) -> AsyncIterator[Running]:
    """A mesh whose edge serves HTTP, for two tenants and for clients without a key."""
    http = config.pop("http", HttpConfig(port=0))
    known = {"tenants": TENANTS, "keys": (key_of("acme"), key_of("bolt"))}
    config = known | {"access": AccessConfig(http_anonymous=True)} | config
    async with running(words, folder, reply, http=http, **config) as mesh:
        try:
            yield mesh
        finally:
            while _OPEN:
                await _OPEN.pop().closed()


def url(mesh: Running) -> str:
    """Where its HTTP is."""
    scheme = "https" if mesh.edge._config.http.is_encrypted else "http"
    return f"{scheme}://127.0.0.1:{mesh.ports.http}"


@asynccontextmanager
async def official(mesh: Running, key: str = KEY) -> AsyncIterator[AsyncOpenAI]:
    """The official client, which tries nothing twice."""
    async with AsyncOpenAI(base_url=f"{url(mesh)}/v1", api_key=key, max_retries=0) as client:
        yield client


@asynccontextmanager
async def plain(mesh: Running, key: str = KEY, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client that does as it is told."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with AsyncClient(base_url=url(mesh), headers=headers, timeout=30, **options) as client:
        yield client


class RawRequest:
    """One request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connected(cls, mesh: Running, source: str = "127.0.0.1") -> RawRequest:
        """From this address. Nothing is sent yet."""
        own = (source, 0)
        made = cls(*await asyncio.open_connection("127.0.0.1", mesh.ports.http, local_addr=own))
        _OPEN.append(made)
        return made

    @classmethod
    async def post(
        cls,
        mesh: Running,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] = {},
        key: str = KEY,
    ) -> RawRequest:
        """A body was sent, with the key."""
        made = await cls.connected(mesh)
        data = json.dumps(body).encode()
        made.send(
            f"POST {path} HTTP/1.1",
            {
                "Host": "localhost",
                "Authorization": f"Bearer {key}",
                "Content-Type": "application/json",
                "Content-Length": str(len(data)),
                **headers,
            },
            data,
        )
        return made

    @classmethod
    async def chat(cls, mesh: Running, key: str = KEY, **options: Any) -> RawRequest:
        """A chat was asked for. `headers` among the options are sent too."""
        headers = options.pop("headers", {})
        return await cls.post(mesh, "/v1/chat/completions", CHAT | options, headers, key)

    def send(self, line: str, headers: dict[str, str], body: bytes = b"") -> None:
        """A head, and what follows it."""
        head = "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items())])
        self.writer.write(head.encode("latin-1") + b"\r\n\r\n" + body)

    async def until(self, text: bytes) -> bytes:
        """What comes up to this text."""
        return await asyncio.wait_for(self.reader.readuntil(text), 30)

    async def rest(self) -> bytes:
        """All that comes until the connection is closed."""
        return await asyncio.wait_for(self.reader.read(), 30)

    async def some(self) -> bytes:
        """What comes next; empty if the connection is closed."""
        return await asyncio.wait_for(self.reader.read(1 << 16), 30)

    def close(self) -> None:
        """At once, without a word."""
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Return when it is."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


_OPEN: list[RawRequest] = []
"""Closed with the mesh."""
