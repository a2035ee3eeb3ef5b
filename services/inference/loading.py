"""Reports the state of a replica that has no model yet, and stops its loading."""

from __future__ import annotations

import threading

import structlog

from outrider.engines.load_stage import LoadStage
from outrider.models.disk.fetch import PullProgress

_LOGGED_PERCENT = 10
"""A line for every so much."""

_log = structlog.get_logger()


class LoadStoppedError(Exception):
    """The process was told to stop while it fetched or loaded its model."""


class LoadProgress:
    """Receives the progress of a pull, and then the stages of loading, in whatever thread they run.
    After `stop`, the next report ends the loading: what was fetched stays for the next start."""

    def __init__(self) -> None:
        self._text = LoadStage.READ.value
        self._logged = (" ", -1)
        self._stopped = threading.Event()

    def __str__(self) -> str:
        return self._text

    def stop(self) -> None:
        """Fetch nothing more, and begin no other stage."""
        self._stopped.set()

    def enter(self, stage: LoadStage) -> None:
        """A stage of loading begins. Raises LoadStoppedError."""
        if self._stopped.is_set():
            raise LoadStoppedError
        self._text = stage.value
        _log.info("model_loading", stage=stage.value)

    def __call__(self, progress: PullProgress) -> None:
        """Raises LoadStoppedError."""
        if self._stopped.is_set():
            raise LoadStoppedError
        percent = 100 * progress.done_bytes // progress.total_bytes if progress.total_bytes else 0
        self._text = _said(progress, percent)
        step = (progress.stage, percent // _LOGGED_PERCENT)
        if step != self._logged:
            self._logged = step
            _log.info(
                "model_fetching",
                stage=progress.stage,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
            )


def _said(progress: PullProgress, percent: int) -> str:
    if progress.stage == "waiting":
        return "waiting for another process that fetches the model"
    if progress.stage == "asking":
        return "asking which mirrors have the model"
    share = f"{percent} %" if progress.total_bytes else f"{progress.done_bytes} bytes"
    return f"{progress.stage} the model {share}"
