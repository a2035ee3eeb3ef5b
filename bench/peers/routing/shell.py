"""An OpenAI-compatible completions API in front of replicas, for routers that speak nothing else.

    python -m bench.peers.routing.shell PORT=ADDRESS...

Letters of the prompt are token ids, and a chunk is sent for every commit.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

from bench.harness.region_client import RegionClient, opening_frame
from bench.harness.replica import coder_of
from bench.peers.routing.workload import MODEL, as_ids
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2

_INFO: Final = {"model_path": MODEL, "is_generation": True}
_KNOWN: Final[dict[str, Any]] = {
    "/health": {},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]},
    "/get_model_info": _INFO,
    "/model_info": _INFO,
    "/get_server_info": {"model_id": MODEL},
    "/server_info": {"model_id": MODEL},
}


class Shell:
    """In front of one replica."""

    def __init__(self, client: RegionClient) -> None:
        vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
        self._coder, self._digest = coder_of(vocabulary), vocabulary.digest
        self._client = client

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after the other (RFC 9112)."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode("latin-1").split("\r\n")
                headers = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = line.split(" ")[1].split("?")[0]
                if path == "/v1/completions":
                    await self._complete(json.loads(body), writer)
                else:
                    _answer(path, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _complete(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
        sampling = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True)
        opening = opening_frame(self._coder, as_ids(request["prompt"]), sampling, self._digest)
        opening.speculation = common_pb2.SPECULATION_OFF
        async with self._client.open(opening) as talk:
            while not (frame := await talk.receive()).HasField("done"):
                if frame.HasField("commit"):
                    _event(writer, "A" * (frame.commit.upto - frame.commit.base))
        usage = frame.done.usage
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        _event(writer, "", finish_reason="length", usage=counts)
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _answer(path: str, writer: asyncio.StreamWriter) -> None:
    status = "200 OK" if path in _KNOWN else "404 Not Found"
    data = json.dumps(_KNOWN.get(path, {})).encode()
    kind = "Content-Type: application/json"
    head = f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


def _event(writer: asyncio.StreamWriter, text: str, finish_reason: str = "", **more: Any) -> None:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason or None}
    event = {"object": "text_completion", "model": MODEL, "choices": [choice], **more}
    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _serve(port: int, address: str) -> None:
    coder = coder_of(load_vocabulary(DEFAULT_MODEL, ModelStore(default_root())))
    async with RegionClient(coder, address, via_router=False) as client:
        server = await asyncio.start_server(Shell(client).connected, "127.0.0.1", port)
        async with server:
            await server.serve_forever()


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        for word in sys.argv[1:]:
            port, _, address = word.partition("=")
            group.create_task(_serve(int(port), address))
        print("{}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
