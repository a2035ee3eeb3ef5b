"""The model thread: the one place where scheduler and engine are touched.

One tick: take the commands, schedule, run the engine, verify. The engine waits for all of it
but the call itself, so what can wait is done while the next call computes: the events are handed to
the event loop then, which needs Python's lock for them and would get it in the middle of scheduling
otherwise. Without a next call they are handed over at once. The loop never waits for this thread
and this thread never waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import structlog

from outrider.engine_calls import SESSIONS_IN_CALL
from outrider.engines.base import Engine, LogitsRows
from outrider.errors import EngineError, OutriderError, OverloadedError, UnavailableError
from outrider.session.region import Draft
from outrider.speculation.learnt import Learnt
from services.inference.call_record import WorkRecord
from services.inference.kv.pool import NamedBlock
from services.inference.kv_transfer import (
    MAX_LOADED_BYTES,
    ExportBlocks,
    ExportedBlock,
    KeepBlocks,
    KvCommand,
    KvTransfer,
    LoadBlocks,
    PinBlocks,
)
from services.inference.model_thread import ModelThread, ModelTick
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Begun,
    Event,
    Failed,
    Finished,
    OpenRequest,
)

log = structlog.get_logger()

_T = TypeVar("_T")

MAX_COMMANDS = 4096
"""Commands that may wait for one tick; drafts beyond it are dropped, sessions refused."""
MAX_FAILURES = 3
"""Engine calls that may fail in a row before the replica stops taking sessions."""
_RETRY_S = 0.01
"""Pause before scheduling again when sessions are there but no batch could be made."""


@dataclass(frozen=True, slots=True)
class AddDraft:
    """Command: an edge's drafts for a session."""

    session_id: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Cancel:
    """Command: end a session."""

    session_id: int


@dataclass(frozen=True, slots=True)
class TakeLearnt:
    """Command: hand over copies of the statistics learned from groups' replies."""

    answer: Callable[[list[tuple[bytes, Learnt]]], None]
    """Called in the model thread."""


Command: TypeAlias = OpenRequest | AddDraft | Cancel | TakeLearnt | KvCommand


class Inbox:
    """Commands on their way to the model thread, from any thread."""

    def __init__(
        self, max_commands: int = MAX_COMMANDS, max_loaded_bytes: int = MAX_LOADED_BYTES
    ) -> None:
        self._max_commands = max_commands
        self._max_loaded_bytes = max_loaded_bytes
        self._commands: deque[Command] = deque()
        self._loaded_bytes = 0
        """Bytes of KV in these commands."""
        self._stopping = False
        self._filled = threading.Condition()

    def put(self, command: Command) -> bool:
        """Add a command; False if the inbox is full, of commands or of KV. A Cancel always fits:
        each session has at most one."""
        num_bytes = command.num_bytes if isinstance(command, LoadBlocks | KeepBlocks) else 0
        with self._filled:
            if len(self._commands) >= self._max_commands and not isinstance(command, Cancel):
                return False
            if num_bytes and self._loaded_bytes + num_bytes > self._max_loaded_bytes:
                return False
            self._commands.append(command)
            self._loaded_bytes += num_bytes
            self._filled.notify()
            return True

    def stop(self) -> None:
        """Make take() return None once all commands are taken."""
        with self._filled:
            self._stopping = True
            self._filled.notify()

    def take(self, timeout_s: float | None) -> list[Command] | None:
        """All commands, after waiting up to timeout_s (None: without end) for the first.

        None when there will be no more.
        """
        if timeout_s == 0.0 and not self._commands and not self._stopping:
            return []  # the usual case between two engine calls; what comes now waits for the next
        with self._filled:
            self._filled.wait_for(lambda: self._commands or self._stopping, timeout_s)
            if self._stopping and not self._commands:
                return None
            commands = list(self._commands)
            self._commands.clear()
            self._loaded_bytes = 0
            return commands


class CpuOverhead:
    """CPU time of the calling thread, pauses left out. One thread uses it.

    CPU time, not wall time: it hardly depends on what else the machine runs. Waiting for Python's
    lock while the event loop holds it is no CPU time and is not counted.
    """

    def __init__(self) -> None:
        self._begun = 0.0
        self._paused_s = 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing while the context lasts."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self._paused_s += time.thread_time() - begin

    def take_ms(self) -> float:
        """Milliseconds since the last take; since the thread began for the first."""
        now = time.thread_time()
        taken_ms = (now - self._begun - self._paused_s) * 1e3
        self._begun = now
        self._paused_s = 0.0
        return taken_ms


class EngineActivity:
    """How long the engine computed, and how long it waited although there were sessions."""

    def __init__(self) -> None:
        self._since = 0.0
        """End of the last call, or when there was something to do again after it."""
        self._busy_before_s = 0.0
        self._busy_s = 0.0
        self._idle_s = 0.0

    def resume(self, now: float) -> None:
        """There was nothing to do before `now`."""
        self._since = now

    def called(self, now: float, busy_s: float) -> None:
        """A call returned; the engine had computed for `busy_s` (Engine.busy_s) in all by then."""
        busy_s, self._busy_before_s = busy_s - self._busy_before_s, busy_s
        self._busy_s += busy_s
        self._idle_s += max(0.0, now - self._since - busy_s)
        self._since = now

    def take_s(self) -> tuple[float, float]:
        """Busy and idle seconds since the last take."""
        taken = self._busy_s, self._idle_s
        self._busy_s = self._idle_s = 0.0
        return taken


class ModelRunner(ModelThread):
    """Owns engine and scheduler from start() to stop(). Its methods are the event loop's."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        on_tick: Callable[[ModelTick], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_commands: int = MAX_COMMANDS,
        work: WorkRecord | None = None,
    ) -> None:
        """`on_tick` is called in the event loop; `clock` gives the seconds of all deadlines; `work`
        records the sessions and calls that the engine works on."""
        scheduler.record_blocks()
        self._engine = engine
        self._on_tick = on_tick
        self._inbox = Inbox(max_commands)
        work = work or WorkRecord(None, 0)
        self._new_thread = partial(_ModelThread, engine, scheduler, self._inbox, clock, work)
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()
        self._problem = "the model thread has not started"

    @property
    def problem(self) -> str:
        """Why no session can be opened; empty if one can."""
        return self._problem

    def start(self) -> None:
        """Begin. The running event loop gets the ticks."""
        loop = asyncio.get_running_loop()

        def post(tick: ModelTick) -> None:
            loop.call_soon_threadsafe(self._deliver, tick)

        model_thread = self._new_thread(post)
        self._problem = ""
        self._thread = threading.Thread(target=model_thread.run, name="model", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current tick and close the engine; sessions left are lost."""
        if self._thread is None:
            if not self._over.is_set():
                self._over.set()
                await asyncio.to_thread(_close_engine, self._engine)
            return
        self._inbox.stop()
        await self._over.wait()
        self._thread.join()

    def open(self, request: OpenRequest) -> None:
        if self._problem:
            raise UnavailableError(f"this replica takes no sessions: {self._problem}")
        if not self._inbox.put(request):
            raise OverloadedError("too many requests at once; come back later", retry_delay_ms=100)

    def draft(self, session: int, draft: Draft) -> bool:
        return self._inbox.put(AddDraft(session, draft))

    def cancel(self, session: int) -> None:
        self._inbox.put(Cancel(session))

    def load_blocks(self, command: LoadBlocks) -> bool:
        return self._inbox.put(command)

    async def export_blocks(
        self, hashes: tuple[bytes, ...], *, takes_inexact: bool = False
    ) -> list[ExportedBlock]:
        return await self._asked(partial(ExportBlocks, hashes, takes_inexact))

    async def pin_blocks(self, hashes: tuple[bytes, ...]) -> list[NamedBlock]:
        return await self._asked(partial(PinBlocks, hashes))

    async def keep_blocks(
        self, cache_salt: bytes, ids: tuple[int, ...], blocks: tuple[tuple[int, bytes], ...] = ()
    ) -> int | None:
        return next(iter(await self._asked(partial(KeepBlocks, cache_salt, ids, blocks))), None)

    async def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        return await self._asked(TakeLearnt)

    async def _asked(self, command: Callable[[Callable[[list[_T]], None]], Command]) -> list[_T]:
        """The model thread's answer; empty if it has ended or its inbox is full."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[list[_T]] = loop.create_future()

        def answer(copies: list[_T]) -> None:
            loop.call_soon_threadsafe(_answer, answered, copies)

        if self._thread is None or self._over.is_set() or not self._inbox.put(command(answer)):
            return []
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((answered, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        return answered.result() if answered.done() else []

    def _deliver(self, tick: ModelTick) -> None:
        # A replica that was given up is not taken back by a call that succeeds by chance.
        self._problem = tick.problem or self._problem
        if tick.over:
            self._over.set()
        self._on_tick(tick)


def _answer(answered: asyncio.Future[list[_T]], copies: list[_T]) -> None:
    if not answered.done():
        answered.set_result(copies)


class _ModelThread:
    """State of the model thread, and the loop that it runs."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        inbox: Inbox,
        clock: Callable[[], float],
        work: WorkRecord,
        post: Callable[[ModelTick], None],
    ) -> None:
        """`post` hands a tick to the event loop."""
        self._work = work
        self._at_work: tuple[int, ...] = ()
        """The sessions that are being worked on."""
        self._engine = engine
        self._scheduler = scheduler
        self._inbox = inbox
        self._clock = clock
        self._post = post
        self._num_failures = 0
        """Engine calls that failed in a row."""
        self._is_stuck = False
        """Whether sessions are there but the last tick could make no batch."""
        self._overhead = CpuOverhead()
        self._overhead_ms = 0.0
        """Milliseconds of processor time around the last call, known once the next one has
        begun."""
        self._activity = EngineActivity()
        self._events: list[Event] = []
        """Events not yet sent to the event loop."""
        self._num_scheduled = 0
        """Sessions of the last call, until they are reported to the event loop."""
        self._kv = KvTransfer(engine, scheduler)

    def run(self) -> None:
        problem = "the model thread has stopped"
        try:
            self._post(ModelTick((), self._scheduler.load(), 0))
            while (commands := self._inbox.take(wait_s := self._wait_s())) is not None:
                if wait_s != 0.0:
                    self._activity.resume(time.perf_counter())
                self._tick(commands)
            self._events += self._scheduler.take_committed()
        except Exception as error:
            log.exception("model_thread_failed")
            problem = f"the model thread failed with {type(error).__name__}"
            self._events += _failures(self._at_work, problem)
        finally:
            _close_engine(self._engine)
            load = self._scheduler.load()
            self._post(ModelTick(tuple(self._events), load, 0, problem=problem, over=True))

    def _wait_s(self) -> float | None:
        """Seconds to wait for commands; None: until one comes."""
        if not self._scheduler.has_work:
            return 0.0 if self._kv.exports else None
        return _RETRY_S if self._is_stuck else 0.0

    def _tick(self, commands: list[Command]) -> None:
        now = self._clock()
        for command in commands:
            self._at_work = (command.session_id,) if isinstance(command, OpenRequest) else ()
            self._events += self._execute(command, now)
        self._at_work = ()
        self._events += self._scheduler.expire(now)
        if self._kv.waiting:
            self._kv.load_waiting()
        batch = self._scheduler.schedule(now)
        self._is_stuck = batch is None
        if batch is None:
            if self._kv.exports:
                self._kv.export_some()
            self._report()
            return
        events = self._run(batch)  # reports, and empties, what was there before
        self._events += events
        self._num_scheduled = len(batch.slices) or self._num_scheduled
        if not self._scheduler.has_work or not batch.slices:
            self._overhead_ms = self._overhead.take_ms()
            self._report()

    def _execute(self, command: Command, now: float) -> list[Event]:
        try:
            if isinstance(command, OpenRequest):
                return self._scheduler.open(command, now)
            if isinstance(command, TakeLearnt):
                command.answer(self._scheduler.take_learnt())
                return []
            if isinstance(command, AddDraft):
                self._scheduler.draft(command.session_id, command.draft, now)
                return []
            if isinstance(command, Cancel):
                return self._scheduler.cancel(command.session_id, now)
            self._kv.execute(command)
            return []
        except OutriderError as error:
            if not isinstance(command, OpenRequest | AddDraft | Cancel):
                return []
            ended = self._scheduler.cancel(command.session_id, now)
            # What others have committed is told with it.
            return [
                *(it for it in ended if not isinstance(it, Finished)),
                Failed(command.session_id, error),
            ]

    def _run(self, batch: Batch) -> list[Event]:
        rows: list[LogitsRows] = []
        self._at_work = tuple([one.session.session_id for one in batch.scheduled])
        self._events += [Begun(session_id) for session_id in batch.begun]
        self._work.begin(batch.new_requests, len(batch.scheduled))
        try:
            batch.prepare(self._engine)
            if batch.slices:
                self._overhead_ms = self._overhead.take_ms()
                with self._overhead.paused():
                    rows = self._engine.step(batch.slices, self._overlapped_work)
                self._activity.called(time.perf_counter(), self._engine.busy_s)
                self._num_failures = 0
        except EngineError as error:
            self._num_failures += 1
            log.error("engine_call_failed", error=error.message, sessions=len(batch.slices))
            events = self._scheduler.fail(batch, error)
        else:
            events = self._scheduler.verify(batch, rows, self._clock())
        self._work.end()
        self._at_work = ()
        return events

    def _overlapped_work(self) -> None:
        """Do the work that was left for the time in which the engine computes."""
        if self._events or self._num_scheduled:
            self._report()
        self._scheduler.overlapped_work()
        if self._kv.exports:
            self._kv.export_some()

    def _report(self) -> None:
        events = (*self._events, *self._scheduler.take_committed())
        self._events = []
        num_scheduled, self._num_scheduled = self._num_scheduled, 0
        busy_s, idle_s = self._activity.take_s()
        problem = ""
        if self._num_failures >= MAX_FAILURES:
            problem = f"the engine failed {self._num_failures} times in a row; restart the replica"
        self._post(
            ModelTick(
                events,
                self._scheduler.load(),
                num_scheduled,
                overhead_ms=self._overhead_ms if num_scheduled else 0.0,
                busy_s=busy_s,
                idle_s=idle_s,
                blocks=self._scheduler.take_block_events(),
                problem=problem,
            )
        )


def _failures(sessions: tuple[int, ...], problem: str) -> list[Event]:
    """Failure events for the sessions that the thread worked on when it failed; other sessions get
    none."""
    counted = {SESSIONS_IN_CALL: str(len(sessions))}
    return [Failed(session, EngineError(problem, metadata=counted)) for session in sessions]


def _close_engine(engine: Engine) -> None:
    # Whatever is wrong with it: stop() waits for the last tick, which comes after this.
    try:
        engine.close()
    except Exception:
        log.exception("engine_not_closed")
