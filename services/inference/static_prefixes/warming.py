"""Has the engine compute the static prefixes or loads them, and pins them. The event loop's."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Final

import structlog

from outrider.codec.block_hashes import block_hashes
from outrider.errors import EngineError, OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority
from services.inference.kv_tiers.tiers import KvTier, KvTiers
from services.inference.model_thread import ModelThread, ModelTick
from services.inference.scheduler.types import (
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    SessionCommit,
)
from services.inference.static_prefixes.prefixes import StaticPrefixes

_log = structlog.get_logger()
_ONE_TOKEN: Final = SamplingParams(max_tokens=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Computation:
    """A session that computes a prefix and one token."""

    request: OpenRequest
    tiers: KvTiers
    """Other tiers may have the prefix, or want it."""
    done: asyncio.Future[None]

    def take(self, event: Event, compute_token_ms: float) -> None:
        """Handle an event of the session that computes the prefix."""
        if isinstance(event, Opened):
            self.tiers.opened(self.request, event.cached_tokens, compute_token_ms)
        elif isinstance(event, SessionCommit):
            self.tiers.first_token(event.session_id)
        elif isinstance(event, Failed):
            self.fail(event.error)
        elif isinstance(event, Finished) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: OutriderError) -> None:
        """It will not be computed."""
        if not self.done.done():
            self.done.set_exception(error)


class StaticPrefixTier(KvTier):
    """Static prefixes: computed and pinned in the pool before the replica serves.

    That takes sessions of the replica's own, one after the other. Their numbers are below 0: those
    of clients begin at 1.
    """

    name = "static"
    brings_blocks = False

    def __init__(self, static: StaticPrefixes, model: ModelThread, block_tokens: int) -> None:
        super().__init__()
        self._static = static
        self._model = model
        self._block_tokens = block_tokens
        self._numbers = itertools.count(-1, -1)
        self._running: _Computation | None = None

    def salts(self, tenant: str) -> tuple[bytes, ...]:
        return self._static.salts_of(tenant)

    async def start(self, tiers: KvTiers) -> None:
        """Returns when all are pinned. Raises EngineError if one cannot be computed."""
        for prefix in self._static.prefixes:
            ids = prefix.padded(self._block_tokens)
            try:
                await self._compute(ids, prefix.salt, tiers)
            except OutriderError as error:
                raise EngineError(
                    f"the static prefix {prefix.name} could not be computed: {error.message}"
                ) from error
            hashes = tuple(block_hashes(ids, self._block_tokens, prefix.salt))
            if len(await self._model.pin_blocks(hashes[::-1])) != len(hashes):
                raise EngineError(f"the static prefix {prefix.name} could not be pinned")
            _log.info("prefix_pinned", prefix=prefix.name, num_tokens=len(prefix.ids))

    def on_tick(self, tick: ModelTick) -> None:
        running = self._running
        if running is None:
            return
        for event in tick.events:
            if event.session_id == running.request.session_id:
                running.take(event, tick.load.row_ms)
        if tick.over or tick.problem:
            running.fail(EngineError(tick.problem or "the model thread has ended"))

    async def _compute(self, ids: tuple[int, ...], salt: bytes, tiers: KvTiers) -> None:
        request = OpenRequest(
            session_id=next(self._numbers),
            prompt=ids,
            sampling=_ONE_TOKEN,
            priority=Priority.HIGH,
            edge_drafts=False,
            region_drafts=False,
            cache_salt=salt,
            warms_up=True,
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = _Computation(request, tiers, done)
        try:
            self._model.open(request)
            await done
        finally:
            self._running = None
            tiers.ended(request.session_id)
