"""llama.cpp's server, asked over its own HTTP API with server-sent events.

Every slot has room for the longest request here. The host-memory prompt cache is off: no prompt
comes twice, and filling it would only cost time; a slot still reuses the prefix it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.processes import child
from bench.peers.llamacpp import SERVER, VERSION
from bench.systems.base import Answer, Request, Setup, System, Work, WorkResult, ask_all
from outrider.testing import free_tcp_port

_START_TIMEOUT_S = 120.0
_SLOTS = 32
_SLOT_TOKENS = 2048
_MAX_PART_TOKENS = 512
"""Of a batch, computed at once: the server's own default."""


class LlamaServer:
    """A running `llama-server`."""

    def __init__(self, port: int, settings: Mapping[str, object]) -> None:
        self.settings = settings
        self.port = port

    async def run(self, work: Work) -> WorkResult:
        """Raises RuntimeError when the server refuses a request."""

        async def ask(request: Request, begin: float) -> Answer:
            asked_s = time.perf_counter() - begin
            ids: list[int] = []
            times: list[float] = []
            async for event in stream(self.port, _body(work, request)):
                if event.get("tokens"):
                    ids += event["tokens"]
                    times.append(time.perf_counter() - begin)
            return Answer(tuple(ids), asked_s, tuple(times))

        return await ask_all(work, ask)


def _body(work: Work, request: Request) -> dict[str, Any]:
    """Sampling by temperature alone, as the others do."""
    return {
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "temperature": work.temperature,
        "samplers": ["temperature"],
        "seed": request.seed,
        "ignore_eos": work.ignore_eos,
        "return_tokens": True,
        "stream": True,
    }


async def stream(port: int, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The events of one completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        data = json.dumps(body).encode()
        writer.write(
            b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        )
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        if b" 200 " not in head:
            raise RuntimeError(f"llama-server answered {head!r}: {(await reader.read())[:500]!r}")
        async for line in _lines(reader):
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked body (RFC 9112, section 7.1)."""
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line


@contextlib.asynccontextmanager
async def llama_server(
    model: Path, setup: Setup, *, speculation: str = "none"
) -> AsyncIterator[System]:
    """Start the server on this GGUF and wait until it has loaded it. Its own default is a batch of
    2,048 tokens in parts of 512. `speculation` is its `--spec-type`, whose settings are its own
    defaults."""
    port = free_tcp_port()
    flags = {
        "--model": model,
        "--port": port,
        "--threads": setup.threads,
        "--threads-batch": setup.threads,
        "--batch-size": setup.chunk_tokens,
        "--ubatch-size": min(setup.chunk_tokens, _MAX_PART_TOKENS),
        "--parallel": _SLOTS,
        "--ctx-size": _SLOTS * _SLOT_TOKENS,
        "--cache-ram": 0,
        "--spec-type": speculation,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    async with child(str(SERVER), *words, silent=True) as process:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not await _healthy(port):
                if process.returncode is not None:
                    raise RuntimeError(f"llama-server ended with status {process.returncode}")
                await asyncio.sleep(0.1)
        told = {name.strip("-"): value for name, value in flags.items() if name != "--port"}
        yield LlamaServer(port, {**told, "model": model.name, "version": VERSION})


async def _healthy(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    try:
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
