"""The tokenizer service under long prompts, each process by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from bench.tokenizer.loop_lag import INTERVAL_S, LONG_BYTES, OUTSTANDING
from bench.tokenizer.texts import text_of
from bench.tokenizer.watched_process import Serve
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.app import serve
from services.tokenizer.config import TokenizerConfig


def serving(backend: str) -> Serve:
    """A tokenizer service as it is started in production."""

    async def run(ready: Callable[[Ports], None], stop: asyncio.Event) -> None:
        config = TokenizerConfig(port=0, backend=backend, log_level="critical")
        await serve(config, ready=ready, stop=stop)

    return run


async def long_prompts(pipe: Connection, port: int) -> None:
    """Keeps some prompts of 100,000 tokens on their way; tells how many tokens came of each."""
    longs = [text_of(LONG_BYTES, seed) for seed in range(8)]
    async with make_channel(f"127.0.0.1:{port}") as channel:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        call = stub.Encode()
        number = 0
        while True:
            text = longs[number % len(longs)]
            await call.write(tokenizer_pb2.EncodeRequest(number=number, text=text))
            number += 1
            if number >= OUTSTANDING:
                answer = await call.read()
                assert isinstance(answer, tokenizer_pb2.EncodeResponse) and answer.ids.count
                pipe.send(answer.ids.count)


async def short_chats(pipe: Connection, port: int, seconds: float) -> None:
    """A chat of 20 tokens every 10 ms; tells the milliseconds of each at the end."""
    took_ms: list[float] = []
    async with make_channel(f"127.0.0.1:{port}") as channel:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        call = stub.Encode()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await asyncio.sleep(INTERVAL_S)
            begun_at = time.perf_counter()
            await call.write(_chat(begun_at))
            await call.read()
            took_ms.append((time.perf_counter() - begun_at) * 1e3)
    pipe.send(took_ms)


def _chat(unique: float) -> tokenizer_pb2.EncodeRequest:
    ask = f"{unique}: what should I pack for a week in Lisbon in May?"
    message = common_pb2.ChatMessage(role="user", content=ask)
    return tokenizer_pb2.EncodeRequest(conversation=tokenizer_pb2.Conversation(messages=[message]))
