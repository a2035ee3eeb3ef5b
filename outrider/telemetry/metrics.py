"""One service's metrics: OpenTelemetry instruments, read by Prometheus from a registry of its own.

A registry per `Metrics` lets several services live in one process, as tests do.
Recording costs a few microseconds; all methods may be called from any thread.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from outrider import __version__
from outrider.telemetry import names
from outrider.telemetry.bucket_histogram import BucketHistogram
from outrider.telemetry.families import Family


class Gauge:
    """A value that goes up and down; reading costs, setting is an assignment."""

    def __init__(self) -> None:
        self._value: float | None = None

    def set(self, value: float) -> None:
        """Remember the value for the next scrape."""
        self._value = value

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """The value for a scrape: nothing until the first `set`."""
        value = self._value
        return [] if value is None else [Observation(value)]


class GaugeTable:
    """Values that go up and down, one for each set of labels; rows left out of `set` vanish."""

    def __init__(self) -> None:
        self._rows: list[Observation] = []

    def set(self, rows: Iterable[tuple[float, Mapping[str, str]]]) -> None:
        """Remember the rows for the next scrape."""
        self._rows = [Observation(value, labels) for value, labels in rows]

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """The rows for a scrape."""
        return self._rows


def state_rows(
    state: IntEnum, labels: Mapping[str, str]
) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Rows of a GaugeTable, by the label `state`: 1 for the present state, 0 for all others."""
    for each in type(state):
        yield float(each is state), {**labels, "state": each.name.lower()}


class ShareWindow:
    """Share of tokens with some property, over about the last `horizon` tokens."""

    def __init__(self, horizon: float) -> None:
        self._horizon = horizon
        self._all = 0.0
        self._with = 0.0

    def add(self, num_tokens: int, num_with: int) -> float:
        """Count tokens, of which `num_with` have the property; returns the share, 0..1."""
        keep = max(0.0, 1.0 - num_tokens / self._horizon)
        self._all = self._all * keep + num_tokens
        self._with = self._with * keep + num_with
        return self._with / self._all if self._all else 0.0


class Metrics:
    """The instruments of one service. `close()` releases them."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({"service.name": service}),
            shutdown_on_exit=False,
        )
        self._meter = self._provider.get_meter("outrider")
        self._lock = threading.Lock()
        self._gauges: dict[str, Gauge] = {}
        self._tables: dict[str, GaugeTable] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._rejected = ShareWindow(horizon=2_000)
        self._reused = ShareWindow(horizon=100_000)
        self._make_histograms()
        versions = {
            "service": service,
            "version": __version__,
            "python_version": platform.python_version(),
        }
        self.table(names.BUILD_INFO).set([(1, versions)])

    def _make_histograms(self) -> None:
        make = self._histogram
        self._ttft = BucketHistogram(names.TTFT, names.LATENCY_BOUNDARIES_S, _LABELS)
        self.registry.register(self._ttft)
        self._token_latency = BucketHistogram(
            names.TOKEN_LATENCY, names.LATENCY_BOUNDARIES_S, _LABELS
        )
        self.registry.register(self._token_latency)
        self._overhead = make(names.TICK_OVERHEAD, names.OVERHEAD_BOUNDARIES_S)
        self._gen_ai_ttft = make(names.GEN_AI_TTFT, names.TTFT_BOUNDARIES_S)
        self._per_token = make(names.GEN_AI_TIME_PER_TOKEN, names.TIME_PER_TOKEN_BOUNDARIES_S)
        self._duration = make(names.GEN_AI_REQUEST_DURATION, names.REQUEST_BOUNDARIES_S)
        self._usage = make(names.GEN_AI_TOKEN_USAGE, names.TOKEN_BOUNDARIES)

    def _histogram(self, family: Family, boundaries: tuple[float, ...]) -> Histogram:
        return self._meter.create_histogram(
            family, description=family.help, explicit_bucket_boundaries_advisory=boundaries
        )

    def show_model(self, model: str) -> None:
        """Show a model's latencies at 0 before its first chat: a rate needs a value before."""
        for histogram in (self._ttft, self._token_latency):
            histogram.show((names.CHAT, names.OUTRIDER, model))

    def record_ttft(self, ms: float, model: str, trace_id: str = "") -> None:
        """Time from a session's arrival to its first committed (edge: shown) token. `trace_id`: of
        its trace, if that is exported."""
        self._ttft.record(ms / 1e3, (names.CHAT, names.OUTRIDER, model), trace_id)
        self._gen_ai_ttft.record(ms / 1e3, _attributes(model))

    def record_token_latency(self, ms: float, model: str) -> None:
        """Time between two commits over the tokens of the later one; called for each commit."""
        self._token_latency.record(ms / 1e3, (names.CHAT, names.OUTRIDER, model))

    def record_time_per_token(self, seconds: float, model: str) -> None:
        """(duration - TTFT) / (reply tokens after the first); called once for each session."""
        self._per_token.record(seconds, _attributes(model))

    def set_batch_utilization(self, share: float) -> None:
        """Sessions in the last engine call over the sessions it may have, 0..1."""
        self.gauge(names.BATCH_UTILIZATION).set(share)

    def record_tick_overhead(self, ms: float) -> None:
        """CPU time the model thread spent outside the engine around one engine call."""
        self._overhead.record(ms / 1e3)

    def record_engine_time(self, busy_s: float, idle_s: float) -> None:
        """Seconds with sessions to serve, split into those in which the engine computed and those
        in which it waited."""
        counter = self.counter(names.ENGINE_TIME)
        counter.add(busy_s, _BUSY)
        counter.add(idle_s, _IDLE)

    def record_lossy(self, count: int) -> None:
        """Count tokens that acceptance_threshold let through."""
        self.counter(names.LOSSY_TOKENS).add(count)

    def record_inexact(self) -> None:
        """Count a session whose reply is inexact from now on."""
        self.counter(names.INEXACT_SESSIONS).add(1)

    def record_verification(self, drafted: int, accepted: int) -> None:
        """Count drafted and accepted tokens; drives REJECTION_RATIO. A token let through by
        acceptance_threshold is an accepted one."""
        if drafted <= 0:
            return
        with self._lock:
            rate = self._rejected.add(drafted, drafted - accepted)
        self.gauge(names.REJECTION_RATIO).set(rate)
        self.counter(names.DRAFTED_TOKENS).add(drafted)
        self.counter(names.ACCEPTED_TOKENS).add(accepted)

    def record_prefix(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a prompt's tokens, and those whose KV was cached; drives PREFIX_HIT_RATIO."""
        with self._lock:
            rate = self._reused.add(prompt_tokens, cached_tokens)
        self.gauge(names.PREFIX_HIT_RATIO).set(rate)
        self.counter(names.PROMPT_TOKENS).add(prompt_tokens)
        self.counter(names.REUSED_TOKENS).add(cached_tokens)

    def record_request(self, seconds: float, model: str, error_type: str | None) -> None:
        """Duration of a whole session; `error_type` is an OutriderError reason."""
        attributes = _attributes(model)
        if error_type is not None:
            attributes[names.ERROR_TYPE] = error_type
        self._duration.record(seconds, attributes)

    def record_usage(self, input_tokens: int, output_tokens: int, model: str) -> None:
        """Tokens of one finished session."""
        self._usage.record(input_tokens, _attributes(model) | {names.TOKEN_TYPE: "input"})
        self._usage.record(output_tokens, _attributes(model) | {names.TOKEN_TYPE: "output"})

    def gauge(self, family: Family) -> Gauge:
        """The gauge of this name, made on first use."""
        gauge = self._gauges.get(family)
        if gauge is None:
            with self._lock:
                gauge = self._gauges.get(family) or self._make_gauge(family)
        return gauge

    def _make_gauge(self, family: Family) -> Gauge:
        gauge = self._gauges[family] = Gauge()
        self._observe(family, gauge)
        return gauge

    def table(self, family: Family) -> GaugeTable:
        """The gauges of this name, by labels, made on first use."""
        with self._lock:
            table = self._tables.get(family)
            if table is None:
                table = self._tables[family] = GaugeTable()
                self._observe(family, table)
        return table

    def _observe(self, family: Family, gauge: Gauge | GaugeTable) -> None:
        self._meter.create_observable_gauge(
            family, callbacks=[gauge.observe], description=family.help
        )

    def histogram(self, family: Family, boundaries: tuple[float, ...]) -> Histogram:
        """The histogram of this name, made on first use with these boundaries:
        `.record(value, {"label": "value"})`."""
        with self._lock:
            histogram = self._histograms.get(family)
            if histogram is None:
                histogram = self._histograms[family] = self._histogram(family, boundaries)
        return histogram

    def counter(self, family: Family) -> Counter:
        """The counter of this name, made on first use: `.add(n, {"label": "value"})`."""
        counter = self._counters.get(family)
        if counter is None:
            with self._lock:
                counter = self._counters.get(family) or self._make_counter(family)
        return counter

    def from_zero(
        self,
        family: Family,
        label: str = "",
        values: Iterable[str] = (),
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Show a counter at 0 before anything is counted, for each value of `label` where it has
        one, beside `others`. A counter that appears with its first event is unknown to a rate until
        the second."""
        for labels in [{label: value} for value in values] if label else [{}]:
            self.counter(family).add(0, {**(others or {}), **labels})

    def _make_counter(self, family: Family) -> Counter:
        counter = self._counters[family] = self._meter.create_counter(
            family, description=family.help
        )
        return counter

    def close(self) -> None:
        """Stop collecting."""
        self._provider.shutdown()


_LABELS: Final = tuple(
    name.replace(".", "_") for name in (names.OPERATION, names.PROVIDER, names.MODEL)
)
"""The names of `_attributes`, as Prometheus has them."""
_BUSY = {"state": "busy"}
_IDLE = {"state": "idle"}


def _attributes(model: str) -> dict[str, str]:
    return {names.OPERATION: names.CHAT, names.PROVIDER: names.OUTRIDER, names.MODEL: model}
