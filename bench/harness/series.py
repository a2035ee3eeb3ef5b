"""Runs many benchmarks one after the other: resumable, with the time they take said before and
during, after the other systems that are missing have been installed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.benches import Bench
from bench.harness.provenance import ROOT
from bench.harness.record import RESULTS, changes, load
from bench.peers.installing import Peer
from bench.peers.lineup import PEERS

_TELL_EVERY_S = 60.0


def install(names: Iterable[str], peers: dict[str, Peer] = PEERS) -> list[str]:
    """Install those that are missing; returns the names of those that could not be."""
    failed = []
    for name in names:
        peer = peers[name]
        if peer.is_installed():
            continue
        print(f"installing {name}: about {peer.minutes:.0f} min", file=sys.stderr, flush=True)
        began_at = time.monotonic()
        try:
            peer.install()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{name} could not be installed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        minutes = (time.monotonic() - began_at) / 60
        print(f"installed {name} in {minutes:.1f} min", file=sys.stderr, flush=True)
    return failed


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each bench is run."""

    core: bool = False
    quick: bool = False


@dataclass(slots=True)
class Result:
    """Which benchmarks were skipped, failed or could not be installed, and the time they took."""

    skipped: list[str] = field(default_factory=list)
    """Recorded already, from the same sources."""
    failed: list[str] = field(default_factory=list)
    not_installed: list[str] = field(default_factory=list)
    measured_s: float = 0.0
    """Seconds of the parts that ran; installing peers is not included."""


def is_fresh(bench: Bench, size: Size, results: Path = RESULTS, root: Path = ROOT) -> bool:
    """Whether its record is large enough and all measured files are known to be unchanged since. A
    full record serves as a core one too."""
    record = load(bench.record, results)
    since = None if record is None else changes(record, root)
    if record is None or since is None or since.num_changed:
        return False
    return size.core or record.get("plan") == "full"


def minutes(bench: Bench, size: Size, results: Path = RESULTS) -> float:
    """Expected minutes: the last run's time at this size, else the declared value."""
    record = load(bench.record, results) or {}
    plan = "core" if size.core and bench.core_flags else "full"
    if record.get("plan") == plan and "duration_s" in record:
        return float(record["duration_s"]) / 60
    return bench.core_minutes if size.core else bench.minutes


class Series:
    """Benches in their order."""

    def __init__(
        self,
        benches: Sequence[Bench],
        size: Size,
        *,
        fresh: bool = False,
        results: Path = RESULTS,
        root: Path = ROOT,
    ) -> None:
        """`fresh`: run again the benches that are recorded already."""
        self._size = size
        self._root = root
        again = fresh or size.quick
        self.left = [b for b in benches if again or not is_fresh(b, size, results, root)]
        self.result = Result(skipped=[b.record for b in benches if b not in self.left])
        self._minutes = {b.record: minutes(b, size, results) for b in self.left}

    @property
    def minutes_left(self) -> float:
        """Expected, of the parts that have not run."""
        return sum(self._minutes[bench.record] for bench in self.left)

    def run(self, install: Callable[[Sequence[str]], list[str]] = install) -> Result:
        """All that is left, one after the other. What fails does not stop the others."""
        if self.result.skipped:
            _say(f"recorded already from these sources: {', '.join(self.result.skipped)}")
        total = len(self.left)
        if not self._size.quick:
            _say(f"{total} to run, about {self.minutes_left:.0f} min in all")
        for number in range(1, total + 1):
            bench = self.left[0]
            if not self._size.quick:
                self.result.not_installed += install(bench.peers)
            _say(f"[{number} of {total}] {bench.record}: {self._expectation(0.0)}")
            began_at = time.monotonic()
            if self._wait(bench, began_at):
                self.result.failed.append(bench.record)
            self.result.measured_s += time.monotonic() - began_at
            del self.left[0]
        return self.result

    def _wait(self, bench: Bench, began_at: float) -> int:
        """Run it in a process of its own; its exit status."""
        command = bench.command(core=self._size.core, quick=self._size.quick)
        with subprocess.Popen([sys.executable, "-m", *command], cwd=self._root) as process:
            while True:
                try:
                    return process.wait(_TELL_EVERY_S)
                except subprocess.TimeoutExpired:
                    passed = (time.monotonic() - began_at) / 60
                    _say(f"{bench.record}: {passed:.0f} min passed; {self._expectation(passed)}")

    def _expectation(self, passed: float) -> str:
        mine = self._minutes[self.left[0].record]
        rest = max(0.0, self.minutes_left - min(passed, mine))
        return f"about {mine:.1f} min; {rest:.0f} min left in all"


def _say(text: str) -> None:
    print(f"=== {text}", file=sys.stderr, flush=True)
