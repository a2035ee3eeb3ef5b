"""A turn engine in the place of the model thread: its tasks, timers and reports (a shell).

Everything runs in the event loop. What the engine writes within one turn of the loop is reported as
one tick, so that the frames of all its sessions travel together. Tokens wait a little for those of
other sessions: an engine makes them in one step, but says them one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import structlog

from outrider.engines.turn.base import TurnEngine, TurnRequest
from outrider.errors import (
    EngineError,
    OutriderError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.session.region import Draft
from outrider.speculation.learnt import Learnt
from services.inference.kv.pool import NamedBlock
from services.inference.kv_transfer import ExportedBlock, LoadBlocks
from services.inference.model_thread import ModelThread, ModelTick
from services.inference.scheduler.types import (
    Event,
    Failed,
    Finished,
    OpenRequest,
    SessionCommit,
)
from services.inference.turns.prefixes import CachedPrefixes
from services.inference.turns.sessions import TurnSessions

LOAD_INTERVAL_S: Final = 1.0
"""Between two questions for the engine's load, which also find out that it is gone."""
_SOONER: Final = 5
"""So many times as often while others leave no room: whoever waits goes on when they end."""

_log = structlog.get_logger()


class TurnRunner(ModelThread):
    """Owns the engine from start() to stop()."""

    def __init__(
        self,
        engine: TurnEngine,
        sessions: TurnSessions,
        prefixes: CachedPrefixes,
        on_tick: Callable[[ModelTick], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        load_interval_s: float = LOAD_INTERVAL_S,
    ) -> None:
        """`clock` gives the seconds of all deadlines."""
        self._engine = engine
        self._sessions = sessions
        self._prefixes = prefixes
        self._on_tick = on_tick
        self._clock = clock
        self._load_interval_s = load_interval_s
        self._replies: dict[int, asyncio.Task[None]] = {}
        self._watching: list[asyncio.Task[None]] = []
        self._events: list[Event] = []
        self._is_due = False
        """Whether a report follows in this turn of the loop."""
        self._gathering: asyncio.TimerHandle | None = None
        """Reports what waits for more."""
        self._timer: asyncio.TimerHandle | None = None
        self._problem = "the engine has not started"
        self._is_lost = False

    @property
    def problem(self) -> str:
        """Why no session can be opened; empty if one can."""
        return self._problem

    def start(self) -> None:
        """Begin."""
        self._problem = ""
        self._watch(self._ask_load())
        if self._engine.info.tells_prefixes:
            self._watch(self._follow_prefixes())
        self._report_soon()

    async def stop(self) -> None:
        """End all replies and close the engine; sessions left are lost."""
        self._problem = self._problem or "the replica has stopped"
        tasks = [*self._watching, *self._replies.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._engine.close()
        except Exception:
            _log.exception("engine_not_closed")
        self._report(is_over=True)

    def open(self, request: OpenRequest) -> None:
        if self._problem:
            error = ReplicaLostError if self._is_lost else UnavailableError
            raise error(f"this replica takes no sessions: {self._problem}")
        self._add(self._sessions.open(request, self._clock()))
        self._begin()
        self._set_timer()

    def draft(self, session: int, draft: Draft) -> bool:
        """The engine verifies no drafts: they are dropped."""
        return True

    def cancel(self, session: int) -> None:
        self._add(self._sessions.cancel(session, self._clock()))
        self._begin()

    def load_blocks(self, command: LoadBlocks) -> bool:
        return False

    async def export_blocks(
        self, hashes: tuple[bytes, ...], *, takes_inexact: bool = False
    ) -> list[ExportedBlock]:
        return []

    async def keep_blocks(
        self, cache_salt: bytes, ids: tuple[int, ...], blocks: tuple[tuple[int, bytes], ...] = ()
    ) -> int | None:
        return None

    async def pin_blocks(self, hashes: tuple[bytes, ...]) -> list[NamedBlock]:
        return []

    async def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        return []

    def _begin(self) -> None:
        """Give the engine what it has room for."""
        turns, events = self._sessions.begin(self._clock())
        self._add(events)
        for turn in turns:
            task = asyncio.create_task(self._reply(turn), name=f"turn {turn.number}")
            self._replies[turn.number] = task
            task.add_done_callback(partial(self._replied, turn.number))

    def _replied(self, number: int, task: asyncio.Task[None]) -> None:
        self._replies.pop(number, None)

    async def _reply(self, turn: TurnRequest) -> None:
        """One reply, from the engine to the reports."""
        error: OutriderError | None = None
        try:
            async with aclosing(self._engine.reply(turn)) as pieces:
                if not self._engine.info.tells_prefixes:
                    self._prefixes.given(turn.ids, turn.salt)
                async for piece in pieces:
                    self._add(self._sessions.take(turn.number, piece, self._clock()))
                    if self._sessions.is_held:
                        self._begin()
        except ReplicaLostError as lost:
            self._lose(lost)
            return
        except OutriderError as failed:
            error = failed
        except Exception as defect:
            _log.exception("reply_failed")
            error = EngineError(f"the engine failed with {type(defect).__name__}")
        self._add(self._sessions.over(turn.number, error))
        self._begin()

    def _add(self, events: list[Event]) -> None:
        """Report these events with all others of this turn of the loop; end the replies of sessions
        that are over. Tokens behind a session's first may wait for those of others."""
        if not events:
            return
        self._events += events
        may_wait = True
        for event in events:
            may_wait &= isinstance(event, SessionCommit) and event.interval_ms > 0.0
            if isinstance(event, Finished | Failed):
                task = self._replies.get(event.session_id)
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
        gather_s = self._sessions.gather_s if may_wait else 0.0
        if not gather_s:
            self._report_soon()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(gather_s, self._report_soon)

    def _lose(self, error: ReplicaLostError) -> None:
        """The engine is gone, and with it all replies: the router moves their sessions."""
        if not self._problem:
            _log.error("engine_lost", engine=self._engine.info.name, error=error.message)
            self._problem = error.message
            self._is_lost = True
        self._add(self._sessions.fail_all(error))
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self, *, is_over: bool = False) -> None:
        self._is_due = False
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        events, self._events = tuple(self._events), []
        load = self._sessions.load()
        self._on_tick(
            ModelTick(
                events,
                load,
                0,
                blocks=self._prefixes.take(),
                problem=self._problem,
                over=is_over,
            )
        )

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._watching.append(asyncio.create_task(work))

    async def _ask_load(self) -> None:
        while not self._problem:
            try:
                self._sessions.engine_said(await self._engine.load())
            except ReplicaLostError as lost:
                self._lose(lost)
                return
            except OutriderError as failed:
                _log.warning("engine_load_unknown", error=failed.message)
            except Exception:
                _log.exception("engine_load_failed")
            self._report_soon()
            is_full = self._sessions.is_full_of_others
            await asyncio.sleep(self._load_interval_s / (_SOONER if is_full else 1))

    async def _follow_prefixes(self) -> None:
        try:
            async for event in self._engine.prefix_events():
                self._prefixes.told(event)
                self._report_soon()
        except Exception:
            _log.exception("prefix_events_failed")

    def _set_timer(self) -> None:
        """Wake at the next deadline."""
        deadline = self._sessions.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline < math.inf:
            delay_s = max(0.0, deadline - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._add(self._sessions.expire(self._clock()))
        with contextlib.suppress(UnavailableError):
            self._begin()
        self._set_timer()
