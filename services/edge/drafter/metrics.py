"""Metrics of an edge's drafter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from outrider.telemetry.families import Family
from outrider.telemetry.metrics import state_rows
from services.edge.drafter.counters import DrafterCounters
from services.edge.drafter.protocol import DrafterStats, DraftSource
from services.edge.telemetry.labels import ModelLabels

STATE: Final = Family(
    "outrider_edge_drafter_state",
    "1 for the state that a model's drafter is in, 0 for the others.",
)
SESSIONS: Final = Family("outrider_edge_drafter_sessions", "Sessions open at the drafter.")
MODELLED: Final = Family(
    "outrider_edge_drafter_modelled_sessions",
    "Sessions that the draft model drafts for.",
)
RESTARTS: Final = Family(
    "outrider_edge_drafter_restarts",
    "How often the process of the drafter ended and was to be started again.",
)
DROPPED: Final = Family(
    "outrider_edge_drafter_dropped_frames",
    "Frames dropped because the process did not read.",
)
CALLS: Final = Family("outrider_edge_drafter_calls", "Calls of the draft model.")
ROWS: Final = Family("outrider_edge_drafter_rows", "Rows of all calls of the draft model.")
CALL_TIME: Final = Family(
    "outrider_edge_drafter_call_seconds",
    "Time in calls of the draft model; divide by outrider_edge_drafter_calls_total.",
)
REFUSED: Final = Family(
    "outrider_edge_drafter_refused_sessions",
    "Sessions that the drafter refused for want of a place or of KV blocks.",
)
EVICTED: Final = Family(
    "outrider_edge_drafter_evicted_sessions",
    "Sessions that gave way to others.",
)
REUSED: Final = Family(
    "outrider_edge_drafter_reused_tokens",
    "Prompt tokens that the draft model had read in an earlier turn of their chats.",
)
BRANCHES: Final = Family(
    "outrider_edge_drafter_alternatives",
    "Alternative tokens drafted beside a chain of drafts.",
)
PROMOTED: Final = Family(
    "outrider_edge_drafter_accepted_alternatives",
    "Alternative tokens that turned out right.",
)
PAUSES: Final = Family(
    "outrider_edge_drafter_pauses",
    "How often the draft model paused because others needed the cores.",
)
PAUSED: Final = Family(
    "outrider_edge_drafter_paused_seconds",
    "Time for which the draft model paused, counted when a pause begins.",
)
DRAFTED: Final = Family("outrider_edge_drafter_drafted_tokens", "Tokens drafted, by source.")
ACCEPTED: Final = Family(
    "outrider_edge_drafter_accepted_tokens",
    "Drafted tokens that were right, by source.",
)


_COUNTERS: Final = (
    *(RESTARTS, DROPPED, CALLS, ROWS, CALL_TIME, REFUSED, EVICTED, REUSED, BRANCHES, PROMOTED),
    *(PAUSES, PAUSED),
)


class DrafterState(IntEnum):
    """Values of the gauge STATE."""

    OFF = 0
    STARTING = 1
    """The process runs, its model is not loaded yet."""
    READY = 2
    RESTARTING = 3
    """It ended, and will be started again after a pause."""
    UNUSABLE = 4
    """It cannot run here; the log has the reason."""


class DrafterMetrics:
    """Turns the counts of a model's process, which start over with it, into the edge's."""

    def __init__(self, labels: ModelLabels, model: str) -> None:
        self._metrics = labels.metrics
        self._gauge = labels.gauge
        self._labels = labels.of(model)
        self._last = _NOTHING
        for family in _COUNTERS:
            self._metrics.from_zero(family, others=self._labels)
        sources = [source.name.lower() for source in DraftSource]
        for family in (DRAFTED, ACCEPTED):
            self._metrics.from_zero(family, "source", sources, others=self._labels)
        self.state(DrafterState.OFF)

    def state(self, state: DrafterState) -> None:
        """The state changed."""
        for value, labels in state_rows(state, self._labels):
            self._gauge(STATE, labels, value)
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
        self._add(CALL_TIME, (stats.call_us - last.call_us) / 1e6)
        self._add(REFUSED, stats.num_refused - last.num_refused)
        self._add(EVICTED, stats.num_evicted - last.num_evicted)
        self._add(REUSED, stats.num_reused - last.num_reused)
        self._add(BRANCHES, stats.num_branches - last.num_branches)
        self._add(PROMOTED, stats.num_promoted - last.num_promoted)
        self._add(PAUSES, stats.num_pauses - last.num_pauses)
        self._add(PAUSED, (stats.paused_us - last.paused_us) / 1e6)
        self._add_by_source(DRAFTED, stats.drafted, last.drafted)
        self._add_by_source(ACCEPTED, stats.accepted, last.accepted)

    def _add_by_source(self, name: Family, counts: Sequence[int], last: Sequence[int]) -> None:
        for source, count, before in zip(DraftSource, counts, last, strict=True):
            if count > before:
                labels = {**self._labels, "source": source.name.lower()}
                self._metrics.counter(name).add(count - before, labels)

    def _add(self, name: Family, amount: float) -> None:
        if amount > 0:
            self._metrics.counter(name).add(amount, self._labels)


_NOTHING: Final = DrafterCounters().stats(num_sessions=0, num_modelled=0)
