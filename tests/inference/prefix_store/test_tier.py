"""What may be under way between sessions and the store, filled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.inference.kv_tiers.tiers import MAX_FETCHES, MAX_SAVES, KvTiers
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.tier import PrefixStoreTier
from services.inference.scheduler.types import OpenRequest
from tests.inference.kv_tiers.stubs import INFO, StubThread, loader_to


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


class Store:
    """Has what it was given, in no time unless it takes some of the clock."""

    num_failures = 0

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.num_asked = self.num_fetched = self.num_put = 0
        self.answers = self.sends = True
        self.takes_s = 0.0
        self.now = 100.0

    async def present(self, names: Sequence[bytes]) -> list[bool] | None:
        self.num_asked += 1
        self.now += self.takes_s
        return [name in self.entries for name in names] if self.answers else None

    async def fetch(self, names: Sequence[bytes]) -> list[bytes | None] | None:
        self.num_fetched += 1
        self.now += self.takes_s
        return [self.entries.get(name) for name in names] if self.sends else None

    async def put(self, entries: Sequence[tuple[bytes, bytes]]) -> bool:
        self.num_put += len(entries)
        self.entries.update(entries)
        return True

    async def close(self) -> None: ...


def tiers_of(store: Any, model: StubThread, metrics: Metrics, **settings: Any) -> KvTiers:
    """The store alone, of prompts up to ten blocks."""
    tier = PrefixStoreTier(
        store,
        Sealer("k" * 32, b"identity"),
        Sealer("k" * 32, b"inexact identity"),
        loader_to(model),
        metrics,
        min_tokens=INFO.block_tokens,
        max_tokens=10 * INFO.block_tokens,
        **settings,
    )
    return KvTiers((tier,), INFO.block_tokens)


class Chats:
    """Sessions with one prompt of 8 blocks, one after the other."""

    def __init__(self, store: Store) -> None:
        self.ids = tuple(range(1, 8 * INFO.block_tokens + 1))
        self.model = StubThread()
        self.model.cache(self.ids, b"g")
        self.metrics = Metrics("test")
        self.tiers = tiers_of(
            store, self.model, self.metrics, ttl_s=1000.0, clock=lambda: store.now
        )
        self._last_session = 0

    async def one(self, *, cached_tokens: int = 0) -> None:
        """What it loads is there before its first token."""
        self._last_session = number = self._last_session + 1
        request = OpenRequest(number, self.ids, SamplingParams(), cache_salt=b"g", group_lasts=True)
        self.tiers.opened(request, cached_tokens, 0.5)
        await eventually(lambda: not self.tiers.num_transfers)
        self.tiers.first_token(number)
        await eventually(lambda: not self.tiers.num_transfers)

    async def close(self) -> None:
        await self.tiers.close()
        self.metrics.close()


async def test_what_a_store_lost_is_stored_again() -> None:
    store = Store()
    chats = Chats(store)
    all_cached = len(chats.ids)
    await chats.one()
    await chats.one()
    assert len(store.entries) == 8
    store.entries.popitem()
    store.entries.pop(next(iter(store.entries)))
    await chats.one()
    assert len(store.entries) == 7, "it asked, and one was missing; the last one is always computed"
    store.entries.clear()
    num_asked = store.num_asked
    await chats.one(cached_tokens=all_cached)
    assert store.num_asked == num_asked and not store.entries, "it was stored a moment ago"
    store.now += 499.0
    await chats.one(cached_tokens=all_cached)
    assert not store.entries
    store.now += 1.0
    await chats.one(cached_tokens=all_cached)
    assert len(store.entries) == 8
    await chats.close()


async def test_what_is_refused_is_written_anew_and_what_is_not_sent_is_not() -> None:
    store = Store()
    chats = Chats(store)
    await chats.one()
    await chats.one()
    store.sends = False
    await chats.one()
    assert store.num_fetched and store.num_put == 8, "nothing is known to be wrong with it"
    store.sends = True
    store.entries = dict.fromkeys(store.entries, b"a lie")
    await chats.one()
    assert store.num_put == 15, "the last one is always computed"
    assert list(store.entries.values()).count(b"a lie") == 1
    await chats.one()
    assert store.num_put == 15, "and is stored, for all that is known"
    # What another replica has put right meanwhile is not written again.
    right, lies = dict(store.entries), dict.fromkeys(store.entries, b"a lie")
    chats.model.has_room = False
    store.entries = dict(lies)
    await chats.one()
    store.entries = dict(right)
    chats.model.has_room = True
    await chats.one()
    assert store.num_put == 15 and store.entries == right
    await chats.close()


async def test_a_store_that_does_not_answer_is_no_empty_one() -> None:
    store = Store()
    chats = Chats(store)
    await chats.one()
    await chats.one()
    num_exports = chats.model.num_exports
    store.answers, store.takes_s = False, 1.0
    for _ in range(3):
        await chats.one()
    store.now += 1000.0
    await chats.one(cached_tokens=len(chats.ids))
    assert chats.model.num_exports == num_exports, "nothing was to be stored"
    store.answers, store.takes_s = True, 0.0
    num_fetched = store.num_fetched
    await chats.one()
    assert store.num_fetched > num_fetched, "the wait was taken for the way to the store"
    await chats.close()


async def test_a_store_that_was_slow_is_asked_again() -> None:
    store = Store()
    chats = Chats(store)
    await chats.one()
    await chats.one()
    store.takes_s = 10.0
    await chats.one()
    store.takes_s = 0.0
    num_asked, num_fetched = store.num_asked, store.num_fetched
    for _ in range(15):
        await chats.one()
    assert store.num_asked == num_asked
    for _ in range(16 * 30):
        await chats.one()
    assert store.num_asked > num_asked + 30 and store.num_fetched > num_fetched + 30
    await chats.close()


async def test_what_other_replicas_have_is_saved_the_first_time() -> None:
    store, metrics = StuckStore(), Metrics("test")
    tiers = tiers_of(store, StubThread(), metrics)
    ids = tuple(range(1, 4 * INFO.block_tokens + 1))
    for number, shared, is_saved in ((1, INFO.block_tokens - 1, False), (2, len(ids) // 2, True)):
        request = OpenRequest(
            *(number, tuple(number + i for i in ids), SamplingParams()),
            cache_salt=b"g",
            group_lasts=True,
            shared_prefix_tokens=shared,
        )
        tiers.opened(request, len(ids), 1000.0)
        tiers.first_token(number)
        assert (tiers.num_transfers > 0) is is_saved
    store.may_answer.set()
    await eventually(lambda: tiers.num_transfers == 0)
    await tiers.close()
    metrics.close()


async def test_prompts_beyond_those_that_are_loaded_or_saved_are_left_alone() -> None:
    store, metrics = StuckStore(), Metrics("test")
    tiers = tiers_of(store, StubThread(), metrics)
    prompts = [
        tuple((session + n) % 50 + 1 for n in range(8 * INFO.block_tokens))
        for session in range(MAX_SAVES + 4)
    ]

    def open_all(first_session: int) -> None:
        for number, ids in enumerate(prompts, first_session):
            request = OpenRequest(number, ids, SamplingParams(), cache_salt=b"g", group_lasts=True)
            tiers.opened(request, 0, 1000.0)

    open_all(1)
    assert tiers.num_transfers == MAX_FETCHES
    await eventually(lambda: store.num_asked == MAX_FETCHES)
    for session in range(1, len(prompts) + 1):
        tiers.first_token(session)
    assert tiers.num_transfers == MAX_FETCHES, "nobody had these prompts before"
    open_all(1001)
    for session in range(1001, 1001 + len(prompts)):
        tiers.first_token(session)
    assert tiers.num_transfers == MAX_FETCHES + MAX_SAVES
    store.may_answer.set()
    await eventually(lambda: tiers.num_transfers == 0)
    await tiers.close()
    metrics.close()
