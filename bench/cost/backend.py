"""A fake server of an engine for other routers to relay: OpenAI-compatible chat completions as SSE.

    python -m bench.cost.backend PORT TICK_MS

At every tick each stream gets one event of one token, as a batch of an engine brings them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

import uvloop

MODEL: Final = "paced"
_INFO: Final = {"model_path": MODEL, "is_generation": True}
_KNOWN: Final[dict[str, Any]] = {
    "/health": {},
    "/health_generate": {},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]},
    "/get_model_info": _INFO,
    "/model_info": _INFO,
    "/get_server_info": {"model_id": MODEL},
    "/server_info": {"model_id": MODEL},
    "/version": {"version": "0"},
}
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def event(text: str) -> bytes:
    """One token, as vLLM's server writes it; a chunk of its own."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    body = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [choice],
    }
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


class Backend:
    """Streams that never end."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._streams: set[asyncio.StreamWriter] = set()
        self._event = event(" token")

    async def run(self, port: int) -> None:
        """Until it is cancelled."""
        async with await asyncio.start_server(self._connected, "127.0.0.1", port):
            print("{}", flush=True)
            loop = asyncio.get_running_loop()
            at = loop.time()
            while True:
                at += self._tick_s
                await asyncio.sleep(max(0.0, at - loop.time()))
                for writer in self._streams:
                    writer.write(self._event)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode("latin-1").split("\r\n")
                headers = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
                await reader.readexactly(int(headers.get("content-length", 0)))
                path = line.split(" ")[1].split("?")[0]
                if path == "/v1/chat/completions":
                    writer.write(_HEAD)
                    self._streams.add(writer)
                else:
                    self._answer(path, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._streams.discard(writer)
            writer.close()

    def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        status = "200 OK" if path in _KNOWN else "404 Not Found"
        data = json.dumps(_KNOWN.get(path, {})).encode()
        kind = "Content-Type: application/json"
        head = f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


def main() -> None:
    port, tick_ms = int(sys.argv[1]), float(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Backend(tick_ms / 1e3).run(port))


if __name__ == "__main__":
    main()
