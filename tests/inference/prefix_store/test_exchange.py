"""What may be under way between sessions and the store, filled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.engines.fake import FakeEngine
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.inference.kv_transfer import LoadBlocks
from services.inference.prefix_store.exchange import (
    _MAX_LOADS,
    _MAX_SAVES,
    KvIdentity,
    PrefixExchange,
)
from services.inference.prefix_store.sealing import Sealer
from services.inference.scheduler.types import OpenRequest

INFO = FakeEngine().info


class StuckStore:
    """Answers when it may: it has nothing."""

    num_failures = 0

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.num_asked = 0

    async def present(self, names: Sequence[bytes]) -> list[bool]:
        self.num_asked += 1
        await self.may_answer.wait()
        return [False] * len(names)

    async def fetch(self, names: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(names)

    async def put(self, entries: Sequence[tuple[bytes, bytes]]) -> bool:
        return True

    async def close(self) -> None: ...


class Nothing:
    """Model threads that have nothing cached."""

    def load_blocks(self, command: LoadBlocks) -> bool:
        return True

    async def export_blocks(
        self, ids: tuple[int, ...], salt: bytes, indices: tuple[int, ...]
    ) -> list[tuple[int, bytes]]:
        return []


async def test_what_other_replicas_have_is_saved_the_first_time() -> None:
    assert INFO.kv_layout is not None
    store, metrics = StuckStore(), Metrics("test")
    exchange = PrefixExchange(
        store,
        Sealer("k" * 32, b"identity"),
        KvIdentity(INFO.kv_layout, INFO.fingerprint, b"v" * 32),
        Nothing(),
        metrics,
        min_tokens=INFO.block_tokens,
        max_tokens=10 * INFO.block_tokens,
    )
    ids = tuple(range(1, 4 * INFO.block_tokens + 1))
    for number, shared, is_saved in ((1, INFO.block_tokens - 1, False), (2, len(ids) // 2, True)):
        request = OpenRequest(
            *(number, tuple(number + i for i in ids), SamplingParams()),
            cache_salt=b"g",
            group_lasts=True,
            shared_prefix_tokens=shared,
        )
        exchange.opened(request, len(ids), 1000.0)
        exchange.first_token(number)
        assert (exchange.num_transfers > 0) is is_saved
    store.may_answer.set()
    await eventually(lambda: exchange.num_transfers == 0)
    await exchange.close()
    metrics.close()


async def test_prompts_beyond_those_that_are_loaded_or_saved_are_left_alone() -> None:
    assert INFO.kv_layout is not None
    store, metrics = StuckStore(), Metrics("test")
    exchange = PrefixExchange(
        store,
        Sealer("k" * 32, b"identity"),
        KvIdentity(INFO.kv_layout, INFO.fingerprint, b"v" * 32),
        Nothing(),
        metrics,
        min_tokens=INFO.block_tokens,
        max_tokens=10 * INFO.block_tokens,
    )
    prompts = [
        tuple((session + n) % 50 + 1 for n in range(8 * INFO.block_tokens))
        for session in range(_MAX_SAVES + 4)
    ]

    def open_all(first_session: int) -> None:
        for number, ids in enumerate(prompts, first_session):
            request = OpenRequest(number, ids, SamplingParams(), cache_salt=b"g", group_lasts=True)
            exchange.opened(request, 0, 1000.0)

    open_all(1)
    assert exchange.num_transfers == _MAX_LOADS
    await eventually(lambda: store.num_asked == _MAX_LOADS)
    for session in range(1, len(prompts) + 1):
        exchange.first_token(session)
    assert exchange.num_transfers == _MAX_LOADS, "nobody had these prompts before"
    open_all(1001)
    for session in range(1001, 1001 + len(prompts)):
        exchange.first_token(session)
    assert exchange.num_transfers == _MAX_LOADS + _MAX_SAVES
    store.may_answer.set()
    await eventually(lambda: exchange.num_transfers == 0)
    await exchange.close()
    metrics.close()
