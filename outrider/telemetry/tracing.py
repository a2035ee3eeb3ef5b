"""Traces that follow a chat across QUIC and gRPC, with W3C Trace Context in our own frames.

Sessions are multiplexed on long-lived streams, so the context travels in messages, not in HTTP
metadata: `current_context()` on the sending side, `parent=` on the receiving side. Spans are
no-ops until `configure_tracing`. They carry error types, never messages: those could quote users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from outrider.errors import ConfigError, OutriderError
from outrider.telemetry import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

TraceParent = tuple[str, str]
"""W3C `traceparent` and `tracestate`; ("", "") where there is no trace."""

OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

_PROPAGATOR = TraceContextTextMapPropagator()
_NO_TRACER: trace.Tracer = trace.NoOpTracer()
_tracer = _NO_TRACER
_provider: TracerProvider | None = None


def configure_tracing(service: str, *processors: SpanProcessor) -> None:
    """Record spans in this process under `service`; a later call replaces an earlier one.

    Spans go to `processors`, and by OTLP over HTTP when OTEL_EXPORTER_OTLP_ENDPOINT is set.
    Raises ConfigError when it is set and the extra `otlp` is not installed.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    global _tracer, _provider
    shutdown_tracing()
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), shutdown_on_exit=False
    )
    for processor in processors:
        provider.add_span_processor(processor)
    if os.environ.get(OTLP_ENDPOINT):
        provider.add_span_processor(_otlp_processor())
    _provider, _tracer = provider, provider.get_tracer("outrider")


def shutdown_tracing() -> None:
    """Send what is pending and go back to no-op spans."""
    global _tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    _provider, _tracer = None, _NO_TRACER


def _otlp_processor() -> SpanProcessor:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            f"{OTLP_ENDPOINT} is set but the exporter is missing: pip install 'outrider[otlp]'"
        ) from error
    return BatchSpanProcessor(OTLPSpanExporter())


class Span:
    """A span being recorded. End it exactly once, wherever that is."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def context(self) -> TraceParent:
        """What the next tier gets as its parent."""
        return _inject(trace.set_span_in_context(self._span, Context()))

    def set(self, **attributes: AttributeValue) -> None:
        """Add attributes; write `**{"dotted.name": value}` for dotted names."""
        self._span.set_attributes(attributes)

    def end(self, error: BaseException | None = None, *, end_ns: int | None = None) -> None:
        """Close it, with the type of the error that ended it, at `end_ns` (Unix) or now."""
        if error is not None:
            kind = error.reason if isinstance(error, OutriderError) else type(error).__name__
            self._span.set_attribute(names.ERROR_TYPE, kind)
            self._span.set_status(trace.StatusCode.ERROR, kind)
        self._span.end(end_ns)

    def enter(self) -> Context:
        """The context with this span as the current one."""
        return trace.set_span_in_context(self._span)


def start_span(
    name: str,
    *,
    parent: TraceParent | None = None,
    start_ns: int | None = None,
    **attributes: AttributeValue,
) -> Span:
    """A span that outlives a scope; `parent` None continues the current span."""
    return _start(name, parent, start_ns, attributes)


@contextmanager
def span(
    name: str, *, parent: TraceParent | None = None, **attributes: AttributeValue
) -> Iterator[Span]:
    """A span around a block, current inside it. It ends on every way out, cancellation too."""
    opened = _start(name, parent, None, attributes)
    token = otel_context.attach(opened.enter())
    error: BaseException | None = None
    try:
        yield opened
    except BaseException as caught:
        error = caught
        raise
    finally:
        otel_context.detach(token)
        opened.end(error)


def _start(
    name: str,
    parent: TraceParent | None,
    start_ns: int | None,
    attributes: Mapping[str, AttributeValue],
) -> Span:
    context = None if parent is None else extract(parent)
    return Span(
        _tracer.start_span(name, context=context, attributes=attributes, start_time=start_ns)
    )


def current_context() -> TraceParent:
    """The current span as a parent for another process."""
    return _inject(otel_context.get_current())


def extract(parent: TraceParent) -> Context:
    """A context whose current span is the remote one; an empty one for malformed input."""
    carrier = {"traceparent": parent[0], "tracestate": parent[1]}
    return _PROPAGATOR.extract(carrier, context=Context())


def _inject(context: Context) -> TraceParent:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")
