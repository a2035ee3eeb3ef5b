"""All live sessions of the replica, between the peers' streams and the model thread."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import structlog

from outrider.codec.tokens import TokenCodec
from outrider.engine_calls import SESSIONS_IN_CALL
from outrider.errors import (
    DuplicateSessionError,
    EngineError,
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
)
from outrider.fair_work.turns import Requester
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.region_wire import commit_bytes, session_bytes
from outrider.session.runs import check_run, replaced_error
from outrider.session.types import FinishReason, Timings, Usage
from outrider.telemetry import names
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics, state_rows
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import inference_pb2
from services.inference.call_record import Preparations, WorkRecord
from services.inference.kv_tiers.blocks import TRANSFERRED
from services.inference.kv_tiers.tiers import KvTiers
from services.inference.model_thread import ModelThread, ModelTick
from services.inference.scheduler.types import (
    NO_HITS,
    Begun,
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    OverloadLevel,
    SchedulerLoad,
    SessionCommit,
)
from services.inference.streaming import wire
from services.inference.streaming.telemetry import SessionTelemetry

RUNNING: Final = Family("outrider_sessions_running", "Sessions that run.")
QUEUED: Final = Family("outrider_sessions_queued", "Sessions that wait for room.")
PAUSED: Final = Family("outrider_sessions_paused", "Sessions that gave way to others for a while.")
OVERLOAD_LEVEL: Final = Family(
    "outrider_overload_level",
    "1 for the level of overload that the replica is at, 0 for the others.",
)
BLOCKS: Final = Family("outrider_kv_blocks", "Blocks of the KV cache, free or not.")
FREE_BLOCKS: Final = Family("outrider_kv_free_blocks", "Blocks of the KV cache that are free.")
KV_TOKENS: Final = Family(
    "outrider_kv_tokens",
    "Prompt tokens of sessions that have ended, by where their KV came from: device (the replica's "
    "own pool, static prefixes too), peer (another replica), redis (the prefix store), computed.",
)
DRAFTS_DROPPED: Final = Family(
    "outrider_draft_dropped_frames",
    "Frames of drafts that were dropped: too many at once.",
)

_log = structlog.get_logger()
_DRAIN_RETRY_MS = 1000
_MAX_EARLY_DRAFTS = 64
"""Most frames of drafts kept for a session whose grammar is being compiled."""


_UNLABELLED: Final = (
    *(names.DRAFTED_TOKENS, names.ACCEPTED_TOKENS, names.LOSSY_TOKENS, names.INEXACT_SESSIONS),
    *(names.PROMPT_TOKENS, names.REUSED_TOKENS, DRAFTS_DROPPED),
)


def _show_zeros(metrics: Metrics) -> None:
    for family in _UNLABELLED:
        metrics.from_zero(family)
    metrics.from_zero(names.ENGINE_TIME, "state", ("busy", "idle"))
    metrics.from_zero(TRANSFERRED, "direction", ("save", "load", "fetch", "serve"))


class ConstraintSource(Protocol):
    """Source of constraints of replies (grammars.service.Grammars)."""

    def kept(
        self, group: bytes, sampling: SamplingParams, prompt: Sequence[int]
    ) -> Constraint | None: ...

    async def constraint(
        self,
        group: bytes,
        sampling: SamplingParams,
        prompt: Sequence[int],
        requester: Requester,
    ) -> Constraint: ...


class Peer(Protocol):
    """The stream that a session was opened on."""

    def send(self, frame: wire.Down) -> None:
        """Queue a frame for the peer; a peer that does not read loses its sessions."""
        ...

    def ended(self, number: int) -> None:
        """The session of this number is over; its last frame is queued already."""
        ...


RequestName: TypeAlias = tuple[str, str]
"""Tenant and request id. Edges bind request ids to trust groups, so those of different tenants
never collide."""


@dataclass(frozen=True, slots=True)
class _RunningRequest:
    engine_session_id: int
    request: OpenRequest
    run: int


class RunningRequests:
    """The running requests that were not cancelled, each in one session only.

    A request that is opened again under the same name comes from its client, or from an edge or a
    router on its behalf: edges derive ids from a secret of the client. The recipient of the earlier
    session is then gone, noticed or not, and the newer session takes its place. But an edge that
    was cut off opens its run again without knowing that the client has gone on elsewhere: a run
    that is earlier than the running one is refused (outrider.session.runs). For another prompt the
    name proves nothing.
    """

    def __init__(self) -> None:
        self._running: dict[RequestName, _RunningRequest] = {}

    def __len__(self) -> int:
        return len(self._running)

    def earlier(self, name: RequestName, request: OpenRequest, run: int) -> int | None:
        """The engine session id that this run of a request takes the place of. Raises
        DuplicateSessionError if the name is another request's, or a later run has it."""
        running = self._running.get(name)
        if running is None:
            return None
        known = running.request
        if (known.prompt, known.sampling) != (request.prompt, request.sampling):
            raise DuplicateSessionError(
                f"another request runs under the id {name[1]}; cancel it or take a new id"
            )
        check_run(run, running.run)
        return running.engine_session_id

    def claim(self, name: RequestName, request: OpenRequest, run: int) -> None:
        """Mark the request as running, instead of any earlier one of its name."""
        self._running[name] = _RunningRequest(request.session_id, request, run)

    def release(self, name: RequestName, engine_session_id: int) -> None:
        """This session is over, or will be; a newer one keeps the name."""
        running = self._running.get(name)
        if running is not None and running.engine_session_id == engine_session_id:
            del self._running[name]


@dataclass(slots=True, eq=False)
class LiveSession:
    """One session of one peer."""

    engine_session_id: int
    """The session's id in the model thread."""
    upstream_session_id: int
    """The peer's number for it, on its stream."""
    peer: Peer
    request_name: RequestName
    request: OpenRequest
    codec: TokenCodec
    telemetry: SessionTelemetry
    opened_echo: wire.Echo
    """Number that SessionOpened returns."""
    commit_echo: wire.Echo = wire.NO_ECHO
    """Number that the next Commit returns."""
    is_waiting: bool = False
    """Whether its peer knows that no call computes it yet."""
    sent_pace: wire.SentPace | None = None
    """None: no drafts of the edge are used, so it need not know the replica's pace."""
    sends_accepted_ids: bool = False
    """Whether commits repeat the ids of accepted drafts."""
    cancelled: bool = False
    """Whether the model thread was told to end it."""
    checksum: int = 0
    """Checksum of the tokens committed so far."""
    has_token: bool = False
    early_drafts: list[Draft] | None = None
    """Drafts that came before the model thread knew the session; None: it knows it."""
    number_bytes: bytes = field(init=False)
    """`upstream_session_id` as frames to the peer begin with it."""

    def __post_init__(self) -> None:
        self.number_bytes = session_bytes(self.upstream_session_id)


class SessionTable:
    """Opens, routes and ends sessions. Every session gets exactly one last frame, unless its
    peer is gone."""

    def __init__(
        self,
        contract: wire.Contract,
        model: ModelThread,
        tiers: KvTiers,
        metrics: Metrics,
        *,
        max_sessions: int,
        grammars: ConstraintSource | None = None,
        engine_has_grammars: bool = False,
        preparations: Preparations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `max_sessions` share an engine call; `clock` is the model thread's. Without
        `grammars`, requests with one are refused, unless the `engine_has_grammars` of its own.
        `preparations` records requests whose grammar is being compiled."""
        self.contract = contract
        self.clock = clock
        self.load: SchedulerLoad | None = None
        """The latest; None before the first tick."""
        self.load_changed = asyncio.Event()
        """Set, and replaced by a fresh one, when `load` or `draining` changes."""
        self.is_stopping = False
        self.is_restarting = False
        """Whether the engine is lost: the process ends, and its supervisor starts another."""
        self._is_drained = False
        self.tiers = tiers
        self._model = model
        self._metrics = metrics
        self._running_gauge = metrics.gauge(RUNNING)
        self._queued_gauge = metrics.gauge(QUEUED)
        self._paused_gauge = metrics.gauge(PAUSED)
        self._overload_level = OverloadLevel.NORMAL
        self._overload_gauge = metrics.table(OVERLOAD_LEVEL)
        self._overload_gauge.set(state_rows(self._overload_level, {}))
        self._blocks_gauge = metrics.gauge(BLOCKS)
        self._free_blocks_gauge = metrics.gauge(FREE_BLOCKS)
        _show_zeros(metrics)
        metrics.show_model(contract.model)
        metrics.set_batch_utilization(0.0)
        self._kv_tokens = metrics.counter(KV_TOKENS)
        self._kv_hits = NO_HITS
        self._counted_tokens = {**NO_HITS.tiers(), **dict.fromkeys(tiers.sources, 0)}
        """For each tier, the value already counted."""
        for tier in self._counted_tokens:
            self._kv_tokens.add(0, {"tier": tier})
        self._max_sessions = max_sessions
        self._live: dict[int, LiveSession] = {}
        self._awaiting_usage: dict[int, SessionTelemetry] = {}
        """Telemetry of sessions that were ended on this side, until the model thread reports their
        usage."""
        self._refused = RefusalLog("sessions")
        self._running = RunningRequests()
        self._grammars = grammars
        self._engine_has_grammars = engine_has_grammars
        self._preparations = preparations or Preparations(WorkRecord(None, 0))
        self._compiling: dict[int, asyncio.Task[None]] = {}
        """Tasks of sessions that the model thread does not know yet, by engine session id."""
        self._engine_session_ids = itertools.count(1)
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._live)

    def open(
        self, peer: Peer, upstream_session_id: int, frame: inference_pb2.OpenSession
    ) -> LiveSession:
        """Hand a session to the model thread. Raises everything that can be wrong with it."""
        try:
            return self._open(peer, upstream_session_id, frame)
        except OutriderError as error:
            self._metrics.record_request(0.0, self.contract.model, error.reason)
            self._refused.note(error.reason)
            raise

    def _open(
        self, peer: Peer, upstream_session_id: int, frame: inference_pb2.OpenSession
    ) -> LiveSession:
        if self.draining:
            raise OverloadedError(
                "this replica takes no new sessions; open the session elsewhere",
                retry_delay_ms=_DRAIN_RETRY_MS,
                metadata={"draining": "true"},
            )
        engine_session_id = next(self._engine_session_ids)
        now = self.clock()
        request, codec = wire.open_request(engine_session_id, frame, self.contract, now)
        if salts := self.tiers.salts(frame.tenant):
            request = replace(request, static_salts=salts)
        name = (frame.tenant, frame.request_id)
        earlier = self._running.earlier(name, request, frame.run)
        request = self._with_kept_constraint(request)
        is_ready = self._engine_has_grammars or request.constraint is not None
        grammar = None if is_ready else request.sampling.grammar
        if earlier is not None:
            # First: the place that it leaves may be the only one.
            self.fail(self._live[earlier], replaced_error())
        if grammar is None:
            self._model.open(request)
        session = LiveSession(
            engine_session_id=engine_session_id,
            upstream_session_id=upstream_session_id,
            peer=peer,
            request_name=name,
            request=request,
            codec=codec,
            telemetry=SessionTelemetry(
                self._metrics,
                self.contract.model,
                frame.request_id,
                (frame.trace.traceparent, frame.trace.tracestate),
                self.clock,
                num_resumed=len(request.resume),
            ),
            opened_echo=wire.Echo(frame.echo, now),
            sent_pace=wire.SentPace() if request.edge_drafts else None,
            sends_accepted_ids=frame.echo_accepted,
            early_drafts=None if grammar is None else [],
            checksum=self.contract.coder.checksum(request.resume),
        )
        self._live[engine_session_id] = session
        self._running.claim(name, request, frame.run)
        self._idle.clear()
        if grammar is not None:
            whose = Requester.of(frame.tenant, frame.address_hash, frame.cache_salt)
            task = asyncio.create_task(self._open_compiled(session, request, grammar, whose))
            self._compiling[engine_session_id] = task
            task.add_done_callback(lambda _: self._compiling.pop(engine_session_id, None))
        return session

    def _with_kept_constraint(self, request: OpenRequest) -> OpenRequest:
        """Raises InvalidSamplingError where constraints are not known."""
        sampling = request.sampling
        if self._engine_has_grammars or not sampling.is_constrained:
            return request
        if self._grammars is None:
            raise InvalidSamplingError(
                "this replica supports neither grammars nor limits of reasoning; leave them out"
            )
        kept = self._grammars.kept(request.cache_salt, sampling, request.prompt)
        return replace(request, constraint=kept)

    async def _open_compiled(
        self, session: LiveSession, request: OpenRequest, grammar: Grammar, whose: Requester
    ) -> None:
        """Hand a session to the model thread once its grammar is compiled."""
        assert self._grammars is not None
        number = session.engine_session_id
        try:
            with self._preparations.of(request.request_key):
                constraint = await self._grammars.constraint(
                    request.cache_salt, request.sampling, request.prompt, whose
                )
            if number in self._live:
                self._model.open(replace(request, constraint=constraint))
        except OutriderError as error:
            self._refused.note(error.reason)
            self._end(session, error)
        except Exception as failure:
            # A defect ends this session, and no other one waits for it.
            _log.exception("grammar_failed", kind=grammar.kind)
            why = f"its grammar failed: {type(failure).__name__}"
            self._end(session, EngineError(why, metadata={SESSIONS_IN_CALL: "1"}))
        if number not in self._live:
            return
        early, session.early_drafts = session.early_drafts or [], None
        for drafts in early:
            self._draft(session, drafts)

    def keep_kv(self, session: int, frame: inference_pb2.KeepKv) -> None:
        """Copy KV ahead of need, if that can be done. `session` is served by another replica."""
        try:
            request = wire.keep_request(session, frame, self.contract)
        except OutriderError as error:
            self._refused.note(error.reason)
            return
        if request is not None and not self.draining:
            self.tiers.keep(request)

    def draft(self, session: LiveSession, frame: inference_pb2.Draft) -> None:
        """Pass drafts on. Raises BadTokenBlockError."""
        drafts = wire.draft_of(frame, self.contract)
        if frame.echo:
            session.commit_echo = wire.Echo(frame.echo, self.clock())
        self._draft(session, drafts)

    def _draft(self, session: LiveSession, drafts: Draft) -> None:
        early = session.early_drafts
        if early is not None and len(early) < _MAX_EARLY_DRAFTS:
            early.append(drafts)
        elif early is not None or not self._model.draft(session.engine_session_id, drafts):
            self._metrics.counter(DRAFTS_DROPPED).add(1)

    def cancel(self, session: LiveSession) -> None:
        """The peer asked to stop; its last frame will have the session's usage.

        The model thread is told once, so that a peer that keeps asking fills no memory.
        """
        if not session.cancelled and not self._stop(session):
            usage = Usage(prompt_tokens=len(session.request.prompt))
            upto = len(session.request.resume)
            number = session.engine_session_id
            self._end(session, Finished(number, FinishReason.CANCELLED, upto, usage, Timings()))

    def _stop(self, session: LiveSession) -> bool:
        """Compute nothing more for a session. False: the model thread does not know it, since its
        grammar was being compiled."""
        session.cancelled = True
        number = session.engine_session_id
        self._running.release(session.request_name, number)
        compiling = self._compiling.pop(number, None)
        if compiling is not None:
            compiling.cancel()
            return False
        self._model.cancel(number)
        return True

    def fail(self, session: LiveSession, error: OutriderError) -> None:
        """End a live session from this side: free its KV, tell its peer."""
        if session.engine_session_id in self._live:
            self._give_up(session)
            self._end(session, error)

    def abandon(self, session: LiveSession, error: OutriderError) -> None:
        """End a session whose peer is gone."""
        if self._forget(session):
            self._give_up(session)
            session.telemetry.failed(error)
            session.peer.ended(session.upstream_session_id)

    def on_tick(self, tick: ModelTick) -> None:
        """Take the events of one tick of the model thread."""
        self.load = tick.load
        begun = {event.session_id for event in tick.events if isinstance(event, Begun)}
        for event in tick.events:
            session = self._live.get(event.session_id)
            if session is not None:
                if isinstance(event, Opened):
                    session.is_waiting = event.session_id not in begun
                self._emit(session, event, tick.load)
            else:
                self._record_late_usage(event)
        if tick.problem and not self.is_stopping:
            self.is_restarting = True
        if tick.over:
            self._lose_all(tick.problem)
        self._measure(tick)
        self.announce()

    @property
    def draining(self) -> bool:
        """Whether it takes no new sessions."""
        return self.is_stopping or self._is_drained

    def set_drained(self, *, drained: bool) -> None:
        """An operator wants no new sessions here for a while, or wants them again."""
        if drained != self._is_drained:
            _log.info("operator_drain", drained=drained, live=len(self._live))
            self._is_drained = drained
            self.announce()

    async def drain(self, limit_s: float) -> None:
        """Take no new sessions, and wait for the live ones up to the limit."""
        self.is_stopping = True
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
        """Wake watchers of the load."""
        self.load_changed.set()
        self.load_changed = asyncio.Event()

    def _emit(self, session: LiveSession, event: Event, load: SchedulerLoad) -> None:
        if isinstance(event, SessionCommit):
            commit = event.commit
            if not session.has_token:
                session.has_token = True
                self.tiers.first_token(session.engine_session_id)
            ids = (*commit.accepted_ids, *commit.ids) if commit.accepted_ids else commit.ids
            session.checksum = self.contract.coder.checksum(ids, session.checksum)
            session.telemetry.committed(commit)
            pace = None
            if session.sent_pace is not None:
                echo, session.commit_echo = session.commit_echo, wire.NO_ECHO
                pace = session.sent_pace.update(event, load, self.contract, echo, self.clock())
            frame = commit_bytes(
                commit,
                self.contract.coder,
                session.codec,
                pace=pace,
                sends_accepted_ids=session.sends_accepted_ids,
            )
            session.peer.send(session.number_bytes + frame)
        elif isinstance(event, Opened):
            self.tiers.opened(session.request, event.cached_tokens, load.row_ms)
            opened = wire.opened_frame(
                session.upstream_session_id, event, self.contract, session.codec
            )
            opened.opened.waiting = session.is_waiting
            opened.opened.echo = session.opened_echo.number
            opened.opened.ack_delay_ms = session.opened_echo.delay_s(self.clock()) * 1e3
            session.peer.send(opened)
        elif isinstance(event, Begun):
            if session.is_waiting:
                session.is_waiting = False
                session.peer.send(wire.begun_frame(session.upstream_session_id))
        elif isinstance(event, Finished):
            self._end(session, event)
        elif isinstance(event, Failed):
            self._end(session, event.error)

    def _end(self, session: LiveSession, how: Finished | OutriderError) -> None:
        """Forgotten before its last frame is sent: sending may close the peer's stream."""
        if not self._forget(session):
            return
        if isinstance(how, Finished):
            session.telemetry.finished(how)
            session.peer.send(wire.done_frame(session.upstream_session_id, how, session.checksum))
        else:
            session.telemetry.failed(how)
            session.peer.send(wire.error_frame(session.upstream_session_id, how))
        session.peer.ended(session.upstream_session_id)

    def _give_up(self, session: LiveSession) -> None:
        if session.cancelled or self._stop(session):
            self._awaiting_usage[session.engine_session_id] = session.telemetry

    def _record_late_usage(self, event: Event) -> None:
        if not isinstance(event, Finished | Failed):
            return
        telemetry = self._awaiting_usage.pop(event.session_id, None)
        if telemetry is not None and isinstance(event, Finished):
            telemetry.record_usage(event)

    def _lose_all(self, problem: str) -> None:
        self._awaiting_usage.clear()
        error = EngineError(f"{problem}; open the session on another replica")
        for session in list(self._live.values()):
            self._end(session, error)

    def _forget(self, session: LiveSession) -> bool:
        """False if it had ended already."""
        if self._live.pop(session.engine_session_id, None) is None:
            return False
        self._running.release(session.request_name, session.engine_session_id)
        self.tiers.ended(session.engine_session_id)
        if not self._live:
            self._idle.set()
        return True

    def _measure(self, tick: ModelTick) -> None:
        load = tick.load
        if tick.num_scheduled:
            self._metrics.set_batch_utilization(tick.num_scheduled / self._max_sessions)
            self._metrics.record_tick_overhead(tick.overhead_ms)
            self._metrics.record_engine_time(tick.busy_s, tick.idle_s)
        self._running_gauge.set(load.running_sessions)
        self._queued_gauge.set(load.queued_sessions)
        self._paused_gauge.set(load.paused_sessions)
        if load.overload_level != self._overload_level:
            self._overload_level = OverloadLevel(load.overload_level)
            self._overload_gauge.set(state_rows(self._overload_level, {}))
        self._blocks_gauge.set(load.kv_blocks_total)
        self._free_blocks_gauge.set(load.kv_blocks_free)
        if load.kv_hits != self._kv_hits:
            self._kv_hits = load.kv_hits
            for tier, num_tokens in load.kv_hits.tiers().items():
                counted = self._counted_tokens.get(tier, 0)
                self._kv_tokens.add(max(0, num_tokens - counted), {"tier": tier})
                self._counted_tokens[tier] = max(num_tokens, counted)
