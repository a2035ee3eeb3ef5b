"""Telemetry of the router's sessions: one span each, counters, gauges, logs.

Never contains prompt text. Unlike the relay's other modules it does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from outrider.errors import CancelledError, OutriderError
from outrider.model_identity import short_form
from outrider.peers.health import PeerState
from outrider.telemetry import names
from outrider.telemetry.families import Family
from outrider.telemetry.log_aggregation import EventAggregator
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Span, start_span
from outrider.v1 import inference_pb2
from services.router.placement.history import PlacementHistory, PlacementRecord
from services.router.placement.types import Candidate, Decision
from services.router.session_request import SessionRequest

log = structlog.get_logger()

PLACEMENTS: Final = Family("outrider_router_placements", "Sessions placed, by replica.")
DECISION_TIME: Final = Family(
    "outrider_router_decision_seconds",
    "Time spent on choosing replicas; divide by outrider_router_placements_total.",
)
FRAMES: Final = Family("outrider_router_frames", "Frames relayed, by direction.")
DRAFTS_DROPPED: Final = Family(
    "outrider_router_drafts_dropped",
    "Frames of drafts that were dropped.",
)
MOVES: Final = Family(
    "outrider_router_moves",
    "Sessions that went on at another replica, by that replica.",
)
MOVE_TIME: Final = Family(
    "outrider_router_move_seconds",
    "Pauses of sessions that moved, from the loss of the replica before; divide by "
    "outrider_router_moves_total.",
)
INEXACT_MOVES: Final = Family(
    "outrider_router_inexact_moves",
    "Replies that went on at a replica that computes differently, by that replica.",
)
PROMPTS_LEFT_OUT: Final = Family(
    "outrider_router_prompt_deltas",
    "Opens whose edge left out a part of the prompt, by whether it was known here.",
)
TOKENS_LEFT_OUT: Final = Family(
    "outrider_router_prompt_delta_tokens", "Prompt tokens that edges did not have to send."
)
SESSIONS: Final = Family("outrider_router_sessions", "Sessions under way.")
REPLICAS: Final = Family("outrider_router_replicas", "Replicas, by state.")
PLACED: Final = "outrider.placed"
"""Event on a session's span."""


@dataclass(slots=True)
class _OpenSpan:
    span: Span
    opened_at: float
    request_id: str
    model: str = ""
    """Known once placed: a client's own word must not become a metric label."""


def _placed_attributes(decision: Decision) -> dict[str, str | int | float]:
    best = [f"{name} {wait_ms:.1f} ms" for name, wait_ms in decision.considered]
    attributes: dict[str, str | int | float] = {
        **_candidate_attributes("outrider", decision.chosen),
        "outrider.margin_ms": decision.margin_ms,
        "outrider.able": decision.num_able,
        "outrider.considered": ", ".join(best),
    }
    if decision.runner_up is not None:
        attributes |= _candidate_attributes("outrider.runner_up", decision.runner_up)
    return attributes


def _candidate_attributes(prefix: str, candidate: Candidate) -> dict[str, str | int | float]:
    waits = {f"{prefix}.wait.{term}": ms for term, ms in candidate.wait._asdict().items()}
    return {
        f"{prefix}.replica": candidate.replica,
        f"{prefix}.region": candidate.region,
        f"{prefix}.cached_tokens": candidate.cached_tokens,
        **waits,
    }


class SessionTelemetry:
    """Records sessions as they go. Until `flush` frames and placements are plain numbers: no
    session waits for a metric."""

    def __init__(
        self, metrics: Metrics, clock: Callable[[], float], history: PlacementHistory
    ) -> None:
        """`clock` is in seconds; `history` keeps why sessions went where they went."""
        self._clock = clock
        self._history = history
        self.frames_up = 0
        self.frames_down = 0
        self.drafts_dropped = 0
        self._metrics = metrics
        self._spans: dict[int, _OpenSpan] = {}
        self._placements: Counter[tuple[str, str]] = Counter()
        self._decision_ms = 0.0
        self._moves: Counter[str] = Counter()
        self._move_ms = 0.0
        self._inexact_moves: Counter[str] = Counter()
        self._deltas: Counter[str] = Counter()
        self._tokens_left_out = 0
        self._flushed = (0, 0, 0)
        self._exported: set[tuple[Family, str]] = set()
        """Counters that were added to, with their direction."""
        self._refused = EventAggregator()
        self._inexact = EventAggregator()

    def opened(
        self, router_session_id: int, opening: inference_pb2.OpenSession, now: float
    ) -> None:
        """A session began; its open now carries this router's span on to the replica."""
        parent = (opening.trace.traceparent, opening.trace.tracestate)
        span = start_span(names.SPAN_ROUTE, parent=parent)
        span.set(**{names.REQUEST_ID: opening.request_id, names.MODEL: opening.model})
        self._spans[router_session_id] = _OpenSpan(span, now, opening.request_id)
        if span.context != parent:
            opening.trace.traceparent, opening.trace.tracestate = span.context

    def placed(
        self,
        router_session_id: int,
        request: SessionRequest,
        decision: Decision,
        decision_ms: float,
        now: float,
    ) -> None:
        """A replica was chosen and sent the open."""
        opened = self._spans[router_session_id]
        opened.model = request.model
        if opened.span.is_recorded:
            where = {"outrider.replica": decision.replica, "outrider.region": decision.region}
            opened.span.set(**where)
            opened.span.event(PLACED, _placed_attributes(decision))
        self._history.add(
            PlacementRecord(
                opened.request_id, request.model, request.prefill_tokens, decision, now, decision_ms
            )
        )
        self._placements[decision.replica, decision.region] += 1
        self._decision_ms += decision_ms

    def moved(self, replica: str, pause_ms: float) -> None:
        """Record that a session continues on another replica, `pause_ms` after the loss of the one
        before."""
        self._moves[replica] += 1
        self._move_ms += pause_ms

    def inexact(self, replica: str, before: bytes, after: bytes) -> None:
        """Record that a session continues on a replica of another model identity."""
        self._inexact_moves[replica] += 1
        self._inexact.add(f"{short_form(before)} to {short_form(after)}")

    def left_out(self, num_tokens: int, *, is_known: bool) -> None:
        """An edge left out so many tokens of a prompt."""
        self._deltas["known" if is_known else "unknown"] += 1
        if is_known:
            self._tokens_left_out += num_tokens

    def refused(self, error: OutriderError) -> None:
        """A session never got to a replica."""
        if not isinstance(error, CancelledError):
            self._refused.add(error.reason)

    def ended(
        self,
        router_session_id: int,
        error: OutriderError | None,
        now: float,
        *,
        cut_short: str | None = None,
    ) -> None:
        """A session is over. `cut_short`: the reason, as of an error, of one that ended without an
        error and without a whole reply."""
        opened = self._spans.pop(router_session_id)
        opened.span.end(error)
        reason = error.reason if error else cut_short
        if error is not None and not opened.model:
            self.refused(error)
        self._metrics.record_request(now - opened.opened_at, opened.model, reason)

    def flush(self, num_sessions: int, replicas: dict[PeerState, int]) -> None:
        """Update gauges and frame counters; log refused sessions and inexact moves."""
        if (refused := self._refused.due(self._clock())) is not None:
            log.warning("refused", what="sessions", num_by_reason=refused)
        if (inexact := self._inexact.due(self._clock())) is not None:
            log.warning("inexact_moves", num_by_identities=inexact)
        self._metrics.gauge(SESSIONS).set(num_sessions)
        self._metrics.table(REPLICAS).set(
            (count, {"state": state.name.lower()}) for state, count in replicas.items()
        )
        self._flush_frames()
        self._flush_placements()
        for known, count in self._deltas.items():
            self._metrics.counter(PROMPTS_LEFT_OUT).add(count, {"prefix": known})
        self._deltas.clear()

    def _flush_frames(self) -> None:
        up, down, dropped = self._flushed
        self._add(FRAMES, self.frames_up - up, "up")
        self._add(FRAMES, self.frames_down - down, "down")
        self._add(DRAFTS_DROPPED, self.drafts_dropped - dropped)
        self._add(TOKENS_LEFT_OUT, self._tokens_left_out)
        self._tokens_left_out = 0
        self._flushed = (self.frames_up, self.frames_down, self.drafts_dropped)

    def _add(self, family: Family, count: float, direction: str = "") -> None:
        """OpenTelemetry takes 15 us for each addition, of nothing too: that one only once, so that
        the counter is there."""
        if count or (family, direction) not in self._exported:
            self._exported.add((family, direction))
            labels = {"direction": direction} if direction else {}
            self._metrics.counter(family).add(count, labels)

    def _flush_placements(self) -> None:
        for (replica, region), count in self._placements.items():
            labels = {"replica": replica, "region": region}
            self._metrics.counter(PLACEMENTS).add(count, labels)
        self._placements.clear()
        for replica, count in self._moves.items():
            self._metrics.counter(MOVES).add(count, {"replica": replica})
        self._moves.clear()
        for replica, count in self._inexact_moves.items():
            self._metrics.counter(INEXACT_MOVES).add(count, {"replica": replica})
        self._inexact_moves.clear()
        self._add(MOVE_TIME, self._move_ms / 1e3)
        self._move_ms = 0.0
        self._add(DECISION_TIME, self._decision_ms / 1e3)
        self._decision_ms = 0.0
