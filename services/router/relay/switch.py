"""Moves session frames between edges and replicas, as the session table decides. No I/O, no clock.

Nothing here waits. A full outbox drops drafts, which are guesses, moves opens elsewhere, and ends
the sessions of an edge that does not read; it never delays another edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from outrider.engine_calls import Crash
from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    EngineError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
    VocabularyMismatchError,
)
from outrider.model_identity import same_model
from outrider.session.region_wire import resumable_tokens
from outrider.session.runs import replaced_error
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import GrpcCode, error_from_proto, error_to_proto
from services.router.admission.admission import Admission
from services.router.fleet.registry import Registry
from services.router.placement.types import RETRY_DELAY_MS
from services.router.relay import frames
from services.router.relay.dispatch import Dispatch
from services.router.relay.failover import Failover
from services.router.relay.frames import Down, RelayedSession, Up
from services.router.relay.intake import Intake
from services.router.relay.received_prompts import ReceivedPrompts
from services.router.relay.replica_monitor import Departure, ReplicaMonitor
from services.router.relay.sessions import (
    SessionAction,
    SessionInput,
    SessionState,
    SessionTable,
)

if TYPE_CHECKING:
    from outrider.rpc import Outbox
    from services.router.relay.telemetry import SessionTelemetry

_REPLICA_INPUTS: Final = {
    "opened": SessionInput.OPENED,
    "done": SessionInput.DONE,
    "error": SessionInput.ERROR,
}
_PROMPT_S: Final = 10.0
"""Seconds that a session waits for a prompt that its edge was asked for."""
_REFUSALS: Final = frozenset({GrpcCode.RESOURCE_EXHAUSTED, GrpcCode.UNAVAILABLE})
"""A replica that ends a session with one of these did not take it: another one may."""


@dataclass(slots=True)
class _EdgeStream:
    outbox: Outbox[Down]
    is_half_closed: bool = False
    """The edge sends nothing more: the stream ends with the last of its sessions."""


class Switch:
    """All relayed sessions of one router. Verbs are called by the shells with data and `now`."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        admission: Admission,
        telemetry: SessionTelemetry,
        intake: Intake,
        monitor: ReplicaMonitor,
        failover: Failover,
        prompts: ReceivedPrompts,
        *,
        default_model: Callable[[], str],
        tokenize: Callable[[RelayedSession], Callable[[], object]],
        schedule_retry: Callable[[], None],
        tokenize_s: float = 30.0,
    ) -> None:
        """`default_model` returns the model of a session that names none. `tokenize` is called for
        sessions with messages; `tokenized` or `fail` has to be called within `tokenize_s`, or the
        session ends. It returns what gives the work up, for a session that ends before.
        `schedule_retry` asks for a call of `retry` once the event loop has done its other work."""
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._admission = admission
        self._telemetry = telemetry
        self._intake = intake
        self._monitor = monitor
        self._failover = failover
        self._prompts = prompts
        self._default_model = default_model
        self._tokenize = tokenize
        self._schedule_retry = schedule_retry
        self._tokenize_s = tokenize_s
        self._without_ids: dict[int, tuple[RelayedSession, float, Callable[[], object]]] = {}
        """Sessions whose messages are being tokenized, by router session id, each with its
        deadline, and what gives the work up."""
        self._edges: dict[int, _EdgeStream] = {}

    # --- the two sides come and go ---

    def attach_edge(self, outbox: Outbox[Down]) -> int:
        """A new edge stream; its number for the other verbs."""
        edge_stream = self._table.attach_edge()
        self._edges[edge_stream] = _EdgeStream(outbox)
        return edge_stream

    def half_close_edge(self, edge_stream: int) -> None:
        """The edge sends nothing more: its outbox closes after the last of its sessions."""
        self._edges[edge_stream].is_half_closed = True
        self._close_if_over(edge_stream)

    def detach_edge(self, edge_stream: int, now: float) -> None:
        """An edge stream ended: its sessions are cancelled all the way down."""
        for session in self._table.edge_sessions(edge_stream):
            why = frames.cancelled("the edge's stream ended")
            self._advance(session, SessionInput.EDGE_LOST, now, error=why)
        self._table.detach_edge(edge_stream)
        del self._edges[edge_stream]

    def replica_connected(
        self, replica: str, process: bytes, crashes: Sequence[Crash], now: float
    ) -> None:
        """Take the id of a replica's process and the crashes of earlier ones, which explain its
        losses. Call it before `attach_replica`."""
        self._failover.explained(replica, process, crashes, now)

    def attach_replica(self, replica: str, outbox: Outbox[Up]) -> int:
        """A replica's stream is up; its number for the other verbs."""
        if len(self._failover) or self._intake.num_waiting:
            self._schedule_retry()
        return self._dispatch.attach(replica, outbox)

    def detach_replica(
        self, replica: str, stream: int, now: float, *, is_own: bool = False
    ) -> None:
        """Move the sessions of a replica whose stream broke. `is_own`: this router caused it, or
        the replica was replaced (`from_replica`); neither is evidence against any session."""
        self._dispatch.detach(stream)
        self._intake.refresh(now)
        self._depart(self._monitor.detached(replica, stream, now, is_own=is_own), now)

    def reported(self, now: float) -> None:
        """Record that a replica reported its load: there may be room for waiting sessions."""
        if self._intake.is_retry_due(now):
            self._schedule_retry()

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self._intake.drain()

    def close_edges(self) -> None:
        """End every edge stream after sending what is queued for it."""
        for edge in self._edges.values():
            edge.outbox.close()

    def expire(self, now: float) -> None:
        """Do the work that only depends on time, ten times a second: end cancelled sessions whose
        replica never confirmed and those that waited too long, move those of replicas that hang."""
        self._end(((session, frames.cancelled()) for session in self._table.expire(now)), now)
        self._depart(self._monitor.check(now), now)
        for session in self._prompts.expire(now):
            error = MalformedFrameError("the whole prompt was asked for but did not arrive")
            self._advance(session, SessionInput.ABORT, now, error=error)
        self._end(self._untokenized(now), now)
        self._end(self._intake.expire(now), now)
        self.retry(now)

    def retry(self, now: float) -> None:
        """Sessions that wait for a replica try again, those that lost theirs first."""
        self._retry_moves(now)
        self._end(self._intake.retry(now), now)

    # --- frames of an edge ---

    def from_edge(self, edge_stream: int, received: Iterable[Up], now: float) -> None:
        """Take frames, one after the other. Raises MalformedFrameError at the first that names no
        session."""
        for frame in received:
            edge_session_id = frame.session
            if not edge_session_id:
                raise MalformedFrameError("a frame names no session; number sessions from 1")
            kind = frame.WhichOneof("kind")
            if kind == "open":
                # A copy of its own: it is kept, and the rest of its message is not.
                opened = Up()
                opened.CopyFrom(frame)
                self._open(edge_stream, edge_session_id, opened, now)
                continue
            session = self._table.of_edge(edge_stream, edge_session_id)
            if session is not None:  # otherwise it ended while the frame was under way
                self._from_edge(session, frame, kind, now)

    def _from_edge(self, session: RelayedSession, frame: Up, kind: str | None, now: float) -> None:
        frame.session = session.upstream_session_id
        if kind == "draft":
            epoch = frame.draft.epoch
            self._table.begin_epoch(session, epoch)
            if epoch > session.void_epoch:
                self._advance(session, SessionInput.DRAFT, now, up=frame)
        elif kind == "cancel":
            self._advance(session, SessionInput.CANCEL, now, up=frame, error=frames.cancelled())
        elif kind == "prompt":
            self._prompt_came(session, frame.prompt, now)
        else:
            error = MalformedFrameError(
                "a frame is neither open, draft, cancel nor prompt; send one"
            )
            self._advance(session, SessionInput.ABORT, now, error=error)

    def _open(self, edge_stream: int, edge_session_id: int, frame: Up, now: float) -> None:
        opening = frame.open
        opening.model = opening.model or self._default_model()
        ids = self._completed(opening)
        try:
            session = self._intake.open(edge_stream, edge_session_id, frame, now)
        except DuplicateSessionError as error:
            # The edge takes an error as the end of the session of that number, so it has to be.
            first = self._table.of_edge(edge_stream, edge_session_id)
            assert first is not None, "a duplicate has a first"
            self._advance(first, SessionInput.ABORT, now, error=error)
            return
        except OutriderError as error:
            self._telemetry.refused(error)
            self._answer(edge_stream, edge_session_id, error)
            return
        self._monitor.opened(session, now)
        self._telemetry.opened(session.router_session_id, opening, now)
        try:
            older = self._intake.runs.began(session)
        except DuplicateSessionError as error:
            self._advance(session, SessionInput.ABORT, now, error=error)
            return
        if older is not None:
            self._advance(older, SessionInput.ABORT, now, error=replaced_error())
        opening.echo_accepted = True  # to know what is committed
        if opening.WhichOneof("prompt") == "messages" and opening.messages.messages:
            until = now + self._tokenize_s
            if session.request.deadline_at is not None:
                until = min(until, session.request.deadline_at)
            give_up = self._tokenize(session)
            self._without_ids[session.router_session_id] = session, until, give_up
        elif ids is None:
            opening.echo = 0  # the way back and forth would count twice
            self._prompts.want(session, now + _PROMPT_S)
            unknown = Down(session=edge_session_id, prompt_unknown=inference_pb2.PromptUnknown())
            self._send_down(session, unknown, now)
        else:
            self._place(session, ids, now)

    def _completed(self, opening: inference_pb2.OpenSession) -> bytes | None:
        """The ids of a prompt, as far as they can be read; None: it has to come whole."""
        if not opening.HasField("ids"):
            return b""
        num_left_out = opening.ids.prefix_tokens
        ids = self._prompts.complete(opening)
        if num_left_out:
            self._telemetry.left_out(num_left_out, is_known=ids is not None)
        return ids

    def _place(self, session: RelayedSession, ids: bytes, now: float) -> None:
        """`ids` of its prompt, b"" if they cannot be read."""
        self._prompts.opened(session, ids)
        self._admit(session, ids, now)

    def _admit(self, session: RelayedSession, ids: bytes | None, now: float) -> None:
        """`ids`: as in `Intake.place`."""
        self._end(self._intake.place(session, now, ids), now)
        if self._intake.is_waking(session) and session.open_frame.open.knows_waking:
            waking = inference_pb2.SessionWaking()
            self._send_down(session, Down(session=session.edge_session_id, waking=waking), now)

    def _prompt_came(
        self, session: RelayedSession, prompt: inference_pb2.PromptDelta, now: float
    ) -> None:
        """The whole prompt of a session that left out what was not known here."""
        opening = session.open_frame.open if session.replay else None
        if not self._prompts.came(session) or prompt.prefix_tokens or opening is None:
            error = MalformedFrameError("a prompt is incomplete, or was not asked for")
            self._advance(session, SessionInput.ABORT, now, error=error)
            return
        opening.ids.CopyFrom(prompt)
        if self._has_prompt(session, now):
            self._place(session, self._prompts.complete(opening) or b"", now)

    def _has_prompt(self, session: RelayedSession, now: float) -> bool:
        """Take the prompt that a session to be placed now has; False if there is no room for it,
        which ends the session."""
        frame = session.open_frame
        session.request = frames.with_prompt(session.request, frame.open)
        try:
            self._table.resized(session, frame.ByteSize())
        except OutriderError as error:
            self._advance(session, SessionInput.ABORT, now, error=error)
            return False
        return True

    def tokenized(
        self, session: RelayedSession, block: common_pb2.TokenBlock, digest: bytes, now: float
    ) -> None:
        """The messages of a session became ids."""
        self._without_ids.pop(session.router_session_id, None)
        if session.state is not SessionState.PLACING:
            return  # it ended meanwhile
        opening = session.open_frame.open
        opening.ids.tail.CopyFrom(block)
        opening.vocabulary_digest = digest
        if self._has_prompt(session, now):
            self._admit(session, None, now)

    def fail(self, session: RelayedSession, error: OutriderError, now: float) -> None:
        """The messages of a session could not become ids."""
        self._without_ids.pop(session.router_session_id, None)
        if session.state is SessionState.PLACING:
            self._advance(session, SessionInput.ABORT, now, error=error)

    def _untokenized(self, now: float) -> list[tuple[RelayedSession, OutriderError]]:
        """Sessions that wait for their ids in vain."""
        late = [session for session, until, _ in self._without_ids.values() if until <= now]
        return [(session, _no_ids(session, now)) for session in late]

    # --- frames of a replica ---

    def from_replica(self, stream: int, received: Iterable[Down], now: float) -> bool:
        """Take frames in order; those of sessions that ended or moved are dropped.

        Returns False, without taking the rest, if a frame shows that another process than the one
        that reported its model answers: everything known of the replica is void, so its stream has
        to be closed and its model asked for again.
        """
        has_heard = False
        sessions = self._table.on_stream(stream)
        for frame in received:
            session = sessions.get(frame.session)
            if session is None:
                continue
            if frame.HasField("commit"):
                self._committed(session, frame, now)
            elif frame.HasField("begun"):
                session.losses.is_waiting = False
            elif (event := _REPLICA_INPUTS.get(frame.WhichOneof("kind") or "")) is None:
                continue
            elif not self._from_replica(session, event, frame, now):
                return False
            session.heard_at = now
            has_heard = True
        if has_heard:
            self._monitor.heard(stream, now)
            if self._failover.is_due:
                self._schedule_retry()
        return True

    def _from_replica(
        self, session: RelayedSession, event: SessionInput, frame: Down, now: float
    ) -> bool:
        """All but commits. False: as `from_replica`."""
        if event is SessionInput.OPENED:
            opened = frame.opened
            if opened.model_identity != self._registry[session.replica].model_identity:
                self._registry.contradicted(session.replica, opened.model_identity, now)
                return False
            session.opened_identity = opened.model_identity
            ack_delay_ms = opened.ack_delay_ms
            self._registry.opened(session.replica, session.router_session_id, ack_delay_ms, now)
            session.losses.is_waiting = opened.waiting
            if not self._table.announce(session):
                frame = frames.session_moved(opened, session)
        frame.session = session.edge_session_id
        if event is SessionInput.ERROR:
            self._failed(session, frame, now)
            return True
        if event is SessionInput.DONE:
            cost = self._admission.cost(session.router_session_id, session.num_committed)
            frames.complete_done(frame.done, session, cost, now)
            self._intake.done(session, frame.done.usage, now)
            self._prompts.replied(session, frame.done)
        self._advance(session, event, now, down=frame)
        return True

    def _committed(self, session: RelayedSession, frame: Down, now: float) -> None:
        commit = frame.commit
        tokens = resumable_tokens(commit, session.num_committed)
        if commit.accepted:
            commit.ClearField("accepted_ids")  # the edge has them
        frame.session = session.edge_session_id
        if session.committed_as != session.upstream_session_id:
            self._bind_model(session)
        self._table.commit(session, commit.upto, tokens)
        if session.first_token_at is None:
            session.first_token_at = now
            self._intake.first_token(session, now)
        if not session.losses.is_proven:
            self._failover.first_token(session, now)
            self._registry.served(session.replica, session.router_session_id, now)
        if session.state is SessionState.STREAMING:
            self._send_down(session, frame, now)  # as the table of transitions has it
        else:
            self._advance(session, SessionInput.COMMIT, now, down=frame)

    def _bind_model(self, session: RelayedSession) -> None:
        """Bind a session to the model identity of its replica, which sent the first tokens: only
        that identity may continue the reply."""
        identity = session.opened_identity
        if session.num_committed and not same_model(session.model_identity, identity):
            self._telemetry.inexact(session.replica, session.model_identity, identity)
        session.model_identity = identity
        session.committed_as = session.upstream_session_id

    def _failed(self, session: RelayedSession, frame: Down, now: float) -> None:
        """Handle the error with which a replica ended a session: another replica may take it, or
        the edge gets the error."""
        detail = frame.error
        error = error_from_proto(detail)
        if session.state is SessionState.CLOSING:
            self._advance(session, SessionInput.ERROR, now, down=frame, error=error)
        elif isinstance(error, EngineError):
            _, event, why = self._monitor.engine_failed(session, error, now)
            self._advance(session, event, now, error=why)
        elif self._is_left_unblamed(session, error):
            self._failover.left_unblamed(session)
            self._advance(session, SessionInput.LEFT, now, error=error)
        elif self._may_try_another(session, detail.grpc_code, error):
            self._failover.refused(session)
            self._advance(session, SessionInput.LEFT, now, error=error)
        else:
            self._advance(session, SessionInput.ERROR, now, down=frame, error=error)
        self._retry_moves(now)

    def _is_left_unblamed(self, session: RelayedSession, error: OutriderError) -> bool:
        """Whether its replica lost it, or takes none since it stops, which this router may not have
        heard of: replicas that lose their engines together are back soon."""
        has_stopped = error.metadata.get("draining") == "true"
        return session.replay is not None and (isinstance(error, ReplicaLostError) or has_stopped)

    def _may_try_another(
        self, session: RelayedSession, grpc_code: int, error: OutriderError
    ) -> bool:
        """A session without tokens or losses is tried once more, others as long as it takes."""
        # A replica that came back with another vocabulary, before this router heard of it.
        is_refusal = grpc_code in _REFUSALS or isinstance(error, VocabularyMismatchError)
        has_tries = session.is_under_way or len(session.tried_replicas) < 2
        return is_refusal and session.replay is not None and has_tries

    # --- carrying out ---

    def _advance(
        self,
        session: RelayedSession,
        event: SessionInput,
        now: float,
        *,
        up: Up | None = None,
        down: Down | None = None,
        error: OutriderError | None = None,
    ) -> None:
        """Apply one input and carry out the table's action. `error` is the reason why the session
        ends or moves."""
        stream = session.replica_stream
        upstream_session_id = session.upstream_session_id
        action = self._table.advance(session, event, now)
        if stream is not None and session.replica_stream is None:
            self._dispatch.release(session)
        has_ended = session.state is SessionState.ENDED
        if action is SessionAction.SEND_DOWN and down is not None:
            self._send_down(session, down, now)
        elif action is SessionAction.SEND_UP and up is not None:
            self._send_up(session, up)
        elif action is SessionAction.KEEP_AND_SEND_UP and up is not None:
            self._keep_draft(session, up)
            self._send_up(session, up)
        elif action is SessionAction.KEEP and up is not None:
            self._keep_draft(session, up)
        elif error is not None:
            if action is SessionAction.MOVE:
                self._move(session, error, now)
            if action in (SessionAction.CANCEL_UP, SessionAction.CANCEL_AND_ANSWER):
                self._dispatch.cancel(stream, upstream_session_id, error)
            if action in (SessionAction.ANSWER, SessionAction.CANCEL_AND_ANSWER):
                self._answer(session.edge_stream, session.edge_session_id, error)
        if has_ended:
            self._ended(session, error, frames.cut_short(down), now)

    def _ended(
        self,
        session: RelayedSession,
        error: OutriderError | None,
        cut_short: str | None,
        now: float,
    ) -> None:
        self._failover.forget(session)
        self._intake.ended(session, now)
        self._prompts.ended(session)
        if (tokenizing := self._without_ids.pop(session.router_session_id, None)) is not None:
            tokenizing[2]()
        self._telemetry.ended(session.router_session_id, error, now, cut_short=cut_short)
        self._close_if_over(session.edge_stream)
        if self._intake.num_waiting:
            self._schedule_retry()

    def _keep_draft(self, session: RelayedSession, frame: Up) -> None:
        kept = Up()  # without the rest of its message
        kept.CopyFrom(frame)
        self._table.keep_draft(session, kept, kept.ByteSize())

    def _send_down(self, session: RelayedSession, frame: Down, now: float) -> None:
        self._telemetry.frames_down += 1
        is_last = session.state is SessionState.ENDED
        outbox = self._edges[session.edge_stream].outbox
        if not outbox.offer(frame, last=is_last) and not is_last:
            error = OverloadedError(
                "this stream is not read and its buffer is full; read faster or open less",
                retry_delay_ms=RETRY_DELAY_MS,
            )
            self._advance(session, SessionInput.ABORT, now, error=error)

    def _send_up(self, session: RelayedSession, frame: Up) -> None:
        if session.replica_stream is not None:
            self._telemetry.frames_up += 1
            is_last = session.state is SessionState.CLOSING
            if not self._dispatch.send(session.replica_stream, frame, last=is_last):
                self._telemetry.drafts_dropped += 1

    def _answer(self, edge_stream: int, edge_session_id: int, error: OutriderError) -> None:
        """End a session towards its edge."""
        detail = error_to_proto(error)
        frame = Down(session=edge_session_id, error=detail)
        self._edges[edge_stream].outbox.offer(frame, last=True)

    def _move(self, session: RelayedSession, why: OutriderError, now: float) -> None:
        """To another replica: at once where it has no tokens yet, otherwise as failover allows."""
        if session.is_announced:
            self._table.drop_drafts(session)
        if session.is_under_way:
            self._failover.wait(session, why, now)
            return
        try:
            self._dispatch.place(session, now, why)
        except OutriderError as error:
            self._advance(session, SessionInput.ABORT, now, error=error)

    def _depart(self, departures: Iterable[Departure], now: float) -> None:
        for session, event, error in departures:
            self._advance(session, event, now, error=error)
        self._retry_moves(now)

    def _retry_moves(self, now: float) -> None:
        self._end(self._failover.retry(now), now)
        if self._failover.is_due:
            self._schedule_retry()

    def _end(self, endings: Iterable[tuple[RelayedSession, OutriderError]], now: float) -> None:
        for session, error in endings:
            self._advance(session, SessionInput.ABORT, now, error=error)

    def _close_if_over(self, edge_stream: int) -> None:
        """A half-closed stream ends with the last of its sessions."""
        edge = self._edges[edge_stream]
        if edge.is_half_closed and not self._table.edge_sessions(edge_stream):
            edge.outbox.close()


def _no_ids(session: RelayedSession, now: float) -> OutriderError:
    deadline_at = session.request.deadline_at
    if deadline_at is not None and deadline_at <= now:
        return DeadlineError("the deadline passed before the messages became token ids")
    return UnavailableError(
        "no tokenizer answered in time; send token ids, or try again",
        retry_delay_ms=RETRY_DELAY_MS,
    )
