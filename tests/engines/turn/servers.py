"""Servers that answer as a test says, and engines before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from outrider.engines.turn.base import TurnEngineInfo
from outrider.engines.turn.openai_server.completions import VLLM_ABILITIES
from outrider.engines.turn.openai_server.engine import OpenAiServerEngine
from outrider.engines.turn.openai_server.http import HttpServer
from outrider.free_ports import free_tcp_port

INFO = TurnEngineInfo("openai-server", 0, 8, 512, VLLM_ABILITIES)


def engine_at(url: str, silence_timeout_s: float = 60.0) -> OpenAiServerEngine:
    """An engine that knows its server already."""
    return OpenAiServerEngine(
        HttpServer(url), INFO, "model", answer_timeout_s=60.0, silence_timeout_s=silence_timeout_s
    )


def nobody_there() -> OpenAiServerEngine:
    """Its server is gone."""
    return engine_at(f"http://127.0.0.1:{free_tcp_port()}")


@asynccontextmanager
async def answering(
    answers: Mapping[str, bytes], *, then_hangs: bool = False
) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that answers these paths with these bytes, others with 404, and the
    heads of the requests that it had. `then_hangs`: it leaves connections open."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            heads.append(head)
            path = head.split(" ", 2)[1]
            writer.write(answers.get(path, plain(b"", 404)))
            if then_hangs:
                await reader.read()
                while await reader.read(1 << 16):
                    pass
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


def plain(body: bytes, status: int = 200) -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def stream(*events: bytes, is_ended: bool = True) -> bytes:
    """A stream of events, in chunks."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"data: " + event + b"\n\n" for event in events]
    last = b"0\r\n\r\n" if is_ended else b""
    return head + b"".join(b"%x\r\n%b\r\n" % (len(it), it) for it in chunks) + last
