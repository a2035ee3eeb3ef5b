"""What an edge measures of its chats."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Span, start_span
from services.edge.session.inputs import ChatRequest
from services.edge.session.machine import ChatSession

log = structlog.get_logger()

OPEN_CHATS: Final = "outrider.edge.open_chats"
OPEN_CONNECTIONS: Final = "outrider.edge.open_connections"
CHATS: Final = "outrider.edge.chats"
TOKENS: Final = "outrider.edge.tokens"
RETRACTIONS: Final = "outrider.edge.retractions"
ERASED_CHARS: Final = "outrider.edge.erased_chars"
DRAFTS_DROPPED: Final = "outrider.edge.dropped_draft_frames"
# Sums of milliseconds over the chats that had one; divide by the count for the mean.
PROVISIONAL_TTFT: Final = "outrider.edge.provisional_ttft_ms"
PROVISIONAL_CHATS: Final = "outrider.edge.provisional_chats"
COMMITTED_TTFT: Final = "outrider.edge.committed_ttft_ms"
COMMITTED_CHATS: Final = "outrider.edge.committed_chats"


class EdgeTelemetry:
    """Counts open chats and connections, and records each chat when it ends."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self.num_chats = 0
        self.num_connections = 0
        self.idle = asyncio.Event()
        """Set while no chat is open."""
        self.idle.set()

    def chat_opened(self) -> None:
        """A stream was opened."""
        self.num_chats += 1
        self.idle.clear()
        self._metrics.gauge(OPEN_CHATS).set(self.num_chats)

    def connections(self, delta: int) -> None:
        """A connection came or went."""
        self.num_connections += delta
        self._metrics.gauge(OPEN_CONNECTIONS).set(self.num_connections)

    def chat_span(self, request: ChatRequest) -> Span:
        """The chat's span, a child of the client's."""
        span = start_span(names.SPAN_EDGE_CHAT, parent=request.trace)
        span.set(
            **{
                names.OPERATION: names.CHAT,
                names.MODEL: request.model,
                names.REQUEST_ID: request.request_id,
            }
        )
        return span

    def chat_closed(self) -> None:
        """A stream was closed, for whatever reason; `record` follows."""
        self.num_chats -= 1
        if not self.num_chats:
            self.idle.set()
        self._metrics.gauge(OPEN_CHATS).set(self.num_chats)

    def draft_frame(self, sent: bool) -> None:
        """A frame of drafts was sent, or dropped because the router does not read."""
        if not sent:
            self._metrics.counter(DRAFTS_DROPPED).add(1)

    def record(self, session: ChatSession, span: Span | None, now: float) -> None:
        """What is to be told of a chat that was closed at `now`."""
        if span is not None:
            span.set(**{names.OUTPUT_TOKENS: session.num_tokens})
            span.end(session.error)
        metrics, times = self._metrics, session.milestones
        if times.asked is None:
            return
        reason = session.error.reason if session.error else None
        metrics.record_request(now - times.asked, self._model, reason)
        _log_end(session, span.trace_id if span else "", now - times.asked)
        metrics.counter(CHATS).add(1, {"outcome": reason or "OK"})
        metrics.counter(TOKENS).add(session.num_tokens)
        self._record_ttft(times.asked, times.provisional, times.committed)
        if session.reply is not None:
            metrics.record_usage(session.num_prompt_tokens, session.num_tokens, self._model)
            metrics.counter(RETRACTIONS).add(session.reply.display.num_retractions)
            metrics.counter(ERASED_CHARS).add(session.reply.display.erased_chars)

    def _record_ttft(
        self, asked: float, provisional: float | None, committed: float | None
    ) -> None:
        shown = [at for at in (provisional, committed) if at is not None]
        if shown:
            self._metrics.record_ttft((min(shown) - asked) * 1000, self._model)
        if provisional is not None:
            self._metrics.counter(PROVISIONAL_TTFT).add((provisional - asked) * 1000)
            self._metrics.counter(PROVISIONAL_CHATS).add(1)
        if committed is not None:
            self._metrics.counter(COMMITTED_TTFT).add((committed - asked) * 1000)
            self._metrics.counter(COMMITTED_CHATS).add(1)


def _log_end(session: ChatSession, trace_id: str, total_s: float) -> None:
    log.info(
        "chat ended",
        request_id=session.request.request_id if session.request else "",
        trace_id=trace_id,
        outcome=session.error.reason if session.error else "OK",
        num_prompt_tokens=session.num_prompt_tokens,
        num_tokens=session.num_tokens,
        total_ms=round(total_s * 1000, 1),
    )
