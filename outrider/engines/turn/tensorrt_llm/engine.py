"""The turn engine interface over TensorRT-LLM's LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from outrider.engines.turn.base import (
    PrefixEvent,
    TurnEngineInfo,
    TurnLoad,
    TurnPiece,
    TurnRequest,
)
from outrider.engines.turn.prefix_hub import PrefixHub
from outrider.engines.turn.tensorrt_llm.api import Api, Llm, Output
from outrider.engines.turn.tensorrt_llm.reports import BlockTranslator, RuntimeStats, stats_of
from outrider.engines.turn.tensorrt_llm.requests import Written, arguments_of
from outrider.errors import EngineError, OutriderError, OverloadedError, ReplicaLostError

log = structlog.get_logger()

_RETRY_MS: Final = 200
_REPORT_WAIT_S: Final = 2.0
"""The runtime's own default."""
_PAUSE_S: Final = 0.5
"""Between two looks for reports, where the runtime returns at once."""
_DEAD: Final = ("EngineDeadError", "is shutting down")
"""What the runtime's errors have in their type or text if it will answer nothing more."""


class TensorRtLlmTurnEngine:
    """Implements base.TurnEngine; loading.open_engine makes one."""

    def __init__(
        self,
        api: Api,
        llm: Llm,
        info: TurnEngineInfo,
        translator: BlockTranslator,
        *,
        silence_timeout_s: float,
    ) -> None:
        """`llm` has answered a request already: before the first, the runtime has no reports."""
        self.info = info
        self._api = api
        self._llm = llm
        self._translator = translator
        self._silence_timeout_s = silence_timeout_s
        self._hub = PrefixHub()
        self._stats = RuntimeStats(free_blocks=info.num_blocks)
        self._num_running = 0
        self._lost_by = ""
        """Why the runtime is gone; empty: it is not."""
        self._is_closed = False
        self._followers = [
            asyncio.create_task(self._follow(llm.get_stats_async, self._take_stats)),
            asyncio.create_task(self._follow(llm.get_kv_cache_events_async, self._take_event)),
        ]

    async def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        """TurnEngine.reply."""
        self._raise_if_lost()
        if self._num_running >= self.info.max_sessions:
            raise OverloadedError(
                f"TensorRT-LLM writes {self._num_running} replies already "
                "(trtllm.max_batch_size); come back later",
                retry_delay_ms=_RETRY_MS,
            )
        self._num_running += 1
        output: Output | None = None
        try:
            self._translator.sent(request.ids, request.salt)
            output = self._send(request)
            written = Written(request.sampling.num_logprobs)
            while True:
                piece = await self._next(output, written)
                if piece.ids or piece.finish is not None:
                    yield piece
                if piece.finish is not None:
                    return
        finally:
            self._num_running -= 1
            if output is not None and not output.finished:
                self._abort(output)

    def _send(self, request: TurnRequest) -> Output:
        try:
            return self._llm.generate_async(**arguments_of(self._api, request))
        except Exception as error:
            raise self._failed("refused a request", error) from error

    async def _next(self, output: Output, written: Written) -> TurnPiece:
        try:
            async with asyncio.timeout(self._silence_timeout_s):
                piece = written.piece(await anext(output))
        except TimeoutError as error:
            self._lost_by = (
                f"TensorRT-LLM wrote nothing for {self._silence_timeout_s:g} s; start the replica "
                "again, with a larger trtllm.silence_timeout_s if that was too short"
            )
            raise ReplicaLostError(self._lost_by) from error
        except StopAsyncIteration as error:
            raise EngineError("TensorRT-LLM ended a reply without a reason; ask again") from error
        except Exception as error:
            raise self._failed("failed a request", error) from error
        if output.finished and piece.finish is None:
            raise EngineError("TensorRT-LLM ended a reply without a reason; ask again")
        return piece

    def _abort(self, output: Output) -> None:
        try:
            output.abort()
        except Exception as error:
            log.warning("trtllm_abort_failed", error=str(self._failed("did not abort", error)))

    def _failed(self, what: str, error: Exception) -> OutriderError:
        """The runtime's errors have many types, some without a text."""
        if isinstance(error, OutriderError):
            return error
        text = f"{type(error).__name__}: {error}"
        if self._is_closed or any(word in text for word in _DEAD):
            self._lost_by = f"TensorRT-LLM is gone ({text}); open the session on another replica"
            return ReplicaLostError(self._lost_by)
        return EngineError(f"TensorRT-LLM {what}: {text}")

    async def load(self) -> TurnLoad:
        """TurnEngine.load. Replies are counted where they are asked for; the rest is as of the last
        iteration."""
        self._raise_if_lost()
        waiting = min(self._stats.num_queued, self._num_running)
        return TurnLoad(self._num_running - waiting, waiting, self._stats.free_blocks)

    def prefix_events(self) -> AsyncIterator[PrefixEvent]:
        """TurnEngine.prefix_events."""
        return self._hub.watch()

    async def close(self) -> None:
        """TurnEngine.close."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        self._hub.close()
        await asyncio.to_thread(self._llm.shutdown)

    def _raise_if_lost(self) -> None:
        if self._is_closed:
            raise ReplicaLostError(
                "TensorRT-LLM has been shut down; open the session on another replica"
            )
        if self._lost_by:
            raise ReplicaLostError(self._lost_by)

    async def _follow(
        self, ask: Callable[..., AsyncIterator[Any]], take: Callable[[Any], None]
    ) -> None:
        """Take the runtime's reports for as long as it lives; each question ends with a pause in
        them."""
        while True:
            try:
                async for report in ask(timeout=_REPORT_WAIT_S):
                    take(report)
            except Exception as error:
                log.warning("trtllm_reports_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_PAUSE_S)

    def _take_stats(self, report: Any) -> None:
        self._stats = stats_of(report)

    def _take_event(self, report: Any) -> None:
        with suppress(KeyError, TypeError):  # an event of another form is none of ours
            for event in self._translator.translate(report):
                self._hub.tell(event)
