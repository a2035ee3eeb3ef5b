"""The seam between a replica's sessions and the places that hold KV of their prompts.

A tier is such a place: static prefixes, other replicas, the prefix store. Sessions learn from it
which other salts of the pool they may use (`salts`); all else runs beside them. No session waits
for a tier: the engine computes a prompt from its first block on, while blocks are fetched from the
last one backwards (decision 21). The blocks that a tier brings have to be, to the bit, those that
this engine would have computed for the same trust group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Final

import structlog

from outrider.codec.block_hashes import block_hashes, root_hash
from services.inference.model_thread import ModelTick
from services.inference.scheduler.types import KvHolder, OpenRequest

MAX_FETCHES: Final = 8
"""Prompts that are fetched at once; others are computed."""
MAX_SAVES: Final = 16
"""Prompts that wait to be saved, or are; others are not."""

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Prefix:
    """The full blocks with which a session's prompt, and the reply that it resumes after, begin: as
    many as a tier may have, or be given."""

    request: OpenRequest
    cached_tokens: int
    """Leading tokens that were in the pool when the session was opened."""
    block_tokens: int
    ids: tuple[int, ...]
    hashes: list[bytes]
    """Hash of each block (outrider.codec.block_hashes)."""
    fetched: set[int] = field(default_factory=set)
    """Blocks that a tier has brought."""
    is_computed: bool = False
    """Whether the session has its first token, or has ended: blocks that arrive now are late."""
    store_names: list[bytes] = field(default_factory=list)
    """Names of the leading blocks in the prefix store, which fills them in."""
    _fetching: asyncio.Task[None] | None = None

    def parent(self, index: int) -> bytes:
        """Hash of the block before this one, or of the root."""
        return self.hashes[index - 1] if index else root_hash(self.request.cache_salt)

    def block_ids(self, index: int) -> tuple[int, ...]:
        """The ids of one block."""
        return self.ids[index * self.block_tokens : (index + 1) * self.block_tokens]

    @contextmanager
    def cancelling_fetch(self) -> Iterator[None]:
        """While the context lasts, the running task is cancelled as soon as nothing that arrives is
        of use any more, so that the sender is informed at once."""
        self._fetching = asyncio.current_task()
        try:
            yield
        finally:
            self._fetching = None

    def end(self) -> None:
        """Nothing that comes is of use any more."""
        self.is_computed = True
        if self._fetching is not None:
            self._fetching.cancel()


@dataclass(frozen=True, slots=True)
class KeepRequest:
    """The beginning of a session that another replica serves, for the case that it comes here."""

    session: int
    """Its router's number for it."""
    cache_salt: bytes
    ids: tuple[int, ...]
    """Of its prompt and reply so far."""
    holder: KvHolder


@dataclass(slots=True)
class TierCounts:
    """Traffic of a tier since the replica started."""

    num_bytes: int = 0
    """Fetched and saved, packed."""
    num_failures: int = 0
    """Requests to it that failed."""
    block_ms: float = 0.0
    """Recent time to fetch a block, in milliseconds; 0: none has come."""
    first_ms: float = 0.0
    """Recent time until the first bytes came, in milliseconds; 0: none has come."""


class KvTier:
    """A place that has KV of prompts' beginnings. Used in the event loop. Only start() raises: a
    tier that is slow, full or gone has nothing. A tier overrides the methods it needs; the others
    do nothing."""

    name: ClassVar[str]
    """The tier in metrics; reports to routers have fields for `redis` and `peer`."""
    brings_blocks: ClassVar[bool] = True
    """Whether it fetches blocks, which count under its name; others only name `salts`."""

    def __init__(self) -> None:
        self.counts = TierCounts()

    async def start(self, tiers: KvTiers) -> None:
        """Before the replica serves. Raises EngineError for what it cannot serve without."""

    def on_tick(self, tick: ModelTick) -> None:
        """Handle a report of the model thread, until all tiers have started."""

    def salts(self, tenant: str) -> tuple[bytes, ...]:
        """Salts, other than its own, under which a session of this tenant may use blocks of the
        pool."""
        return ()

    def num_blocks(self, request: OpenRequest) -> int:
        """Leading blocks of the prompt, and of the reply behind it, that the tier may have or be
        given; 0: none, and it is not asked any further."""
        return 0

    def pays(self, prefix: Prefix, missing: range, block_ms: float) -> bool:
        """Whether to fetch any of these blocks, of which the engine computes one in `block_ms`."""
        return False

    async def fetch(self, prefix: Prefix, missing: range, block_ms: float) -> None:
        """Bring some of these blocks, the last one first (BlockLoader.load)."""

    def wants(self, prefix: Prefix) -> Sequence[int]:
        """The blocks to be saved of a prefix that has just been computed."""
        return ()

    async def save(self, prefix: Prefix, wanted: Sequence[int]) -> None:
        """Keep these blocks."""

    def keep(self, request: KeepRequest) -> None:
        """Copy KV that a session may need here later, in the background, or drop the request."""

    async def close(self) -> None:
        """The replica stops; no fetch and no save is under way any more."""


class KvTiers:
    """The tiers of a replica, in the order in which they are asked. Sessions report their progress
    to it. Used in the event loop."""

    def __init__(self, tiers: Sequence[KvTier], block_tokens: int) -> None:
        self.counts: Mapping[str, TierCounts] = {tier.name: tier.counts for tier in tiers}
        """Counts by tier name."""
        self.sources = tuple(tier.name for tier in tiers if tier.brings_blocks)
        """Names of the tiers that blocks come from."""
        self._tiers = tuple(tiers)
        self._block_tokens = block_tokens
        self._prefixes: dict[int, Prefix] = {}
        """Prefixes by session id, until the session's first token."""
        self._fetches: set[asyncio.Task[None]] = set()
        self._saves: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[KvTier]:
        return iter(self._tiers)

    @property
    def num_transfers(self) -> int:
        """Prompts that are being fetched or saved, or wait to be."""
        return len(self._fetches) + len(self._saves)

    async def start(self) -> None:
        """Before the replica serves; the model thread runs. Raises EngineError."""
        for tier in self._tiers:
            await tier.start(self)

    def on_tick(self, tick: ModelTick) -> None:
        """Pass on a report of the model thread, until start() returns."""
        for tier in self._tiers:
            tier.on_tick(tick)

    def salts(self, tenant: str) -> tuple[bytes, ...]:
        """Those under which a session of this tenant may find KV in the pool, beside its own."""
        return tuple(chain.from_iterable([tier.salts(tenant) for tier in self._tiers]))

    def keep(self, request: KeepRequest) -> None:
        """A router names this replica as where a session would go on."""
        for tier in self._tiers:
            tier.keep(request)

    def opened(self, request: OpenRequest, cached_tokens: int, compute_token_ms: float) -> None:
        """A session is queued or computing. Its first `cached_tokens` are there already; the engine
        takes `compute_token_ms` for each other token."""
        depths = [(tier, depth) for tier in self._tiers if (depth := tier.num_blocks(request))]
        if not depths:
            return
        block_tokens, ids = self._block_tokens, (*request.prompt, *request.resume)
        known = ids[: max(depth for _, depth in depths) * block_tokens]
        hashes = list(block_hashes(known, block_tokens, request.cache_salt))
        prefix = Prefix(request, cached_tokens, block_tokens, known, hashes)
        self._prefixes[request.session_id] = prefix
        first, block_ms = cached_tokens // block_tokens, compute_token_ms * block_tokens
        # The engine always computes the last token itself, so no block ends with it.
        last = (len(ids) - 1) // block_tokens
        paying = [
            (tier, missing)
            for tier, depth in depths
            if (missing := range(first, min(depth, last))) and tier.pays(prefix, missing, block_ms)
        ]
        if paying and len(self._fetches) < MAX_FETCHES:
            _start(self._fetches, self._fetch(prefix, paying, block_ms))

    def first_token(self, session_id: int) -> None:
        """The prompt is computed."""
        prefix = self._prefixes.pop(session_id, None)
        if prefix is None:
            return
        prefix.end()
        for tier in self._tiers:
            wanted = tier.wants(prefix)
            if wanted and len(self._saves) < MAX_SAVES:
                _start(self._saves, tier.save(prefix, wanted))

    def ended(self, session_id: int) -> None:
        """The session is over, whether it had a token or not."""
        prefix = self._prefixes.pop(session_id, None)
        if prefix is not None:
            prefix.end()

    async def close(self) -> None:
        """Cancel running fetches and saves."""
        tasks = [*self._fetches, *self._saves]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for tier in self._tiers:
            await tier.close()

    async def _fetch(
        self, prefix: Prefix, paying: Sequence[tuple[KvTier, range]], block_ms: float
    ) -> None:
        """Fetch from one tier after the other, each without the last blocks that earlier tiers
        brought."""
        for tier, missing in paying:
            while missing and missing[-1] in prefix.fetched:
                missing = missing[:-1]
            if missing and not prefix.is_computed:
                await tier.fetch(prefix, missing, block_ms)


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(_logged(work))
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """A defect costs a transfer, and is logged."""
    try:
        await work
    except Exception:
        _log.exception("kv_transfer_failed")
