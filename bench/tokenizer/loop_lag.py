"""Event loop lag and a short chat's latency in one process whose tokenization threads are kept busy
by prompts of 100,000 tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from bench.harness import Run, quantile
from bench.tokenizer.texts import text_of
from outrider.fair_work.turns import Requester
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.cut_proofs import rule_of
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.pool import PoolPolicy, TokenizationPool, TokenizationResult

LONG_BYTES = 318_000
"""About 100,000 tokens of SmolLM2's vocabulary."""
OUTSTANDING = 8
INTERVAL_S = 0.01
TICK_S = 0.001
_ONE, _OTHER = Requester("long"), Requester("short")


@dataclass(slots=True)
class Seen:
    """What one phase showed."""

    lag_ms: list[float] = field(default_factory=list)
    chat_ms: list[float] = field(default_factory=list)
    num_long: int = 0
    num_tokens: int = 0


class Phase:
    """A ticker, short chats, and long prompts if asked for, on one front."""

    def __init__(self, front: TokenizationPool, longs: list[list[Message]], seconds: float) -> None:
        self._front = front
        self._longs = longs
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self.seen = Seen()

    async def run(self, *, is_loaded: bool) -> Seen:
        self._tick(self._loop.time())
        if is_loaded:
            for number in range(OUTSTANDING):
                self._send_long(number)
        number = 0
        while self._loop.time() < self._end:
            await asyncio.sleep(INTERVAL_S)
            self._send_short(number)
            number += 1
        await asyncio.sleep(0.5)
        return self.seen

    def _tick(self, due: float) -> None:
        now = self._loop.time()
        self.seen.lag_ms.append(max(0.0, now - due) * 1e3)
        if now < self._end:
            self._loop.call_at(now + TICK_S, self._tick, now + TICK_S)

    def _send_long(self, number: int) -> None:
        def answered(outcome: TokenizationResult) -> None:
            assert isinstance(outcome, tuple)
            self.seen.num_long += 1
            self.seen.num_tokens += len(outcome)
            if self._loop.time() < self._end:
                self._send_long(number + 1)

        long = self._longs[number % len(self._longs)]
        self._front.submit(long, answered, requester=_ONE, scope=b"bench")

    def _send_short(self, number: int) -> None:
        begin = time.perf_counter()

        def answered(outcome: TokenizationResult) -> None:
            assert isinstance(outcome, tuple)
            self.seen.chat_ms.append((time.perf_counter() - begin) * 1e3)

        ask = f"{number} {time.perf_counter_ns()}: what should I pack for a week in Lisbon in May?"
        self._front.submit([Message("user", ask)], answered, requester=_OTHER, scope=b"bench")


def measure(run: Run, vocabulary: Vocabulary, backends: Sequence[FallbackBackend]) -> None:
    """Adds the table."""
    table = run.table(
        "Event loop lag and time to tokenize a chat of 20 tokens, ms: idle, and while prompts of "
        "100,000 tokens keep two threads busy",
        "backend",
        "load",
        "loop lag p99",
        "max",
        "chat p50",
        "p99",
        "million tokens/s",
    )
    seconds = 2.0 if run.quick else 10.0
    for backend in backends:
        unloaded, loaded = uvloop.run(_both(vocabulary, backend, seconds))
        for load, seen in (("none", unloaded), ("full", loaded)):
            lag, chat = seen.lag_ms, seen.chat_ms
            speed = seen.num_tokens / seconds / 1e6
            cells = (
                table.quantile(lag, 0.99),
                max(lag),
                quantile(chat, 0.5),
                table.quantile(chat, 0.99),
                speed,
            )
            table.add(backend.name, load, *cells)


async def _both(
    vocabulary: Vocabulary, backend: FallbackBackend, seconds: float
) -> tuple[Seen, Seen]:
    cuts = rule_of(vocabulary.tokenizer_json)
    front = TokenizationPool(CachingEncoder(vocabulary, backend, cuts=cuts), PoolPolicy())
    longs = [[Message("user", text_of(LONG_BYTES, seed))] for seed in range(8)]
    try:
        unloaded = await Phase(front, longs, seconds).run(is_loaded=False)
        return unloaded, await Phase(front, longs, seconds).run(is_loaded=True)
    finally:
        front.close()
        front.join()
