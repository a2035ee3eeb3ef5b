"""An edge under long prompts, each process by itself: clients over QUIC, a router, a replica whose
engine is fake and immediate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bench.tokenizer.loop_lag import INTERVAL_S, LONG_BYTES, OUTSTANDING
from bench.tokenizer.texts import text_of
from bench.tokenizer.watched_process import Serve
from outrider.client import Client, Committed, connect
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.process import Ports
from outrider.sampling.params import SamplingParams
from outrider.tokenization.pool.config import TokenizationConfig
from services.edge.app import serve
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig

SAMPLING = SamplingParams(max_tokens=2)


def serving(backend: str, router: str, folder: str) -> Serve:
    """An edge as it is started in production, without a draft model."""

    async def run(ready: Callable[[Ports], None], stop: asyncio.Event) -> None:
        config = EdgeConfig(
            routers=(router,),
            state_dir=Path(folder),
            tokenization=TokenizationConfig(backend=backend),
            drafter=DrafterConfig(model=NO_DRAFT_MODEL),
            log_level="critical",
            anonymous=True,
        )
        await serve(config, ready=ready, stop=stop)

    return run


async def long_prompts(pipe: Connection, port: int, ca: str) -> None:
    """Keeps some prompts of 100,000 tokens on their way, which are refused once they are
    tokenized: the model has room for fewer."""
    longs = [text_of(LONG_BYTES, seed) for seed in range(8)]

    async def one_after_another(client: Client, first: int) -> None:
        number = first
        while True:
            ask = [Message("user", longs[number % len(longs)])]
            with contextlib.suppress(OutriderError):
                async with client.chat(ask, sampling=SAMPLING) as chat:
                    await chat.result()
            pipe.send(LONG_BYTES)
            number += 1

    async with connect("127.0.0.1", port, ca=Path(ca)) as client:
        await asyncio.gather(*(one_after_another(client, n) for n in range(OUTSTANDING)))


async def short_chats(pipe: Connection, port: int, seconds: float, ca: str) -> None:
    """A chat of 20 tokens every 10 ms; tells the milliseconds to the first committed token."""
    took_ms: list[float] = []
    async with connect("127.0.0.1", port, ca=Path(ca)) as client:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await asyncio.sleep(INTERVAL_S)
            begun_at = time.perf_counter()
            ask = f"{begun_at}: what should I pack for a week in Lisbon in May?"
            async with client.chat([Message("user", ask)], sampling=SAMPLING) as chat:
                async for event in chat:
                    if isinstance(event, Committed):
                        took_ms.append((time.perf_counter() - begun_at) * 1e3)
                        break
                await chat.result()
    pipe.send(took_ms)
