"""Spans that end with an error are exported though the sampler left them out.

A sampler decides when a span begins, and nobody knows then how it will end. So spans that it leaves
out are recorded all the same, and handed on if they failed. Their context still says "not sampled"
to the next tier, which does the same: of a failed chat that was not sampled, the spans that failed
are seen, not the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import Attributes


class RecordAll(Sampler):
    """Samples as `inner` does, and has the other spans recorded."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """The decision of `inner`, with RECORD_ONLY in place of DROP."""
        found = self._inner.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if found.decision is not Decision.DROP:
            return found
        return SamplingResult(Decision.RECORD_ONLY, attributes, found.trace_state)

    def get_description(self) -> str:
        """What the SDK says of it."""
        return f"RecordAll{{{self._inner.get_description()}}}"


class FailedSpans(SpanProcessor):
    """Hands `inner` the sampled spans, and of the others those that failed, marked as sampled, as
    exporters leave out the rest."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Passed on."""
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Passed on, if it was sampled or failed."""
        if span.context.trace_flags.sampled:
            self._inner.on_end(span)
        elif span.status.status_code is StatusCode.ERROR:
            self._inner.on_end(_as_sampled(span))

    def shutdown(self) -> None:
        """Passed on."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Passed on."""
        return self._inner.force_flush(timeout_millis)


def _as_sampled(span: ReadableSpan) -> ReadableSpan:
    context = SpanContext(
        span.context.trace_id,
        span.context.span_id,
        is_remote=False,
        trace_flags=TraceFlags(span.context.trace_flags | TraceFlags.SAMPLED),
        trace_state=span.context.trace_state,
    )
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )
