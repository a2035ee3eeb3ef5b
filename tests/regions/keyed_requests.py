"""Requests over HTTP with an idempotency key, which any edge of the site may be asked."""

from __future__ import annotations

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from bench.chaos.load import Request, body_of, read_stream
from bench.faults.chats import ReferenceChat
from bench.harness.http_client import HttpClient
from bench.regions.mesh import RegionalMesh
from outrider.tls import Role

_POLL_S: Final = 0.02


class KeyedRequest:
    """One request, however often it is sent to whichever edge."""

    def __init__(self, mesh: RegionalMesh, reference: ReferenceChat) -> None:
        self.reference = reference
        key = {"idempotency-key": str(uuid.uuid4())}
        self._mesh = mesh
        self._tls = ssl.create_default_context(cafile=str(mesh.ca))
        self._request = Request(mesh.http_addresses, key)

    @property
    def text(self) -> str:
        """What came of its stream."""
        return self._request.text

    @contextmanager
    def _client(self, edge: int) -> Iterator[HttpClient]:
        host, port = self._mesh.http_addresses[edge]
        client = HttpClient(host, port, self._mesh.key, tls=self._tls)
        try:
            yield client
        finally:
            client.abort()  # nothing is awaited of an edge that is gone

    async def whole(self, edge: int) -> str:
        """The whole reply. Raises AnsweredError."""
        with self._client(edge) as client:
            body = json.dumps(body_of(self.reference)).encode()
            answer: dict[str, Any] = json.loads(await client.whole(body, self._request.headers))
        text: str = answer["choices"][0]["message"]["content"]
        return text

    async def read(self, edge: int) -> None:
        """Read its stream to the end, behind what came before. Raises as read_stream does."""
        with self._client(edge) as client:
            await read_stream(client, self.reference, self._request)

    @asynccontextmanager
    async def reading(self, edge: int, num_chars: int) -> AsyncIterator[asyncio.Task[None]]:
        """Its stream is read in the block, which begins once there are so many characters; who is
        still reading at its end, leaves."""
        reading = asyncio.create_task(self.read(edge))
        try:
            await self.until(num_chars, reading)
            yield reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def until(self, num_chars: int, reading: asyncio.Task[None]) -> None:
        """Return once so many characters came. Raises the error that ends the stream."""
        while len(self.text) < num_chars:
            if reading.done():
                reading.result()
                raise AssertionError(f"the stream ended after {self.text!r}")
            await asyncio.sleep(_POLL_S)

    def check(self) -> None:
        """Its stream is the reference's, and nothing came twice."""
        assert self.text == self.reference.text


class Computed:
    """What all replicas have computed since this was made."""

    def __init__(self, mesh: RegionalMesh) -> None:
        self._mesh = mesh
        self._before: dict[str, float] = {}

    async def begin(self) -> None:
        """Count from now on."""
        self._before = await self._counts()

    async def since(self) -> tuple[int, int]:
        """Replies that were begun with their first token, and tokens behind the first of each
        session."""
        now = await self._counts()
        begun, further = (int(now[name] - self._before[name]) for name in _COUNTED)
        return begun, further

    async def _counts(self) -> dict[str, float]:
        replicas = [it for it in self._mesh.made.services if it.role == Role.INFERENCE]
        pages = await asyncio.gather(*(it.samples() for it in replicas))
        return {
            name: sum(sample.value for page in pages for sample in page if sample.name == name)
            for name in _COUNTED
        }


_COUNTED: Final = ("outrider_ttft_seconds_count", "outrider_token_latency_seconds_count")
