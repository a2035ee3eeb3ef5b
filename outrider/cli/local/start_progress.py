"""How far the start of a mesh is, and how long it may still take (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.engines.load_stage import LoadStage

_TYPICAL_S: Final[Mapping[str, Mapping[str, float]]] = {
    "inference": {
        "": 2.0,
        LoadStage.READ: 1.5,
        LoadStage.COMPILE: 2.5,
        LoadStage.COMPARE: 0.5,
        LoadStage.WARM_UP: 0.5,
    },
    "tokenizer": {"": 3.0},
    "router": {"": 1.5},
    "edge": {"": 2.5, "the drafter loads its model": 6.0},
}
"""Seconds that the stages of each role take on two cores with the default model; "" is the time
before a process reports anything. Only their ratios count: how fast this start is follows from its
finished stages. A stage of a replica or tokenizer that is not listed, such as a fetch, has no
typical time; routers and edges wait for others in theirs, which count for themselves."""
_WAITING: Final = ("router", "edge")
"""Roles whose other stages are waiting."""


@dataclass(slots=True)
class _Process:
    """One process; times in seconds on the clock of `now`."""

    role: str
    stage: str = ""
    since: float | None = None
    """When the stage began; None: the process was not started."""
    is_ready: bool = False

    def left_s(self, now: float, slowness: float) -> float:
        """Time left if each stage takes `slowness` times its typical time; infinite during one
        without."""
        typical_s = _TYPICAL_S[self.role]
        if self.is_ready or self.since is None:
            return 0.0 if self.is_ready else slowness * sum(typical_s.values())
        if self.stage not in typical_s:
            return 0.0 if self.role in _WAITING else math.inf
        stages = list(typical_s)
        later = stages[stages.index(self.stage) + 1 :]
        of_this = max(0.0, slowness * typical_s[self.stage] - (now - self.since))
        return of_this + slowness * sum(typical_s[stage] for stage in later)


class StartProgress:
    """The processes of one mesh, while it starts."""

    def __init__(self, phases: Sequence[Mapping[str, str]]) -> None:
        """`phases` start one after the other: names of processes, each with its role."""
        self._phases = [[*phase] for phase in phases]
        self._processes = {name: _Process(role) for it in phases for name, role in it.items()}
        self._took_s = 0.0
        self._typical_s = 0.0
        """Of the stages that took so long."""

    def enter(self, name: str, stage: str, now: float) -> None:
        """A process begins a stage, which it names in its own words; "": it was just started."""
        process = self._processes[name]
        self._finish(process, now)
        process.stage, process.since = stage, now

    def ready(self, name: str, now: float) -> None:
        """A process is ready."""
        process = self._processes[name]
        self._finish(process, now)
        process.is_ready = True

    def line(self, now: float) -> str:
        """How many are ready, what the one that takes longest does, and the time left once a stage
        has shown how fast this machine is, unless the last one takes longer than expected."""
        slowness = self._took_s / self._typical_s if self._typical_s else 1.0
        left_s = {name: it.left_s(now, slowness) for name, it in self._processes.items()}
        busy = [n for n, it in self._processes.items() if it.since is not None and not it.is_ready]
        num_ready = sum(it.is_ready for it in self._processes.values())
        parts = [f"{num_ready} of {len(self._processes)} processes ready"]
        if busy:
            slowest = max(busy, key=lambda name: left_s[name])
            parts.append(f"{slowest}: {self._processes[slowest].stage or 'starting'}")
        all_s = sum(max(left_s[name] for name in phase) for phase in self._phases)
        if self._typical_s and 1 <= all_s < math.inf:
            parts.append(f"about {round(all_s)} s left")
        return "; ".join(parts)

    def _finish(self, process: _Process, now: float) -> None:
        typical_s = _TYPICAL_S[process.role].get(process.stage)
        if process.since is not None and typical_s is not None:
            self._took_s += now - process.since
            self._typical_s += typical_s
