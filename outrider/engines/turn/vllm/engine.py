"""The turn engine interface over vLLM's AsyncLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any

from outrider.engines.turn.base import (
    PrefixEvent,
    TurnEngineInfo,
    TurnLoad,
    TurnPiece,
    TurnRequest,
)
from outrider.engines.turn.prefix_hub import PrefixHub
from outrider.engines.turn.vllm.api import Api, Llm
from outrider.engines.turn.vllm.guard import Guard
from outrider.engines.turn.vllm.load import LatestStats
from outrider.engines.turn.vllm.prefixes import EventSocket
from outrider.engines.turn.vllm.requests import PRIORITIES, piece_of, prompt_of, sampling_of
from outrider.errors import (
    EngineError,
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
)

_RETRY_MS = 200


class VllmTurnEngine:
    """Implements base.TurnEngine; loading.open_engine makes one."""

    def __init__(
        self,
        api: Api,
        llm: Llm,
        info: TurnEngineInfo,
        *,
        stats: LatestStats,
        hub: PrefixHub,
        events: EventSocket,
        guard: Guard,
        silence_timeout_s: float,
    ) -> None:
        self.info = info
        self._api = api
        self._llm = llm
        self._stats = stats
        self._hub = hub
        self._events = events
        self._guard = guard
        self._silence_timeout_s = silence_timeout_s
        self._num_running = 0
        self._is_closed = False

    async def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        """TurnEngine.reply."""
        self._check_room()
        self._num_running += 1
        try:
            with self._errors():
                outputs = self._llm.generate(
                    prompt_of(self._api, request),
                    sampling_of(self._api, request),
                    str(request.number),
                    priority=PRIORITIES[request.priority],
                )
            async with aclosing(outputs):
                is_first = True
                while True:
                    with self._errors():
                        output = await self._next(outputs)
                        piece = piece_of(output, request.sampling.num_logprobs, is_first=is_first)
                    is_first = False
                    if output.finished and piece.finish is None:
                        raise EngineError("vLLM ended a reply without a reason; ask again")
                    if piece.ids or piece.finish is not None:
                        yield piece
                    if output.finished:
                        return
        finally:
            self._num_running -= 1

    async def _next(self, outputs: AsyncGenerator[Any, None]) -> Any:
        try:
            async with asyncio.timeout(self._silence_timeout_s):
                return await anext(outputs)
        except TimeoutError as error:
            raise EngineError(
                f"vLLM wrote nothing for {self._silence_timeout_s:g} s; raise "
                "vllm.silence_timeout_s if it has long queues"
            ) from error

    async def load(self) -> TurnLoad:
        """TurnEngine.load. Replies are counted where they are asked for; blocks as of the last
        step."""
        self._raise_if_closed()
        with self._errors():
            await self._llm.check_health()
        num_unfinished = self._llm.get_num_unfinished_requests()
        waiting = min(self._stats.num_waiting, num_unfinished)
        usage = self._stats.kv_usage if num_unfinished else 0.0
        free = round(self.info.num_blocks * (1.0 - min(1.0, usage)))
        return TurnLoad(num_unfinished - waiting, waiting, free)

    def prefix_events(self) -> AsyncIterator[PrefixEvent]:
        """TurnEngine.prefix_events."""
        return self._hub.watch()

    async def close(self) -> None:
        """TurnEngine.close."""
        if self._is_closed:
            return
        self._is_closed = True
        self._hub.close()
        await asyncio.to_thread(self._llm.shutdown)
        await asyncio.to_thread(self._guard.close)
        await self._events.close()

    def _check_room(self) -> None:
        self._raise_if_closed()
        if self._num_running >= self.info.max_sessions:
            raise OverloadedError(
                f"vLLM writes {self._num_running} replies already (vllm.max_num_seqs); come back "
                "later",
                retry_delay_ms=_RETRY_MS,
            )

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise ReplicaLostError("vLLM has been shut down; open the session on another replica")

    def _errors(self) -> AbstractContextManager[None]:
        return _translated(self._api, lambda: self._is_closed)


@contextmanager
def _translated(api: Api, is_closed: Callable[[], bool]) -> Any:
    """vLLM's errors as Outrider's."""
    try:
        yield
    except OutriderError:
        raise
    except api.dead_error as error:
        raise ReplicaLostError(
            "the process of vLLM that computes is gone; open the session on another replica"
        ) from error
    except api.refused_error as error:
        raise InvalidSamplingError(f"vLLM refuses the request: {error}") from error
    except Exception as error:
        if is_closed():
            raise ReplicaLostError(
                "vLLM has been shut down; open the session on another replica"
            ) from error
        raise EngineError(f"vLLM failed a request: {type(error).__name__}: {error}") from error
