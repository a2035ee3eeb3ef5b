"""Has every instance compute or load the static prefixes, and pins them. The event loop's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from outrider.errors import EngineError, OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session_types import Priority
from services.inference.prefix_store.exchange import KvBlocks
from services.inference.runner import ModelTick
from services.inference.scheduler.types import (
    Committed,
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
)
from services.inference.static_prefixes.prefixes import StaticPrefix

_log = structlog.get_logger()
_ONE_TOKEN: Final = SamplingParams(max_tokens=1)


class Instance(KvBlocks, Protocol):
    """One engine instance (runner.ModelRunner)."""

    def open(self, request: OpenRequest) -> None: ...

    async def pin_prefix(self, ids: tuple[int, ...], salt: bytes) -> list[int]: ...


class Transfers(Protocol):
    """What loads and saves them (prefix_store.exchange.PrefixExchange)."""

    def warming_up(
        self, request: OpenRequest, model: KvBlocks, cached_tokens: int, compute_token_ms: float
    ) -> None: ...

    def first_token(self, session_id: int) -> None: ...

    def ended(self, session_id: int) -> None: ...


class Warming:
    """Sessions of the replica's own, one after the other on each instance, each a prefix and one
    token. Their numbers are below 0: those of clients begin at 1."""

    def __init__(self, block_tokens: int, transfers: Transfers | None) -> None:
        self._block_tokens = block_tokens
        self._transfers = transfers
        self._numbers = itertools.count(-1, -1)
        self._running: dict[int, tuple[OpenRequest, Instance, asyncio.Future[None]]] = {}

    async def run(self, prefixes: Sequence[StaticPrefix], instances: Sequence[Instance]) -> None:
        """Returns when all are pinned. Raises EngineError if one cannot be computed."""
        await asyncio.gather(*(self._warm(instance, prefixes) for instance in instances))

    def on_tick(self, tick: ModelTick) -> None:
        """What became of the sessions; those of clients are left alone."""
        if not self._running:
            return
        for event in tick.events:
            if (running := self._running.get(event.session_id)) is not None:
                self._take(event, *running, compute_token_ms=tick.load.row_ms)
        if tick.over or tick.problem:
            for _, _, done in self._running.values():
                _fail(done, EngineError(tick.problem or "the model thread has ended"))

    async def _warm(self, instance: Instance, prefixes: Sequence[StaticPrefix]) -> None:
        for prefix in prefixes:
            ids = prefix.padded(self._block_tokens)
            try:
                await self._compute(instance, ids, prefix.salt)
            except OutriderError as error:
                raise EngineError(
                    f"the static prefix {prefix.name} could not be computed: {error.message}"
                ) from error
            blocks = await instance.pin_prefix(ids, prefix.salt)
            if len(blocks) * self._block_tokens != len(ids):
                raise EngineError(f"the static prefix {prefix.name} could not be pinned")
            _log.info("prefix_pinned", prefix=prefix.name, num_tokens=len(prefix.ids))

    async def _compute(self, instance: Instance, ids: tuple[int, ...], salt: bytes) -> None:
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
        self._running[number] = request, instance, done
        try:
            instance.open(request)
            await done
        finally:
            del self._running[number]
            if self._transfers is not None:
                self._transfers.ended(number)

    def _take(
        self,
        event: Event,
        request: OpenRequest,
        instance: Instance,
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
            self._transfers.warming_up(request, instance, event.cached_tokens, compute_token_ms)
        elif isinstance(event, Committed):
            self._transfers.first_token(event.session_id)


def _fail(done: asyncio.Future[None], error: OutriderError) -> None:
    if not done.done():
        done.set_exception(error)
