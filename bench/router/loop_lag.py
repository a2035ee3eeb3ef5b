"""Event loop lag of a router while prompts of 100,000 tokens arrive.

The router runs in the measuring process, whose event loop is watched. What stands on both sides of
it is another process (`python -m bench.router.loop_lag`): a replica that answers every session with
one token, and an edge that sends the prompts. That process prints the replica's address, reads the
router's, sends, and prints how many sessions were answered.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from outrider.children import start_piped
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.process import Ports
from outrider.rpc import add_health, bind, make_channel, make_server
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc, router_pb2, router_pb2_grpc
from outrider.wire import token_block_to_proto
from services.router.app import serve
from services.router.config import ReplicaConfig, RouterConfig

_STEP_S = 0.001


async def measure(per_s: float, count: int) -> tuple[list[float], int]:
    """Milliseconds by which wake-ups a millisecond apart came late, and sessions answered."""
    arguments = (sys.executable, "-m", "bench.router.loop_lag", str(per_s), str(count))
    far_side = await start_piped(arguments)
    address = (await far_side.stdout.readline()).decode().strip()
    replicas = (ReplicaConfig("far-side", "local", address, "m"),)
    config = RouterConfig(
        port=0, replicas=replicas, default_model="m", log_level="error", drain_s=0.0
    )
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(config, ready=ports.set_result, stop=stop))
    try:
        far_side.stdin.write(f"127.0.0.1:{(await ports).main}\n".encode())
        answered = asyncio.create_task(far_side.stdout.readline())
        late_ms = await _late_ms(answered)
        return late_ms, int(await answered)
    finally:
        stop.set()
        await serving
        await far_side.finish()


async def _late_ms(until: asyncio.Task[bytes]) -> list[float]:
    late = []
    while not until.done():
        began = time.perf_counter()
        await asyncio.sleep(_STEP_S)
        late.append((time.perf_counter() - began - _STEP_S) * 1e3)
    return late


DIGEST = b"\x01" * 32
PROMPT_TOKENS = 100_000
_VOCABULARY = 49_152
_CODER = TokenCoder(DIGEST, _VOCABULARY)
Context = grpc.aio.ServicerContext[Any, Any]


class Replica(inference_pb2_grpc.InferenceServiceServicer):
    """Answers every session with one token."""

    async def Generate(
        self, request_iterator: AsyncIterator[inference_pb2.GenerateRequest], context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async for request in request_iterator:
            for opened in request.frames:
                if opened.WhichOneof("kind") != "open":
                    continue
                for frame in (
                    inference_pb2.SessionDown(opened=inference_pb2.SessionOpened()),
                    inference_pb2.SessionDown(commit=inference_pb2.Commit(id=1, upto=1)),
                    inference_pb2.SessionDown(done=inference_pb2.SessionDone(upto=1)),
                ):
                    frame.session = opened.session
                    yield inference_pb2.GenerateResponse(frames=[frame])

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        while True:
            yield inference_pb2.WatchLoadResponse(fixed_ms=1.0, row_ms=0.0001, max_sessions=4096)
            await asyncio.sleep(0.2)

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        part = inference_pb2.KvSnapshot(first=True, last=True)
        yield inference_pb2.WatchKvResponse(log=1, sequence=1, snapshot=part)
        await asyncio.Event().wait()

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Context
    ) -> inference_pb2.DrainResponse:
        return inference_pb2.DrainResponse()

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        return inference_pb2.GetModelResponse(
            model="m",
            vocabulary_digest=DIGEST,
            codecs=[common_pb2.TOKEN_CODEC_VARINT],
            replica="far-side",
            block_tokens=16,
        )


async def send(address: str, per_s: float, count: int) -> int:
    """Sessions of 100,000 tokens at a steady rate; returns how many were answered."""
    chooser = random.Random(1)
    opens = [_opening(chooser) for _ in range(8)]
    async with make_channel(address, max_message_bytes=4 << 20) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        call = stub.Route()
        reading = asyncio.create_task(_read(call, count))
        for number in range(1, count + 1):
            frame = inference_pb2.SessionUp(session=number, open=opens[number % len(opens)])
            frame.open.cache_salt = number.to_bytes(4, "little")  # nobody has it yet
            await call.write(router_pb2.RouteRequest(frames=[frame]))
            await asyncio.sleep(1.0 / per_s)
        return await reading


async def _read(call: Any, count: int) -> int:
    num_done = num_over = 0
    while num_over < count:
        response = await call.read()
        for frame in response.frames:
            kind = frame.WhichOneof("kind")
            num_done += kind == "done"
            num_over += kind in ("done", "error")
            if kind == "error":
                print(frame.error.message, file=sys.stderr)
    return num_done


def _opening(chooser: random.Random) -> inference_pb2.OpenSession:
    ids = chooser.choices(range(_VOCABULARY), k=PROMPT_TOKENS)
    block = token_block_to_proto(_CODER.encode(ids, TokenCodec.VARINT))
    return inference_pb2.OpenSession(
        model="m", vocabulary_digest=DIGEST, ids=inference_pb2.PromptDelta(tail=block)
    )


async def main() -> None:
    per_s, count = float(sys.argv[1]), int(sys.argv[2])
    server = make_server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Replica(), server)
    health = add_health(server)
    port = bind(server, "127.0.0.1", 0)
    health.set_serving(True)
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    address = (await asyncio.to_thread(sys.stdin.readline)).strip()
    print(await send(address, per_s, count), flush=True)
    await server.stop(grace=None)


if __name__ == "__main__":
    asyncio.run(main())
