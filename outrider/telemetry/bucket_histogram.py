"""A histogram for values recorded with every commit, at less than 1 us each; OpenTelemetry's takes
some 15 us. Each bucket names the trace of its latest observation that has one: an exemplar
(OpenMetrics 1.0, section "Exemplars"), seen by who asks for that format."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from outrider.telemetry.families import Family


class BucketHistogram(Collector):
    """Observations by bucket, of one set of labels each, for a Prometheus registry. Thread-safe."""

    def __init__(
        self, family: Family, boundaries: Sequence[float], label_names: Sequence[str]
    ) -> None:
        """`boundaries` are the buckets' inclusive upper bounds, ascending; the last has none."""
        self._family = family
        self._boundaries = boundaries
        self._label_names = label_names
        self._bounds = [*map(floatToGoString, boundaries), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._exemplars: dict[tuple[str, ...], dict[int, Exemplar]] = {}
        """By the labels' values, then by bucket."""
        self._lock = threading.Lock()

    def show(self, labels: tuple[str, ...]) -> None:
        """Show these values of the labels, at 0 until the first observation."""
        with self._lock:
            self._row(labels)

    def _row(self, labels: tuple[str, ...]) -> list[int]:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * len(self._bounds)
            self._sums[labels] = 0.0
        return counts

    def record(self, value: float, labels: tuple[str, ...], trace_id: str = "") -> None:
        """One observation under these values of the labels. `trace_id`: of a trace that is
        exported."""
        bucket = bisect_left(self._boundaries, value)
        with self._lock:
            self._row(labels)[bucket] += 1
            self._sums[labels] += value
            if trace_id:
                exemplar = Exemplar({"trace_id": trace_id}, value, time.time())
                self._exemplars.setdefault(labels, {})[bucket] = exemplar

    def collect(self) -> Iterable[Metric]:
        """The metric for a scrape."""
        family = HistogramMetricFamily(self._family, self._family.help, labels=self._label_names)
        with self._lock:
            for labels, counts in self._counts.items():
                exemplars = self._exemplars.get(labels, {})
                totals = map(float, accumulate(counts))
                buckets = [
                    (bound, total, exemplars[index]) if index in exemplars else (bound, total)
                    for index, (bound, total) in enumerate(zip(self._bounds, totals, strict=True))
                ]
                family.add_metric(labels, buckets, self._sums[labels])
        return [family] if family.samples else []
