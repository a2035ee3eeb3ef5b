"""Has the engine compute the static prefixes or loads them, and pins them. The event loop's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

import structlog

from outrider.errors import EngineError, OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority
from services.inference.prefix_store.exchange import PrefixExchange
from services.inference.runner import ModelRunner, ModelTick
from services.inference.scheduler.types import (
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    SessionCommit,
)
from services.inference.static_prefixes.prefixes import StaticPrefix

_log = structlog.get_logger()
_ONE_TOKEN: Final = SamplingParams(max_tokens=1)


class Warming:
    """Sessions of the replica's own, one after the other, each a prefix and one token. Their
    numbers are below 0: those of clients begin at 1."""

    def __init__(
        self, model: ModelRunner, block_tokens: int, transfers: PrefixExchange | None
    ) -> None:
        self._model = model
        self._block_tokens = block_tokens
        self._transfers = transfers
        self._numbers = itertools.count(-1, -1)
        self._running: tuple[OpenRequest, asyncio.Future[None]] | None = None

    def on_tick(self, tick: ModelTick) -> None:
        """What became of the session; those of clients are left alone."""
        if self._running is None:
            return
        request, done = self._running
        for event in tick.events:
            if event.session_id == request.session_id:
                self._take(event, request, done, compute_token_ms=tick.load.row_ms)
        if tick.over or tick.problem:
            _fail(done, EngineError(tick.problem or "the model thread has ended"))

    async def run(self, prefixes: Sequence[StaticPrefix]) -> None:
        """Returns when all are pinned. Raises EngineError if one cannot be computed."""
        for prefix in prefixes:
            ids = prefix.padded(self._block_tokens)
            try:
                await self._compute(ids, prefix.salt)
            except OutriderError as error:
                raise EngineError(
                    f"the static prefix {prefix.name} could not be computed: {error.message}"
                ) from error
            blocks = await self._model.pin_prefix(ids, prefix.salt)
            if len(blocks) * self._block_tokens != len(ids):
                raise EngineError(f"the static prefix {prefix.name} could not be pinned")
            _log.info("prefix_pinned", prefix=prefix.name, num_tokens=len(prefix.ids))

    async def _compute(self, ids: tuple[int, ...], salt: bytes) -> None:
        number = next(self._numbers)
        request = OpenRequest(
            session_id=number,
            prompt=ids,
            sampling=_ONE_TOKEN,
            priority=Priority.HIGH,
            edge_drafts=False,
            region_drafts=False,
            cache_salt=salt,
            warms_up=True,
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = request, done
        try:
            self._model.open(request)
            await done
        finally:
            self._running = None
            if self._transfers is not None:
                self._transfers.ended(number)

    def _take(
        self,
        event: Event,
        request: OpenRequest,
        done: asyncio.Future[None],
        *,
        compute_token_ms: float,
    ) -> None:
        if isinstance(event, Failed):
            _fail(done, event.error)
        elif isinstance(event, Finished):
            if not done.done():
                done.set_result(None)
        elif self._transfers is None:
            return
        elif isinstance(event, Opened):
            self._transfers.warming_up(request, event.cached_tokens, compute_token_ms)
        elif isinstance(event, SessionCommit):
            self._transfers.first_token(event.session_id)


def _fail(done: asyncio.Future[None], error: OutriderError) -> None:
    if not done.done():
        done.set_exception(error)
