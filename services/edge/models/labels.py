"""Metrics by model, however many models come and go."""

from __future__ import annotations

import threading
from typing import Final, TypeAlias

from outrider.telemetry.metrics import Metrics

MODEL_LABEL: Final = "model"
OTHER_MODELS: Final = "other"
MAX_LABELS: Final = 256
"""Names of models that the metrics tell apart in the life of an edge; those beyond count as
OTHER_MODELS. A counter keeps a row for every name there ever was."""

Labels: TypeAlias = dict[str, str]


class ModelLabels:
    """The labels of models, and gauges by them. May be called from any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._gauges: dict[str, dict[str, float]] = {}
        """By metric and model."""

    def of(self, model: str) -> Labels:
        """The labels of a model."""
        with self._lock:
            if model not in self._known:
                if len(self._known) >= MAX_LABELS:
                    return {MODEL_LABEL: OTHER_MODELS}
                self._known.add(model)
        return {MODEL_LABEL: model}

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Set the gauge of a model."""
        with self._lock:
            self._gauges.setdefault(name, {})[labels[MODEL_LABEL]] = value
            self._show(name)

    def forget(self, model: str) -> None:
        """The gauges of a model vanish."""
        with self._lock:
            for name, rows in self._gauges.items():
                if rows.pop(model, None) is not None:
                    self._show(name)

    def _show(self, name: str) -> None:
        rows = self._gauges[name].items()
        self.metrics.table(name).set((value, {MODEL_LABEL: model}) for model, value in rows)
