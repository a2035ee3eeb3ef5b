"""Every live session of the replica, between the peers' streams and the model thread."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from outrider.codec.tokens import TokenCodec
from outrider.errors import DuplicateSessionError, EngineError, OutriderError, OverloadedError
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import inference_pb2
from services.inference.runner import Tick
from services.inference.scheduler.types import (
    Committed,
    Drafts,
    Event,
    Failed,
    Finished,
    Load,
    Opened,
    OpenRequest,
)
from services.inference.streaming import wire
from services.inference.streaming.names import Name, RunningNames
from services.inference.streaming.telemetry import SessionRecord

RUNNING: Final = "outrider.sessions.running"
QUEUED: Final = "outrider.sessions.queued"
PAUSED: Final = "outrider.sessions.paused"
OVERLOAD_LEVEL: Final = "outrider.overload.level"
FREE_BLOCKS: Final = "outrider.kv.free_blocks"
DRAFTS_DROPPED: Final = "outrider.draft.dropped_frames"

_DRAIN_RETRY_MS = 1000


class Model(Protocol):
    """The model threads as the loop sees them (runner.ModelRunner, instances.fleet.Fleet)."""

    def open(self, request: OpenRequest) -> None: ...

    def draft(self, session: int, drafts: Drafts) -> bool: ...

    def cancel(self, session: int) -> None: ...


class Peer(Protocol):
    """The stream a session lives on."""

    def send(self, frame: inference_pb2.SessionDown) -> None:
        """Queue a frame for the peer; a peer that does not read loses its sessions."""
        ...

    def ended(self, number: int) -> None:
        """The session of this number is over; its last frame is queued already."""
        ...


@dataclass(slots=True, eq=False)
class LiveSession:
    """One session; `key` is the model thread's number, `number` the peer's."""

    key: int
    number: int
    peer: Peer
    name: Name
    codec: TokenCodec
    record: SessionRecord
    opening: wire.Echo
    """What SessionOpened is to return."""
    drafting: wire.Echo = wire.NO_ECHO
    """What the next Commit is to return."""
    echoes: bool = False
    """Whether the peer wants to be told accepted drafts."""
    cancelled: bool = False
    """Whether the model thread was told to end it."""


class SessionTable:
    """Opens, routes and ends sessions. Every session gets exactly one last frame, unless its
    peer is gone."""

    def __init__(
        self,
        contract: wire.Contract,
        metrics: Metrics,
        *,
        max_sessions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_sessions` share an engine call at most; `clock` is the model thread's."""
        self.contract = contract
        self.clock = clock
        self.load: Load | None = None
        """The latest; None before the first tick."""
        self.load_changed = asyncio.Event()
        """Set, and replaced by a fresh one, when `load` or `draining` changes."""
        self.draining = False
        self._model: Model | None = None
        self._metrics = metrics
        self._max_sessions = max_sessions
        self._live: dict[int, LiveSession] = {}
        self._given_up: dict[int, SessionRecord] = {}
        """Of sessions ended from this side; the model thread is still to say what they took."""
        self._refused = RefusalLog("sessions")
        self._running = RunningNames()
        self._keys = itertools.count(1)
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._live)

    def attach(self, model: Model) -> None:
        """Name the model thread, before the first stream."""
        self._model = model

    def open(self, peer: Peer, number: int, frame: inference_pb2.OpenSession) -> LiveSession:
        """Hand a session to the model thread. Raises everything that can be wrong with it."""
        try:
            return self._open(peer, number, frame)
        except OutriderError as error:
            self._metrics.record_request(0.0, self.contract.model, error.reason)
            self._refused.note(error.reason)
            raise

    def _open(self, peer: Peer, number: int, frame: inference_pb2.OpenSession) -> LiveSession:
        if self.draining:
            raise OverloadedError(
                "this replica is shutting down; open the session elsewhere",
                retry_delay_ms=_DRAIN_RETRY_MS,
                metadata={"draining": "true"},
            )
        key, now, name = next(self._keys), self.clock(), (frame.tenant, frame.request_id)
        request, codec = wire.open_request(key, frame, self.contract, now)
        earlier = self._running.earlier(name, request)
        assert self._model is not None
        self._model.open(request)
        record, echo = self._record(frame, request), wire.Echo(frame.echo, now)
        echoes = frame.echo_accepted
        session = LiveSession(key, number, peer, name, codec, record, echo, echoes=echoes)
        self._live[key] = session
        self._running.claim(name, request)
        self._idle.clear()
        if earlier is not None:
            taken = DuplicateSessionError("the request was opened again, and goes on there")
            self.fail(self._live[earlier], taken)
        return session

    def draft(self, session: LiveSession, frame: inference_pb2.Draft) -> None:
        """Pass guesses on. Raises BadTokenBlockError."""
        assert self._model is not None
        drafts = wire.drafts_of(frame, self.contract)
        if frame.echo:
            session.drafting = wire.Echo(frame.echo, self.clock())
        if not self._model.draft(session.key, drafts):
            self._metrics.counter(DRAFTS_DROPPED).add(1)

    def cancel(self, session: LiveSession) -> None:
        """The peer asked to stop; its last frame will say how far the session came.

        The model thread is told once: a peer that goes on asking fills no memory."""
        assert self._model is not None
        if not session.cancelled:
            session.cancelled = True
            self._running.release(session.name, session.key)
            self._model.cancel(session.key)

    def fail(self, session: LiveSession, error: OutriderError) -> None:
        """End a session from this side: free its KV, tell its peer."""
        self._give_up(session)
        self._end(session, error)

    def abandon(self, session: LiveSession, error: OutriderError) -> None:
        """End a session whose peer is gone."""
        if self._forget(session):
            self._give_up(session)
            session.record.failed(error)
            session.peer.ended(session.number)

    def on_tick(self, tick: Tick) -> None:
        """Take the model thread's news."""
        self.load = tick.replica_load
        for event in tick.events:
            session = self._live.get(event.session)
            if session is not None:
                self._emit(session, event, tick.load)
            else:
                self._settle(event)
        if tick.over:
            self._lose_all(tick.problem)
        self._measure(tick)
        self.announce()

    async def drain(self, limit_s: float) -> None:
        """Take no new sessions, and wait for the live ones up to the limit."""
        self.draining = True
        self.announce()
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return

    def fail_all(self, error: OutriderError) -> None:
        """End every session."""
        for session in list(self._live.values()):
            self.fail(session, error)

    def announce(self) -> None:
        """Wake those who watch the load."""
        self.load_changed.set()
        self.load_changed = asyncio.Event()

    def _record(self, frame: inference_pb2.OpenSession, request: OpenRequest) -> SessionRecord:
        trace = (frame.trace.traceparent, frame.trace.tracestate)
        return SessionRecord(
            self._metrics,
            self.contract.model,
            frame.request_id,
            trace,
            self.clock,
            num_resumed=len(request.resume),
        )

    def _emit(self, session: LiveSession, event: Event, load: Load) -> None:
        number, codec = session.number, session.codec
        if isinstance(event, Committed):
            session.record.committed(event)
            echo, session.drafting = session.drafting, wire.NO_ECHO
            frame = wire.commit_frame(number, event, self.contract, codec, echoes=session.echoes)
            frame.commit.pace.CopyFrom(self._pace(event, load, echo))
            session.peer.send(frame)
        elif isinstance(event, Opened):
            frame = wire.opened_frame(number, event, self.contract, codec)
            session.opening.put(frame.opened, self.clock())
            session.peer.send(frame)
        elif isinstance(event, Finished):
            self._end(session, event)
        elif isinstance(event, Failed):
            self._end(session, event.error)

    def _pace(self, event: Committed, load: Load, echo: wire.Echo) -> inference_pb2.Pace:
        pace = wire.pace_of(event, load, self.contract)
        echo.put(pace, self.clock())
        return pace

    def _end(self, session: LiveSession, how: Finished | OutriderError) -> None:
        """Forgotten before its last frame is sent: sending may close the peer's stream."""
        if not self._forget(session):
            return
        if isinstance(how, Finished):
            session.record.finished(how)
            session.peer.send(wire.done_frame(session.number, how))
        else:
            session.record.failed(how)
            session.peer.send(wire.error_frame(session.number, how))
        session.peer.ended(session.number)

    def _give_up(self, session: LiveSession) -> None:
        self.cancel(session)
        self._given_up[session.key] = session.record

    def _settle(self, event: Event) -> None:
        if not isinstance(event, Finished | Failed):
            return
        record = self._given_up.pop(event.session, None)
        if record is not None and isinstance(event, Finished):
            record.used(event)

    def _lose_all(self, problem: str) -> None:
        self._given_up.clear()
        error = EngineError(f"{problem}; open the session on another replica")
        for session in list(self._live.values()):
            self._end(session, error)

    def _forget(self, session: LiveSession) -> bool:
        """False if it had ended already."""
        if self._live.pop(session.key, None) is None:
            return False
        self._running.release(session.name, session.key)
        if not self._live:
            self._idle.set()
        return True

    def _measure(self, tick: Tick) -> None:
        load = tick.replica_load
        if tick.num_rounds:
            self._metrics.set_batch_utilization(tick.num_rounds / self._max_sessions)
            self._metrics.record_tick_overhead(tick.overhead_ms)
        gauges = self._metrics.gauge
        gauges(RUNNING).set(load.running_sessions)
        gauges(QUEUED).set(load.queued_sessions)
        gauges(PAUSED).set(load.paused_sessions)
        gauges(OVERLOAD_LEVEL).set(load.overload_level)
        gauges(FREE_BLOCKS).set(load.kv_blocks_free)
