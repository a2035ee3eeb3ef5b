"""The spans of one session and its share of the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from outrider.errors import OutriderError
from outrider.session.region import Commit
from outrider.session.types import Timings
from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Span, TraceParent, start_span
from services.inference.scheduler.types import Finished


class SessionTelemetry:
    """Starts with the session; ended by exactly one of finished() and failed()."""

    def __init__(
        self,
        metrics: Metrics,
        model: str,
        request_id: str,
        trace: TraceParent,
        clock: Callable[[], float],
        *,
        num_resumed: int = 0,
    ) -> None:
        """`clock` in seconds. A malformed `trace` starts a new one. The first `num_resumed` tokens
        of the reply were generated elsewhere, and counted there."""
        self._metrics = metrics
        self._model = model
        self._clock = clock
        self._num_resumed = num_resumed
        self._opened_at = clock()
        self._started_ns = time.time_ns()
        self._first_at: float | None = None
        self._last_at = self._opened_at
        self._span = start_span(names.SPAN_SESSION, parent=trace, start_ns=self._started_ns)
        self._span.set(**{names.REQUEST_ID: request_id, names.MODEL: model})

    def committed(self, commit: Commit) -> None:
        """Tokens became final."""
        now = self._clock()
        num_tokens = commit.accepted + len(commit.ids)
        if self._first_at is None:
            self._first_at = now
            if not self._num_resumed:
                ttft_ms = (now - self._opened_at) * 1e3
                self._metrics.record_ttft(ttft_ms, self._model, self._span.exported_trace_id)
        elif num_tokens:
            interval_ms = (now - self._last_at) * 1e3
            self._metrics.record_token_latency(interval_ms / num_tokens, self._model)
        self._last_at = now
        if commit.num_lossy:
            self._metrics.record_lossy(commit.num_lossy)
        if commit.is_inexact:
            self._metrics.record_inexact()

    def finished(self, event: Finished) -> None:
        """The session ended by itself, by a cancel or by its deadline."""
        self.record_usage(event)
        self._request(event.reason.error_reason)
        self._phases(event.timings)
        usage = event.usage
        attributes: dict[str, float | tuple[str, ...]] = {
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.OUTPUT_TOKENS: self._num_generated(event),
            names.CACHED_TOKENS: usage.cached_tokens,
            names.FINISH_REASONS: (event.reason.value,),
            names.TTFT_MS: event.timings.ttft_ms,
            names.VERIFIED_DRAFTS: usage.draft_tokens,
            names.ACCEPTED_DRAFTS: usage.accepted_tokens,
            names.ACCEPTED_EDGE_DRAFTS: usage.accepted_edge_tokens,
        }
        self._span.set(**attributes)
        self._span.end()

    def record_usage(self, event: Finished) -> None:
        """Tokens and time per token of a session. Part of finished(); called separately for a
        session that failed() while the model thread still worked on it."""
        usage, timings = event.usage, event.timings
        num_generated = self._num_generated(event)
        self._metrics.record_verification(usage.draft_tokens, usage.accepted_tokens)
        if num_generated:
            self._metrics.record_prefix(usage.prompt_tokens, usage.cached_tokens)
        self._metrics.record_usage(usage.prompt_tokens, num_generated, self._model)
        if num_generated > 1:
            seconds = (timings.total_ms - timings.ttft_ms) / 1e3
            self._metrics.record_time_per_token(seconds / (num_generated - 1), self._model)

    def failed(self, error: OutriderError) -> None:
        """The session ended by an error."""
        self._request(error.reason)
        self._span.end(error)

    def _num_generated(self, event: Finished) -> int:
        return event.usage.completion_tokens - self._num_resumed

    def _request(self, error_type: str | None) -> None:
        self._metrics.record_request(self._clock() - self._opened_at, self._model, error_type)

    def _phases(self, timings: Timings) -> None:
        ends_ms = (
            (names.SPAN_QUEUE, timings.queue_ms),
            (names.SPAN_PREFILL, timings.queue_ms + timings.prefill_ms),
            (names.SPAN_DECODE, timings.total_ms),
        )
        parent, start_ns = self._span.context, self._started_ns
        for name, end_ms in ends_ms:
            end_ns = self._started_ns + int(end_ms * 1e6)
            phase: Span = start_span(name, parent=parent, start_ns=start_ns)
            phase.end(end_ns=end_ns)
            start_ns = end_ns
