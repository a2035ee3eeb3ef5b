"""Ends a run of several workers (`pytest -n 2`) when one of them dies or hangs, instead of waiting
for ever.

xdist hears of a worker's death by the end of its pipe. A process that the worker forked holds that
pipe too, and if it lives on, the end never comes. So the controller asks the system whether its
workers live, and whether anything was heard of them lately.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

GRACE_S = 10.0
"""For what a worker that ended had still said; it is on its way through the pipe."""
MAX_SILENCE_S = 780.0
"""Longer than the longest time limit of a test, 600 s: no worker that works is silent for so long.
"""


class WorkerWatch:
    """Looks after the workers in a thread of its own: the controller's only waits for them."""

    def __init__(
        self,
        session: pytest.Session,
        *,
        max_silence_s: float = MAX_SILENCE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._session = session
        self._max_silence_s = max_silence_s
        self._grace_s = grace_s
        self._pids: dict[Any, int] = {}
        self._dead_since: dict[int, float] = {}
        self._heard_at = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="worker-watch", daemon=True)
        self._thread.start()

    def pytest_testnodeready(self, node: Any) -> None:
        self._pids[node] = node.gateway._rinfo().pid
        self._heard()

    def pytest_xdist_node_collection_finished(self) -> None:
        self._heard()

    def pytest_runtest_logstart(self) -> None:
        self._heard()

    def pytest_runtest_logreport(self) -> None:
        self._heard()

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """A worker that dies leaves tests that nobody ran: the run is no success, and ends when the
        others have done what they have begun."""
        self._heard()
        if error:
            dead = f"worker {node.gateway.id} ended in the middle of the run: {error}"
            controller: Any = self._session.config.pluginmanager.get_plugin("dsession")
            controller.shouldstop = dead

    def pytest_sessionfinish(self) -> None:
        self._is_over.set()

    def _heard(self) -> None:
        self._heard_at = time.monotonic()

    def _watch(self) -> None:
        while not self._is_over.wait(1.0):
            self._look()

    def _look(self) -> None:
        """Report workers that ended without a word; abort all after too long a silence."""
        now = time.monotonic()
        for node, pid in list(self._pids.items()):
            if node._down:
                continue
            if _lives(pid):
                if now - self._heard_at > self._max_silence_s:
                    os.kill(pid, signal.SIGABRT)  # pytest's faulthandler prints where it hangs
            elif now - self._dead_since.setdefault(pid, now) > self._grace_s:
                node._down = True
                node.notify_inproc("errordown", node=node, error="its process is gone")


def _lives(pid: int) -> bool:
    """Whether this child runs; it is left for its parent to reap."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
