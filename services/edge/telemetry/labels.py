"""Metrics by model, however many models come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, TypeAlias

from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics

MODEL_LABEL: Final = "model"
OTHER_MODELS: Final = "other"
MAX_LABELS: Final = 256
"""Most model names that the metrics distinguish in the life of an edge; further ones count as
OTHER_MODELS. A counter keeps a row for every name it ever had."""

Labels: TypeAlias = dict[str, str]


class ModelLabels:
    """The labels of models, and gauges by them. May be called from any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._gauges: dict[Family, dict[str, dict[tuple[tuple[str, str], ...], float]]] = {}
        """By metric, model and all labels."""

    def of(self, model: str) -> Labels:
        """The labels of a model."""
        with self._lock:
            if model not in self._known:
                if len(self._known) >= MAX_LABELS:
                    return {MODEL_LABEL: OTHER_MODELS}
                self._known.add(model)
        return {MODEL_LABEL: model}

    def gauge(self, name: Family, labels: Mapping[str, str], value: float) -> None:
        """Set the gauge of a model, with any further labels."""
        with self._lock:
            rows = self._gauges.setdefault(name, {}).setdefault(labels[MODEL_LABEL], {})
            rows[tuple(labels.items())] = value
            self._show(name)

    def forget(self, model: str) -> None:
        """The gauges of a model vanish."""
        with self._lock:
            for name, rows in self._gauges.items():
                if rows.pop(model, None) is not None:
                    self._show(name)

    def _show(self, name: Family) -> None:
        models = self._gauges[name].values()
        self.metrics.table(name).set(
            (value, dict(labels)) for rows in models for labels, value in rows.items()
        )
