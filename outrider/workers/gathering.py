"""The metrics of all processes of a service as one exposition (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "worker"
"""Names the process that a sample is of."""


def gathered(texts: Mapping[str, str]) -> bytes:
    """Expositions by process as one, in Prometheus's text format: each sample has the label of its
    process, if it has none of its own, and each family stands there once."""
    registry = CollectorRegistry()
    registry.register(_Gathered(texts))
    return generate_latest(registry)


class _Gathered(Collector):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def describe(self) -> list[Metric]:
        """Nothing: names are not checked against others."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family of any process."""
        families: dict[str, Metric] = {}
        for process, text in self._texts.items():
            for found in text_string_to_metric_families(text):
                family = families.get(found.name)
                if family is None:
                    family = Metric(found.name, found.documentation, found.type, found.unit)
                    families[found.name] = family
                for sample in found.samples:
                    labels = {LABEL: process, **sample.labels}
                    family.samples.append(sample._replace(labels=labels))
        yield from families.values()
