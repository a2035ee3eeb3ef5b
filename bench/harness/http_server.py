"""The part of an HTTP server (RFC 9112) that engines behind another project's router need: they
answer completions as events, and the router's questions about the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

MODEL: Final = "paced"
"""Model name in this server's answers."""
EVENTS_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_INFO: Final = {"model_path": MODEL, "is_generation": True}
_KNOWN: Final[Mapping[str, Any]] = {
    "/health": {},
    "/health_generate": {},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]},
    "/get_model_info": _INFO,
    "/model_info": _INFO,
    "/get_server_info": {"model_id": MODEL},
    "/server_info": {"model_id": MODEL},
    "/version": {"version": "0"},
}

Complete: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Answers a request with this body."""


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, complete: Complete
) -> None:
    """The requests of one connection, one after the other, until it ends; those to `path` are
    completed."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            line, *fields = head.decode("latin-1").split("\r\n")
            headers = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = line.split(" ")[1].split("?")[0]
            if asked == path:
                await complete(body, writer)
            else:
                _answer(asked, writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def chunk(data: bytes) -> bytes:
    """Section 7.1; the last one is empty."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(body: Mapping[str, Any]) -> bytes:
    """One of a stream of server-sent events, in a chunk of its own."""
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


def _answer(path: str, writer: asyncio.StreamWriter) -> None:
    status = "200 OK" if path in _KNOWN else "404 Not Found"
    data = json.dumps(_KNOWN.get(path, {})).encode()
    kind = "Content-Type: application/json"
    head = f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
