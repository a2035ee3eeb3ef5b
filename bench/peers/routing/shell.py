"""An OpenAI-compatible completions API in front of replicas, for routers that speak nothing else.

    python -m bench.peers.routing.shell PORT=ADDRESS...

Letters of the prompt are token ids, and a chunk is sent for every commit.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench.harness.http_server import EVENTS_HEAD, MODEL, chunk, event, serve
from bench.harness.region_client import RegionClient, opening_frame
from bench.harness.replica import coder_of
from bench.peers.routing.workload import as_ids
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2


class Shell:
    """In front of one replica."""

    def __init__(self, client: RegionClient) -> None:
        vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
        self._coder, self._digest = coder_of(vocabulary), vocabulary.digest
        self._client = client

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        await serve(reader, writer, "/v1/completions", self._complete)

    async def _complete(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        request: dict[str, Any] = json.loads(body)
        writer.write(EVENTS_HEAD)
        sampling = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True)
        opening = opening_frame(self._coder, as_ids(request["prompt"]), sampling, self._digest)
        opening.speculation = common_pb2.SPECULATION_OFF
        async with self._client.open(opening) as talk:
            while not (frame := await talk.receive()).HasField("done"):
                if frame.HasField("commit"):
                    writer.write(_event("A" * (frame.commit.upto - frame.commit.base)))
        usage = frame.done.usage
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        writer.write(_event("", finish_reason="length", usage=counts))
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


def _event(text: str, finish_reason: str = "", **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason or None}
    return event({"object": "text_completion", "model": MODEL, "choices": [choice], **more})


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
