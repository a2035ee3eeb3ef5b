"""Metrics of an edge's drafter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from services.edge.drafter.counters import DrafterCounters
from services.edge.drafter.protocol import DrafterStats, DraftSource
from services.edge.models.labels import ModelLabels

STATE: Final = "outrider.edge.drafter.state"
SESSIONS: Final = "outrider.edge.drafter.sessions"
MODELLED: Final = "outrider.edge.drafter.modelled_sessions"
RESTARTS: Final = "outrider.edge.drafter.restarts"
DROPPED: Final = "outrider.edge.drafter.dropped_frames"
CALLS: Final = "outrider.edge.drafter.calls"
ROWS: Final = "outrider.edge.drafter.rows"
CALL_MS: Final = "outrider.edge.drafter.call_ms"
"""The sum over all calls; divide by their number for the mean."""
REFUSED: Final = "outrider.edge.drafter.refused_sessions"
EVICTED: Final = "outrider.edge.drafter.evicted_sessions"
BRANCHES: Final = "outrider.edge.drafter.alternatives"
"""Alternative tokens drafted beside a chain of drafts."""
PROMOTED: Final = "outrider.edge.drafter.accepted_alternatives"
DRAFTED: Final = "outrider.edge.drafter.drafted_tokens"
ACCEPTED: Final = "outrider.edge.drafter.accepted_tokens"


class DrafterState(IntEnum):
    """What the gauge STATE says."""

    OFF = 0
    STARTING = 1
    """The process runs, its model is not loaded yet."""
    READY = 2
    RESTARTING = 3
    """It ended, and will be started again after a pause."""
    UNUSABLE = 4
    """It cannot run here; the log says why."""


class DrafterMetrics:
    """Turns the counts of a model's process, which start over with it, into the edge's."""

    def __init__(self, labels: ModelLabels, model: str) -> None:
        self._metrics = labels.metrics
        self._gauge = labels.gauge
        self._labels = labels.of(model)
        self._last = _NOTHING
        self.state(DrafterState.OFF)

    def state(self, state: DrafterState) -> None:
        """The state changed."""
        self._gauge(STATE, self._labels, state)
        if state is not DrafterState.READY:
            self._gauge(SESSIONS, self._labels, 0)
            self._gauge(MODELLED, self._labels, 0)
        if state is DrafterState.STARTING:
            self._last = _NOTHING
        if state is DrafterState.RESTARTING:
            self._metrics.counter(RESTARTS).add(1, self._labels)

    def dropped(self) -> None:
        """A frame was dropped because the process does not read."""
        self._metrics.counter(DROPPED).add(1, self._labels)

    def record(self, stats: DrafterStats) -> None:
        """The process's counts so far."""
        last, self._last = self._last, stats
        self._gauge(SESSIONS, self._labels, stats.num_sessions)
        self._gauge(MODELLED, self._labels, stats.num_modelled)
        self._add(CALLS, stats.num_calls - last.num_calls)
        self._add(ROWS, stats.num_rows - last.num_rows)
        self._add(CALL_MS, (stats.call_us - last.call_us) / 1000)
        self._add(REFUSED, stats.num_refused - last.num_refused)
        self._add(EVICTED, stats.num_evicted - last.num_evicted)
        self._add(BRANCHES, stats.num_branches - last.num_branches)
        self._add(PROMOTED, stats.num_promoted - last.num_promoted)
        self._add_by_source(DRAFTED, stats.drafted, last.drafted)
        self._add_by_source(ACCEPTED, stats.accepted, last.accepted)

    def _add_by_source(self, name: str, counts: Sequence[int], last: Sequence[int]) -> None:
        for source, count, before in zip(DraftSource, counts, last, strict=True):
            if count > before:
                labels = {**self._labels, "source": source.name.lower()}
                self._metrics.counter(name).add(count - before, labels)

    def _add(self, name: str, amount: float) -> None:
        if amount > 0:
            self._metrics.counter(name).add(amount, self._labels)


_NOTHING: Final = DrafterCounters().stats(num_sessions=0, num_modelled=0)
