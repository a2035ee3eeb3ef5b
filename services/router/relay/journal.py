"""What the router tells operators: one span per session, counters, gauges. Never prompt text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from outrider.errors import OutriderError
from outrider.peers.health import PeerState
from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Span, start_span
from outrider.v1 import inference_pb2
from services.router.placement.place import Decision

PLACEMENTS: Final = "outrider.router.placements"
DECISION_MS: Final = "outrider.router.decision_ms"
FRAMES: Final = "outrider.router.frames"
DRAFTS_DROPPED: Final = "outrider.router.drafts_dropped"
MOVES: Final = "outrider.router.moves"
MOVE_MS: Final = "outrider.router.move_ms"
SESSIONS: Final = "outrider.router.sessions"
REPLICAS: Final = "outrider.router.replicas"
MAX_LISTED: Final = 8


@dataclass(slots=True)
class _Entry:
    span: Span
    opened_at: float
    model: str = ""
    """Known once placed: a client's own word must not become a metric label."""


def _listed(decision: Decision) -> str:
    """The best replicas that a session could have gone to, with their predicted waits."""
    best = decision.considered[:MAX_LISTED]
    return ", ".join(f"{name} {wait_ms:.1f} ms" for name, wait_ms in best)


class Journal:
    """Records sessions as they go. Until `flush` frames and placements are plain numbers: no
    session waits for a metric."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """`clock` is in seconds and measures how long decisions take."""
        self.clock = clock
        self.frames_up = 0
        self.frames_down = 0
        self.drafts_dropped = 0
        self._metrics = metrics
        self._entries: dict[int, _Entry] = {}
        self._placements: Counter[tuple[str, str]] = Counter()
        self._decision_ms = 0.0
        self._moves: Counter[str] = Counter()
        self._move_ms = 0.0
        self._flushed = (0, 0, 0)

    def opened(self, session: int, frame: inference_pb2.OpenSession, now: float) -> None:
        """A session began; its frame now carries this router's span on to the replica."""
        parent = (frame.trace.traceparent, frame.trace.tracestate)
        span = start_span(names.SPAN_ROUTE, parent=parent)
        span.set(**{names.REQUEST_ID: frame.request_id, names.MODEL: frame.model})
        self._entries[session] = _Entry(span, now)
        if span.context != parent:
            frame.trace.traceparent, frame.trace.tracestate = span.context

    def placed(
        self, session: int, decision: Decision, region: str, model: str, decided_ms: float
    ) -> None:
        """A replica was chosen and sent the open."""
        entry = self._entries[session]
        entry.model = model
        if entry.span.is_recorded:
            entry.span.set(**{"outrider.replica": decision.replica, "outrider.region": region})
            terms = asdict(decision.wait)
            entry.span.set(**{f"outrider.wait.{term}": value for term, value in terms.items()})
            entry.span.set(**{"outrider.considered": _listed(decision)})
        self._placements[decision.replica, region] += 1
        self._decision_ms += decided_ms

    def moved(self, replica: str, pause_ms: float) -> None:
        """A session goes on at another replica, so long after the one before was lost."""
        self._moves[replica] += 1
        self._move_ms += pause_ms

    def ended(self, session: int, error: OutriderError | None, now: float) -> None:
        """A session is over."""
        entry = self._entries.pop(session)
        entry.span.end(error)
        reason = error.reason if error else None
        self._metrics.record_request(now - entry.opened_at, entry.model, reason)

    def flush(self, num_sessions: int, replicas: dict[PeerState, int]) -> None:
        """Bring gauges and frame counters up to date."""
        self._metrics.gauge(SESSIONS).set(num_sessions)
        for state, count in replicas.items():
            self._metrics.gauge(f"{REPLICAS}.{state.name.lower()}").set(count)
        self._flush_frames()
        self._flush_placements()

    def _flush_frames(self) -> None:
        up, down, dropped = self._flushed
        frames = self._metrics.counter(FRAMES)
        frames.add(self.frames_up - up, {"direction": "up"})
        frames.add(self.frames_down - down, {"direction": "down"})
        self._metrics.counter(DRAFTS_DROPPED).add(self.drafts_dropped - dropped)
        self._flushed = (self.frames_up, self.frames_down, self.drafts_dropped)

    def _flush_placements(self) -> None:
        for (replica, region), count in self._placements.items():
            labels = {"replica": replica, "region": region}
            self._metrics.counter(PLACEMENTS).add(count, labels)
        self._placements.clear()
        for replica, count in self._moves.items():
            self._metrics.counter(MOVES).add(count, {"replica": replica})
        self._moves.clear()
        self._metrics.counter(MOVE_MS).add(self._move_ms)
        self._move_ms = 0.0
        self._metrics.counter(DECISION_MS).add(self._decision_ms)
        self._decision_ms = 0.0
