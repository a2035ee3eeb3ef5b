"""Servers of OpenAI's `/v1/embeddings`, ours among them, asked over connections that are kept."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.embeddings.load import Vectors


class HttpSystem:
    """One server. Vectors are asked for in base64, as OpenAI's own client does."""

    def __init__(
        self,
        port: int,
        path: str,
        model: str,
        settings: Mapping[str, Any],
        *,
        key: str = "",
    ) -> None:
        self.settings = settings
        self._port = port
        self._model = model
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
        ).encode()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises RuntimeError for an answer that is none, OSError."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        data = json.dumps(body).encode()
        status, answer = await self._asked(data)
        if status != 200:
            raise RuntimeError(f"status {status}: {answer[:150]!r}")
        rows = sorted(json.loads(answer)["data"], key=lambda row: int(row["index"]))
        vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows]
        return np.stack(vectors)

    async def close(self) -> None:
        """End all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _asked(self, data: bytes) -> tuple[int, bytes]:
        """Over a connection that is idle; over a new one if the server has closed that (RFC 9112,
        section 9.3.1)."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._exchanged(connection, data)
            except (OSError, asyncio.IncompleteReadError):
                connection[1].close()
        return await self._exchanged(await asyncio.open_connection("127.0.0.1", self._port), data)

    async def _exchanged(
        self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes
    ) -> tuple[int, bytes]:
        reader, writer = connection
        writer.write(self._head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        if fields.get("transfer-encoding", "").lower() == "chunked":
            answer = await _chunks(reader)
        else:
            answer = await reader.readexactly(int(fields["content-length"]))
        if fields.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append(connection)
        return int(head[0].split()[1]), answer


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """RFC 9112, section 7.1."""
    found = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return bytes(found)
