"""A fake server of an engine for other routers to relay: OpenAI-compatible chat completions as SSE.

    python -m bench.cost.backend PORT TICK_MS

At every tick each stream gets one event of one token, as a batch of an engine brings them.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.harness.http_server import EVENTS_HEAD, MODEL, event, serve


def token(text: str) -> bytes:
    """One, as vLLM's server writes it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return event(
        {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": [choice],
        }
    )


class Backend:
    """Streams that never end."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._streams: set[asyncio.StreamWriter] = set()
        self._token = token(" token")

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
                    writer.write(self._token)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer, "/v1/chat/completions", self._stream)
        finally:
            self._streams.discard(writer)

    async def _stream(self, _: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS_HEAD)
        self._streams.add(writer)


def main() -> None:
    port, tick_ms = int(sys.argv[1]), float(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Backend(tick_ms / 1e3).run(port))


if __name__ == "__main__":
    main()
