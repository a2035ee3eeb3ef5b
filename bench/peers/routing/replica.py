"""A replica with the service's own scheduler, KV pool and streams, and a fake engine whose
calls take time; with an OpenAI-compatible completions API in front of it for other routers.

    python -m bench.peers.routing.replica HTTP_PORT FIXED_MS ROW_MS

Its other settings are the inference service's, from the environment. HTTP_PORT is that of the
OpenAI-compatible shell; a call of the engine takes FIXED_MS + ROW_MS x rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from bench.harness.region_client import RegionClient, opening_frame
from bench.peers.routing.workload import as_ids
from outrider.codec.tokens import TokenCoder
from outrider.config import load
from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply, ReplyEnd
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.v1 import common_pb2
from services.inference.app import LoadedModel, Replica
from services.inference.config import InferenceConfig

MODEL = "paced"
DIGEST = b"the vocabulary of the paced one."
VOCABULARY_SIZE = 64
BLOCK_TOKENS = 32
NUM_BLOCKS = 640
"""Of a replica whose settings say nothing: thirty shared beginnings beside sixteen sessions."""


class PacedEngine(FakeEngine):
    """The fake engine; a call takes as long as it says."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        begin = time.monotonic()
        rows = super().step(slices, overlapped_work)
        time.sleep(max(0.0, begin + self.step_ms / 1e3 - time.monotonic()))
        return rows


def coder() -> TokenCoder:
    """Of the ids that this model speaks."""
    return TokenCoder(DIGEST, VOCABULARY_SIZE, None)


def _model(fixed_ms: float, row_ms: float, num_blocks: int) -> LoadedModel:
    options = FakeOptions(
        vocabulary_size=VOCABULARY_SIZE,
        block_tokens=BLOCK_TOKENS,
        num_blocks=num_blocks,
        min_rows=2,
        fixed_ms=fixed_ms,
        row_ms=row_ms,
    )

    def new_reply(params: SamplingParams) -> Reply:
        return ReplyEnd(params, ())

    engine = PacedEngine(options)
    identity = engine.info.fingerprint
    return LoadedModel(MODEL, engine, coder(), DIGEST, new_reply, identity)


async def _serve(config: InferenceConfig, http_port: int, model: LoadedModel) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    configure_logging("inference", config.log_level)
    replica = Replica(config, model, Metrics("inference"))
    await replica.start()
    try:
        async with Shell(http_port, f"127.0.0.1:{config.port}", coder(), DIGEST, MODEL):
            print("{}", flush=True)
            await stop.wait()
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(replica.stop(), 5.0)


def main() -> int:
    http_port, fixed_ms, row_ms = (float(word) for word in sys.argv[1:4])
    config = load(InferenceConfig, "inference")
    model = _model(fixed_ms, row_ms, config.num_blocks or NUM_BLOCKS)
    asyncio.run(_serve(config, int(http_port), model))
    return 0


_MODEL_INFO = {"model_path": "paced", "is_generation": True}


class Shell:
    """Listens while the context lasts. Letters of the prompt are token ids, and a chunk is sent
    for every commit."""

    def __init__(
        self, port: int, address: str, coder: TokenCoder, digest: bytes, model: str
    ) -> None:
        self._port = port
        self._coder = coder
        self._digest = digest
        self._model = model
        self._client = RegionClient(coder, address, via_router=False)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Shell:
        await self._client.__aenter__()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._client.__aexit__(kind, error, trace)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                    self._answer(path, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        known: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": self._model, "object": "model"}]},
            "/get_model_info": _MODEL_INFO,
            "/model_info": _MODEL_INFO,
            "/get_server_info": {"model_id": self._model},
            "/server_info": {"model_id": self._model},
        }
        status = "200 OK" if path in known else "404 Not Found"
        data = json.dumps(known.get(path, {})).encode()
        kind = "Content-Type: application/json"
        head = f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    async def _complete(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        sampling = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True)
        opening = opening_frame(self._coder, as_ids(request["prompt"]), sampling, self._digest)
        opening.speculation = common_pb2.SPECULATION_OFF
        async with self._client.open(opening) as talk:
            while True:
                frame = await talk.receive()
                if frame.HasField("done"):
                    break
                if frame.HasField("commit"):
                    num_tokens = frame.commit.upto - frame.commit.base
                    _event(writer, self._choice(text="A" * num_tokens))
        _event(writer, self._choice(text="", finish_reason="length") | _usage(frame.done.usage))
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def _choice(self, **fields: str) -> dict[str, Any]:
        choice = {"index": 0, **fields}
        return {"object": "text_completion", "model": self._model, "choices": [choice]}


def _usage(usage: common_pb2.Usage) -> dict[str, Any]:
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    return {"usage": counts}


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


if __name__ == "__main__":
    sys.exit(main())
