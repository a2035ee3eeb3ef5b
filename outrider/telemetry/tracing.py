"""Traces that follow a chat across QUIC and gRPC, with W3C Trace Context in our own frames.

Sessions are multiplexed on long-lived streams, so the context travels in messages, not in HTTP
metadata: `current_context()` on the sending side, `parent=` on the receiving side. Spans carry
error types, never messages: those could quote users.

A span is recorded if `configure_tracing` was given a processor or found an endpoint. Otherwise it
only passes its parent's context on, or begins a trace if there is none, so that later tiers and the
logs still agree on an id; recording costs many times as much.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from outrider.errors import OutriderError
from outrider.extras import install_command
from outrider.telemetry import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

TraceParent = tuple[str, str]
"""W3C `traceparent` and `tracestate`; ("", "") without a trace."""

log = structlog.get_logger()

OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
SDK_DISABLED = "OTEL_SDK_DISABLED"
SERVICE_NAME = "OTEL_SERVICE_NAME"

_PROPAGATOR = TraceContextTextMapPropagator()
_PLAIN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
NO_TRACE: TraceParent = ("", "")
_tracer: trace.Tracer | None = None
"""None: no exporter is configured."""
_provider: TracerProvider | None = None
_begins_traces = False
"""Whether a span without a parent gets a trace id though it is not exported."""


def configure_tracing(service: str, *processors: SpanProcessor) -> None:
    """Record spans in this process under `service`; a later call replaces an earlier one.

    Spans go to `processors`, and by OTLP over HTTP when the environment asks for that: by
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_TRACES_EXPORTER=otlp,
    unless OTEL_TRACES_EXPORTER is none or OTEL_SDK_DISABLED is true. With neither they are not
    recorded. All other variables of OpenTelemetry's specification (headers, timeouts, certificates,
    batches, the sampler) are read by its SDK. Where the environment asks, and the extra `otlp` is
    not installed, a warning is logged and nothing else changes: chats matter more than their
    traces.

    Spans that end with an error are exported even where the sampler left their trace out: those of
    this process; the other tiers export theirs.
    """
    global _tracer, _provider, _begins_traces
    shutdown_tracing()
    takers = list(processors)
    if _asks_for_otlp(os.environ) and (otlp := _otlp_processor()) is not None:
        takers.append(otlp)
    if takers:
        _provider = _make_provider(service, takers)
        _tracer = _provider.get_tracer("outrider")
    _begins_traces = True


def shutdown_tracing() -> None:
    """Send pending spans; later spans only pass contexts on."""
    global _tracer, _provider, _begins_traces
    if _provider is not None:
        _provider.shutdown()
    _provider, _tracer, _begins_traces = None, None, False


def _make_provider(service: str, processors: list[SpanProcessor]) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from outrider.telemetry.failed_spans import FailedSpans, RecordAll

    provider = TracerProvider(
        resource=Resource.create({"service.name": os.environ.get(SERVICE_NAME) or service}),
        shutdown_on_exit=False,
    )
    # The sampler that the SDK has made by OTEL_TRACES_SAMPLER and its argument.
    provider.sampler = RecordAll(provider.sampler)
    for processor in processors:
        provider.add_span_processor(FailedSpans(processor))
    return provider


def _asks_for_otlp(environ: Mapping[str, str]) -> bool:
    """By the specification of OpenTelemetry's environment variables; an empty one is not set."""
    if environ.get(SDK_DISABLED, "").strip().lower() == "true":
        return False
    exporters = {name.strip() for name in environ.get(TRACES_EXPORTER, "").split(",")} - {""}
    if exporters:
        return "otlp" in exporters
    return bool(environ.get(OTLP_ENDPOINT) or environ.get(OTLP_TRACES_ENDPOINT))


def _otlp_processor() -> SpanProcessor | None:
    """None where its package is not installed."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        log.warning(
            "traces_not_exported",
            why="the environment asks for OTLP, and the exporter is not installed",
            missing=error.name,
            action=f"{install_command('otlp')}, or set {TRACES_EXPORTER}=none",
        )
        return None
    return BatchSpanProcessor(OTLPSpanExporter())


class Span:
    """A span that is not exported: its context is its parent's. End it exactly once."""

    def __init__(self, context: TraceParent) -> None:
        self._context = context

    @property
    def is_recorded(self) -> bool:
        """Whether attributes are worth gathering."""
        return False

    @property
    def context(self) -> TraceParent:
        """The context that the next tier gets as its parent."""
        return self._context

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty without a trace."""
        return self.context[0][3:35]

    @property
    def exported_trace_id(self) -> str:
        """The same of a span that this process exports, whether or not it fails; else empty."""
        return ""

    def set(self, **attributes: AttributeValue) -> None:
        """Add attributes; write `**{"dotted.name": value}` for dotted names."""

    def event(self, name: str, attributes: Mapping[str, AttributeValue]) -> None:
        """Something happened within it, now."""

    def end(self, error: BaseException | None = None, *, end_ns: int | None = None) -> None:
        """Close it, with the type of the error that ended it, at `end_ns` (Unix) or now."""

    def enter(self) -> Context:
        """The context with this span as the current one."""
        return extract(self._context) if self._context[0] else otel_context.get_current()


class _RecordedSpan(Span):
    """A span for the processors."""

    def __init__(self, span: trace.Span) -> None:
        super().__init__(_inject(trace.set_span_in_context(span, Context())))
        self._span = span

    @property
    def is_recorded(self) -> bool:
        return True

    @property
    def exported_trace_id(self) -> str:
        return self.trace_id if self._span.get_span_context().trace_flags.sampled else ""

    def set(self, **attributes: AttributeValue) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, AttributeValue]) -> None:
        self._span.add_event(name, attributes)

    def end(self, error: BaseException | None = None, *, end_ns: int | None = None) -> None:
        if error is not None:
            kind = error.reason if isinstance(error, OutriderError) else type(error).__name__
            self._span.set_attribute(names.ERROR_TYPE, kind)
            self._span.set_status(trace.StatusCode.ERROR, kind)
        self._span.end(end_ns)

    def enter(self) -> Context:
        return trace.set_span_in_context(self._span)


def start_span(
    name: str,
    *,
    parent: TraceParent | None = None,
    links: Iterable[TraceParent] = (),
    start_ns: int | None = None,
    **attributes: AttributeValue,
) -> Span:
    """A span that outlives a scope; `parent` None continues the current span, NO_TRACE begins a
    trace. `links`: spans that it has to do with, in traces that are not to be continued."""
    return _start(name, parent, start_ns, attributes, links)


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
    links: Iterable[TraceParent] = (),
) -> Span:
    if _tracer is None:
        return Span(_passed_on(current_context() if parent is None else parent))
    context = None if parent is None else extract(parent)
    remote = [trace.get_current_span(extract(link)).get_span_context() for link in links]
    span = _tracer.start_span(
        name,
        context=context,
        attributes=attributes,
        links=[trace.Link(linked) for linked in remote if linked.is_valid],
        start_time=start_ns,
    )
    return _RecordedSpan(span)


def _passed_on(parent: TraceParent) -> TraceParent:
    """The context of a span that is not recorded. A peer's context is passed on only if it is
    valid."""
    if parent[0]:
        if not parent[1] and _PLAIN.fullmatch(parent[0]):
            return parent
        parent = _inject(extract(parent))
    if parent[0] or not _begins_traces:
        return parent
    # Sampled: a tier behind this one may have someone who takes spans.
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-01", ""


def current_context() -> TraceParent:
    """The current span as a parent for another process."""
    context = otel_context.get_current()
    return _inject(context) if context else NO_TRACE


def extract(parent: TraceParent) -> Context:
    """A context whose current span is the remote one; an empty one for malformed input."""
    carrier = {"traceparent": parent[0], "tracestate": parent[1]}
    return _PROPAGATOR.extract(carrier, context=Context())


def _inject(context: Context) -> TraceParent:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")
